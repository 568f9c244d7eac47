//! What `divvy emulate trace` is told of: work of streams, devices, and device memory in use. The calls themselves are recorded
//! where the drop-in exports them (`divvy_trace::through`).
//!
//! Where a process is not traced, [`Traced`] is None everywhere, and work is submitted as it is.

use divvy_device::Device;
use divvy_device::clock;
use divvy_ptx::Param;
use divvy_trace::{Kernel, Operation};
use std::sync::{Arc, OnceLock};

/// Work of a stream that is to be recorded.
pub type Traced = Option<Box<Operation>>;

/// At `cuInit`: the devices, and how to ask for memory in use.
pub fn begin(devices: &[Arc<Device>]) {
    for device in devices {
        divvy_trace::device(device.ordinal as u32, device.facts.profile.name);
    }
    static DEVICES: OnceLock<Vec<Arc<Device>>> = OnceLock::new();
    let _first = DEVICES.set(devices.to_vec());
    divvy_trace::memory_by(|| {
        let devices = DEVICES.get().into_iter().flatten();
        devices.map(|device| device.hardware.own_bytes()).collect()
    });
}

/// The stream that work goes to.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The CUdevice.
    pub device: u32,
    /// Its context's id.
    pub context: u64,
    /// Its id in the context.
    pub stream: u64,
    /// The stream as the program knows it; 0 for default streams.
    pub handle: u64,
}

/// Work that the call of this thread puts into a stream.
pub fn work(place: Place) -> Traced {
    let origin = divvy_trace::origin()?;
    Some(Box::new(Operation {
        tid: origin.tid,
        called: origin.begin,
        call: origin.name.into(),
        number: origin.number,
        device: place.device,
        context: place.context,
        stream: place.stream,
        handle: place.handle,
        ..Operation::default()
    }))
}

/// A kernel that the call of this thread puts into a stream.
pub fn kernel(place: Place, kernel: impl FnOnce() -> Kernel) -> Traced {
    let mut traced = work(place)?;
    traced.kernel = Some(kernel());
    Some(traced)
}

/// Bytes of an argument that are shown, where it is no number.
const SHOWN: usize = 32;

/// A kernel's arguments as texts. What PTX says of a parameter is its size: numbers are hexadecimal with all of their
/// digits, and an address that the kernel can reach has a star behind it. Larger ones are their bytes in order.
pub fn arguments(declared: &[Param], params: &[u8], is_reached: impl Fn(u64) -> bool) -> Vec<String> {
    let argument = |param: &Param| {
        let (from, size) = (param.offset as usize, param.size as usize);
        let Some(bytes) = params.get(from..from.saturating_add(size)) else {
            return format!("{{{size} bytes}}");
        };
        let digits =
            |bytes: &mut dyn Iterator<Item = &u8>| bytes.map(|b| format!("{b:02x}")).collect::<String>();
        if let 1 | 2 | 4 | 8 = size {
            let number = digits(&mut bytes.iter().rev());
            let address = <[u8; 8]>::try_from(bytes).map(u64::from_le_bytes);
            return match address.is_ok_and(&is_reached) {
                true => format!("0x{}*", number.trim_start_matches('0')),
                false => format!("0x{number}"),
            };
        }
        let shown = digits(&mut bytes.iter().take(SHOWN));
        let rest = if size > SHOWN { "..." } else { "" };
        format!("{{{size} bytes: {shown}{rest}}}")
    };
    declared.iter().map(argument).collect()
}

/// Runs work, which is recorded when it has ended.
pub fn run<T>(traced: Traced, work: impl FnOnce() -> T) -> T {
    let Some(mut traced) = traced else { return work() };
    traced.begin = clock::now_ns();
    let begun = clock::real_ns();
    let answer = work();
    traced.host_ns = clock::real_ns() - begun;
    traced.end = clock::now_ns();
    divvy_trace::operation(*traced);
    answer
}

/// The same for work of the engine: where its time is modelled, it lasts what the model says. `has_failed` is asked when it
/// has ended.
pub fn run_on_engine(
    traced: Traced,
    modelled_start_ns: Option<u64>,
    work: impl FnOnce() -> u64,
    has_failed: impl FnOnce() -> bool,
) -> u64 {
    let Some(mut traced) = traced else { return work() };
    traced.begin = modelled_start_ns.unwrap_or_else(clock::now_ns);
    let begun = clock::real_ns();
    let length_ns = work();
    traced.host_ns = clock::real_ns() - begun;
    traced.end = match modelled_start_ns {
        Some(start_ns) => start_ns + length_ns,
        None => clock::now_ns(),
    };
    traced.failed = has_failed();
    divvy_trace::operation(*traced);
    length_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_numbers_by_their_size_and_marked_addresses() {
        let sizes = [4, 8, 8, 1, 12, 40, 8];
        let mut offset = 0;
        let mut declared = Vec::new();
        for size in sizes {
            declared.push(Param {
                offset,
                size,
                align: 1,
            });
            offset += size;
        }
        let mut params = vec![0; offset as usize - 8];
        params[..4].copy_from_slice(&0x400_u32.to_le_bytes());
        params[4..12].copy_from_slice(&0x7f00_0000_1000_u64.to_le_bytes());
        params[12..20].copy_from_slice(&7_u64.to_le_bytes());
        params[20] = 0xfe;
        params[21] = 1;
        // The last one is not there.
        assert_eq!(
            arguments(&declared, &params, |address| address == 0x7f00_0000_1000),
            [
                "0x00000400",
                "0x7f0000001000*",
                "0x0000000000000007",
                "0xfe",
                "{12 bytes: 010000000000000000000000}",
                &format!("{{40 bytes: {}...}}", "0".repeat(64)),
                "{8 bytes}",
            ]
        );
    }
}
