//! Counts and times by function and kernel, as `strace -c` gives them for system calls.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::lines::work;
use super::story::Told;
use crate::table::Table;

/// What a program did, in numbers.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// The program's exit status, as a shell has it: 128 and the number of the signal that ended it.
    pub exit_status: u8,
    /// Processes of the program that made CUDA calls.
    pub processes: u64,
    /// The disk was full, and something is missing.
    pub incomplete: bool,
    /// Functions, those that took the longest first.
    pub calls: Vec<Counted>,
    /// Kernels, copies and fills, those that took the longest first.
    pub work: Vec<Worked>,
    /// The most device memory that was in use at once, in bytes, contexts included: of all processes and devices together.
    pub peak_memory_bytes: u64,
}

/// Counts while the program runs.
#[derive(Debug, Default)]
pub struct Counting {
    calls: BTreeMap<String, Counted>,
    work: BTreeMap<String, Worked>,
    pids: BTreeSet<u32>,
    /// In use now, in bytes, by process and device.
    memory: BTreeMap<(u32, u32), u64>,
    peak: u64,
}

/// The calls of a function.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counted {
    /// The function.
    pub name: String,
    /// How often it was called.
    pub calls: u64,
    /// How many of these answered an error.
    pub errors: u64,
    /// How long they took together, in nanoseconds: calls inside them as well.
    pub total_ns: u64,
    /// The longest one, in nanoseconds.
    pub longest_ns: u64,
}

/// Work of streams of one name.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Worked {
    /// The kernel's name, or `copy HtoD`, `fill` and the like.
    pub name: String,
    /// It is a kernel.
    pub is_kernel: bool,
    /// How often it ran.
    pub times: u64,
    /// How long it ran together, by the device clock, in nanoseconds.
    pub device_ns: u64,
    /// How long this machine's processors took for it, in nanoseconds.
    pub processor_ns: u64,
    /// The longest one by the device clock, in nanoseconds.
    pub longest_ns: u64,
}

impl Counting {
    /// Something happened.
    pub fn hear(&mut self, told: &Told) {
        match told {
            Told::Process { pid, .. } => drop(self.pids.insert(*pid)),
            Told::Call { call, .. } => {
                let counted = self.calls.entry(call.name.clone().into_owned()).or_default();
                let took = call.end - call.begin;
                counted.calls += 1;
                counted.errors += u64::from(call.failed);
                counted.total_ns += took;
                counted.longest_ns = counted.longest_ns.max(took);
            }
            Told::Unfinished { name, begin, end, .. } => {
                let counted = self.calls.entry(name.clone()).or_default();
                counted.calls += 1;
                counted.total_ns += end - begin;
                counted.longest_ns = counted.longest_ns.max(end - begin);
            }
            Told::Operation { operation, .. } => {
                let name = match &operation.kernel {
                    Some(kernel) => kernel.name.clone(),
                    None => work(&operation.call),
                };
                let worked = self.work.entry(name).or_default();
                let took = operation.end - operation.begin;
                worked.is_kernel = operation.kernel.is_some();
                worked.times += 1;
                worked.device_ns += took;
                worked.processor_ns += operation.host_ns;
                worked.longest_ns = worked.longest_ns.max(took);
            }
            Told::Memory {
                pid, device, bytes, ..
            } => {
                self.memory.insert((*pid, *device), *bytes);
                self.peak = self.peak.max(self.memory.values().sum());
            }
            Told::Thread { .. } | Told::Device { .. } => {}
        }
    }

    /// The program has ended.
    pub fn end(self) -> Summary {
        let named = |(name, counted): (String, Counted)| Counted { name, ..counted };
        let mut calls: Vec<_> = self.calls.into_iter().map(named).collect();
        calls.sort_by_key(|counted| std::cmp::Reverse(counted.total_ns));
        let named = |(name, worked): (String, Worked)| Worked { name, ..worked };
        let mut work: Vec<_> = self.work.into_iter().map(named).collect();
        work.sort_by_key(|worked| std::cmp::Reverse(worked.device_ns));
        Summary {
            processes: self.pids.len() as u64,
            calls,
            work,
            peak_memory_bytes: self.peak,
            ..Summary::default()
        }
    }
}

