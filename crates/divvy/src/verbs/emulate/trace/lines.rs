//! The trace as text, a line for each call and each kernel, as strace prints system calls.
//!
//!     0.004211 4242 cuMemAlloc_v2(dptr=[0x7f5c00200000], bytesize=4096) = CUDA_SUCCESS <0.000011>
//!     0.004630 4242 * saxpy<<<(4,1,1), (256,1,1), 0>>> device 0, stream null <device 0.000210, processor 0.000198>

use divvy_model::Fault;
use divvy_trace::{Call, Operation};

use super::listener::{Listener, Sink};
use super::story::Told;

/// Writes lines.
pub struct Lines(Sink);

impl Lines {
    /// To there.
    pub fn new(sink: Sink) -> Self {
        Self(sink)
    }
}

impl Listener for Lines {
    fn hear(&mut self, told: &Told) {
        if let Some(line) = line(told) {
            self.0.write(&line);
        }
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn end(self: Box<Self>) -> Result<(), Fault> {
        self.0.end()
    }
}

fn line(told: &Told) -> Option<String> {
    Some(match told {
        Told::Call { pid, call, inside } => {
            let answer = match call.result.as_str() {
                "" => String::new(),
                result => format!(" = {result}"),
            };
            format!(
                "{} {}{}({}){answer} <{}>\n",
                place(call.begin, *pid, call.tid),
                "  ".repeat(*inside),
                call.name,
                arguments(call),
                seconds(call.end - call.begin)
            )
        }
        Told::Unfinished {
            pid,
            tid,
            name,
            begin,
            ..
        } => format!(
            "{} {name}( <unfinished: the program ended here>\n",
            place(*begin, *pid, *tid)
        ),
        Told::Operation { pid, operation } => format!(
            "{} * {} device {}, stream {} <device {}, processor {}>{}\n",
            place(operation.begin, *pid, operation.tid),
            title(operation),
            operation.device,
            stream(operation),
            seconds(operation.end - operation.begin),
            seconds(operation.host_ns),
            if operation.failed { " failed" } else { "" }
        ),
        Told::Process { pid, program } => format!("{pid} is {program}\n"),
        Told::Device { .. } | Told::Thread { .. } | Told::Memory { .. } => return None,
    })
}

fn place(at: u64, pid: u32, tid: u32) -> String {
    match pid == tid {
        true => format!("{} {pid}", seconds(at)),
        false => format!("{} {pid}/{tid}", seconds(at)),
    }
}

/// `f=0x55d0, gridDimX=4`.
fn arguments(call: &Call) -> String {
    let each = call
        .arguments
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    each.collect::<Vec<_>>().join(", ")
}

/// A stream as the program knows it.
pub fn stream(operation: &Operation) -> String {
    match operation.handle {
        0 => "null".to_owned(),
        handle => format!("{handle:#x}"),
    }
}

/// What work of a stream is: `saxpy<<<(4,1,1), (256,1,1), 0>>>(0x00000400, 0x7f00*)`, `copy HtoD`.
pub fn title(operation: &Operation) -> String {
    match &operation.kernel {
        Some(kernel) => format!(
            "{}<<<{}, {}, {}>>>({})",
            kernel.name,
            sizes(kernel.grid),
            sizes(kernel.block),
            kernel.shared,
            kernel.arguments.join(", ")
        ),
        None => work(&operation.call),
    }
}

fn sizes(of: [u32; 3]) -> String {
    format!("({},{},{})", of[0], of[1], of[2])
}

/// Work that is no kernel, by the call that it came from.
pub fn work(call: &str) -> String {
    let ends = ["_ptsz", "_ptds", "_v2", "Async"];
    let mut rest = call;
    while let Some(shorter) = ends.iter().find_map(|end| rest.strip_suffix(end)) {
        rest = shorter;
    }
    if let Some(which) = rest.strip_prefix("cuMemcpy") {
        return format!("copy {which}").trim_end().to_owned();
    }
    if rest.starts_with("cuMemset") {
        return "fill".to_owned();
    }
    match rest {
        "cuMemFree" => "free".to_owned(),
        "cuLaunchHostFunc" | "cuStreamAddCallback" => "function of the host".to_owned(),
        "cuGraphLaunch" => "node of a graph".to_owned(),
        other => other.to_owned(),
    }
}

/// `0.001234`: seconds, to a microsecond.
fn seconds(ns: u64) -> String {
    format!("{}.{:06}", ns / 1_000_000_000, ns / 1000 % 1_000_000)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use divvy_trace::Kernel;

    /// A launch of a kernel on a stream.
    pub fn operation() -> Operation {
        Operation {
            tid: 8,
            called: 1_000,
            call: "cuLaunchKernel".into(),
            number: 3,
            begin: 1_500_000_000,
            end: 1_500_210_000,
            host_ns: 198_000,
            handle: 0x10,
            kernel: Some(Kernel {
                name: "saxpy".into(),
                grid: [4, 1, 1],
                block: [256, 1, 1],
                arguments: vec!["0x00000400".into(), "0x7f00*".into()],
                ..Kernel::default()
            }),
            ..Operation::default()
        }
    }

    #[test]
    fn lines_are_as_documented() {
        let call = Call {
            tid: 7,
            begin: 4_211_000,
            end: 4_222_500,
            name: "cuMemAlloc_v2".into(),
            result: "CUDA_SUCCESS".into(),
            arguments: vec![
                ("dptr".into(), "[0x7f00]".into()),
                ("bytesize".into(), "4096".into()),
            ],
            ..Call::default()
        };
        let told = |inside| Told::Call {
            pid: 7,
            call: call.clone(),
            inside,
        };
        let expected = "cuMemAlloc_v2(dptr=[0x7f00], bytesize=4096) = CUDA_SUCCESS <0.000011>\n";
        assert_eq!(line(&told(0)), Some(format!("0.004211 7 {expected}")));
        assert_eq!(line(&told(1)), Some(format!("0.004211 7   {expected}")));
        let (pid, operation) = (7, operation());
        assert_eq!(
            line(&Told::Operation { pid, operation }).as_deref(),
            Some(
                "1.500000 7/8 * saxpy<<<(4,1,1), (256,1,1), 0>>>(0x00000400, 0x7f00*) device 0, stream 0x10 <device \
                 0.000210, processor 0.000198>\n"
            )
        );
        for (call, expected) in [
            ("cuMemcpyHtoDAsync_v2_ptsz", "copy HtoD"),
            ("cuMemcpy_ptds", "copy"),
            ("cuMemcpy2D_v2", "copy 2D"),
            ("cuMemsetD32Async", "fill"),
            ("cuMemFreeAsync_ptsz", "free"),
        ] {
            assert_eq!(work(call), expected);
        }
    }
}
