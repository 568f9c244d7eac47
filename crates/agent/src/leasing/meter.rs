//! The drivers' figures of device time, process by process.

use std::collections::HashMap;

use divvy_arbiter::Nanos;

/// The driver's figure of a process's use of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nanoseconds that the process has kept the device busy in all.
    Total(Nanos),
    /// Its part of the device's time of late, in parts of 10,000, sampled coarsely.
    Rate(u32),
}

impl Use {
    /// Its part of the device's time of late, in parts of 10,000, as far as this figure tells.
    pub fn rate(self) -> u32 {
        match self {
            Self::Total(_) => 0,
            Self::Rate(part) => part,
        }
    }
}

/// The source of the figures of each process on a device.
pub(crate) trait Meter {
    /// The processes of the device with this UUID, as far as the driver tells.
    fn uses(&self, device_uuid: &str) -> Vec<(u32, Use)>;

    /// The clock of the device's multiprocessors now, in MHz, as far as the driver tells.
    fn clock_mhz(&self, _device_uuid: &str) -> Option<u32> {
        None
    }
}

/// The driver's figures of processes, by the slice that each is in.
pub(super) fn by_slice(
    uses: Vec<(u32, Use)>,
    slice_of: &HashMap<u32, String>,
) -> HashMap<&str, Vec<(u32, Use)>> {
    let mut by_slice: HashMap<&str, Vec<(u32, Use)>> = HashMap::new();
    for (pid, used) in uses {
        if let Some(slice) = slice_of.get(&pid) {
            by_slice.entry(slice).or_default().push((pid, used));
        }
    }
    by_slice
}