impl Summary {
    /// Whether nothing was traced.
    pub fn is_empty(&self) -> bool {
        self.processes == 0
    }

    /// It for people.
    pub fn in_words(&self) -> String {
        if self.is_empty() {
            return "nothing was traced: the program made no CUDA call\n".to_owned();
        }
        let mut calls = Table::new(vec![
            ("TIME", true),
            ("SECONDS", true),
            ("MEAN", true),
            ("LONGEST", true),
            ("CALLS", true),
            ("ERRORS", true),
            ("FUNCTION", false),
        ]);
        let all: u64 = self.calls.iter().map(|counted| counted.total_ns).sum();
        for counted in &self.calls {
            calls.row(vec![
                share(counted.total_ns, all),
                seconds(counted.total_ns),
                span(counted.total_ns / counted.calls.max(1)),
                span(counted.longest_ns),
                counted.calls.to_string(),
                match counted.errors {
                    0 => String::new(),
                    errors => errors.to_string(),
                },
                counted.name.clone(),
            ]);
        }
        let mut work = Table::new(vec![
            ("TIME", true),
            ("DEVICE", true),
            ("PROCESSOR", true),
            ("MEAN", true),
            ("LONGEST", true),
            ("TIMES", true),
            ("WORK", false),
        ]);
        let all: u64 = self.work.iter().map(|worked| worked.device_ns).sum();
        for worked in &self.work {
            work.row(vec![
                share(worked.device_ns, all),
                seconds(worked.device_ns),
                seconds(worked.processor_ns),
                span(worked.device_ns / worked.times.max(1)),
                span(worked.longest_ns),
                worked.times.to_string(),
                worked.name.clone(),
            ]);
        }
        let mut text = String::new();
        if !self.calls.is_empty() {
            text.push_str(&calls.to_text());
            text.push('\n');
        }
        if !self.work.is_empty() {
            text.push_str(&work.to_text());
            text.push('\n');
        }
        text.push_str(&format!(
            "{}, at most {} MiB of device memory in use\n",
            match self.processes {
                1 => "1 process".to_owned(),
                count => format!("{count} processes"),
            },
            self.peak_memory_bytes.div_ceil(1 << 20)
        ));
        text
    }
}

fn share(part: u64, of: u64) -> String {
    format!("{:.1}%", 100.0 * part as f64 / of.max(1) as f64)
}

fn seconds(ns: u64) -> String {
    format!("{:.6}", ns as f64 / 1e9)
}

/// A time with the unit that suits it.
fn span(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.1}us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns as f64 / 1e6),
        _ => format!("{:.2}s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::tests::operation;
    use super::*;
    use divvy_trace::Call;

    #[test]
    fn calls_and_kernels_are_counted_and_the_longest_come_first() {
        let mut counting = Counting::default();
        let call = |name: &'static str, length: u64, failed: bool| Told::Call {
            pid: 7,
            call: Call {
                begin: 10,
                end: 10 + length,
                name: name.into(),
                failed,
                ..Call::default()
            },
            inside: 0,
        };
        counting.hear(&Told::Process {
            pid: 7,
            program: "p".into(),
        });
        for told in [
            call("cuInit", 5, false),
            call("cuMemFree_v2", 3, true),
            call("cuMemFree_v2", 4, false),
        ] {
            counting.hear(&told);
        }
        for (device, bytes) in [(0, 5), (1, 7), (0, 0)] {
            let (pid, at) = (7, 0);
            counting.hear(&Told::Memory {
                pid,
                device,
                at,
                bytes,
            });
        }
        let (pid, operation) = (7, operation());
        counting.hear(&Told::Operation { pid, operation });
        let summary = counting.end();
        let first = &summary.calls[0];
        assert_eq!(
            (
                &*first.name,
                first.calls,
                first.errors,
                first.total_ns,
                first.longest_ns
            ),
            ("cuMemFree_v2", 2, 1, 7, 4)
        );
        assert_eq!((summary.processes, summary.peak_memory_bytes), (1, 12));
        assert_eq!(
            (summary.work[0].device_ns, summary.work[0].processor_ns),
            (210_000, 198_000)
        );
        assert!(summary.in_words().contains("58.3%"), "{}", summary.in_words());
        assert!(Summary::default().in_words().starts_with("nothing was traced"));
    }
}
