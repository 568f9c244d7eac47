//! The order in which a node's devices are published. The scheduler takes the first that fits, so this is what decides between the
//! devices of a node; which node it takes has nothing to do with devices.

use divvy_model::DeviceRecord;

/// Which devices come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// By index: the first devices fill up first, and the order never changes.
    #[default]
    Index,
    /// The fullest, so that others stay whole.
    Binpack,
    /// The emptiest, so that slices share as little as may be.
    Spread,
}

/// For so many looks an order stays at least: each change is a new generation of the pool, and with looks of 10 s a node of
/// changing load writes once a minute.
const STAYS: u32 = 6;

/// The order of one node's devices, as it was last.
#[derive(Clone, Debug, Default)]
pub struct Order {
    prefer: Prefer,
    /// UUIDs, as they were published.
    last: Vec<String>,
    /// How many looks ago it changed.
    age: u32,
}

impl Order {
    /// With nothing published yet.
    #[must_use]
    pub fn new(prefer: Prefer) -> Self {
        Self {
            prefer,
            ..Self::default()
        }
    }

    /// The devices in the order to publish.
    #[must_use]
    pub fn of(&mut self, devices: &[DeviceRecord]) -> Vec<DeviceRecord> {
        let mut sorted = devices.to_vec();
        let last = |device: &DeviceRecord| self.last.iter().position(|uuid| *uuid == device.uuid);
        // Equal ones stay as they were, and one that is new comes behind them.
        sorted.sort_by_key(|device| last(device).unwrap_or(usize::MAX));
        let is_held = !self.last.is_empty() && self.age < STAYS;
        match self.prefer {
            Prefer::Index => sorted.sort_by_key(|device| device.index),
            _ if is_held => {}
            Prefer::Binpack => sorted.sort_by_key(|device| std::cmp::Reverse(fullness(device))),
            Prefer::Spread => sorted.sort_by_key(fullness),
        }
        let uuids: Vec<String> = sorted.iter().map(|device| device.uuid.clone()).collect();
        self.age = match uuids == self.last {
            true => self.age.saturating_add(1),
            false => 0,
        };
        self.last = uuids;
        sorted
    }
}

/// How much of a device is promised, in tenths: of its memory or of its time, whichever is more. A smaller difference is no reason
/// to write to the API server.
fn fullness(device: &DeviceRecord) -> u64 {
    let Some(sharing) = &device.sharing else { return 0 };
    let tenths = |part: f64| {
        if part.is_finite() {
            (part.clamp(0.0, 100.0) * 10.0) as u64
        } else {
            0
        }
    };
    let usable = device.memory_usable_bytes().0.max(1);
    let memory = sharing.memory_promised_bytes.0 as f64 / usable as f64;
    tenths(memory).max(tenths(sharing.compute_promised_ratio))
}

#[cfg(test)]
mod tests {
    use divvy_model::{Bytes, Sharing};

    use super::*;
    use crate::devices::tests::device;

    /// Devices of which these tenths are promised, of memory and of time.
    fn devices(promised: &[(u64, f64)]) -> Vec<DeviceRecord> {
        let of = |(index, (memory, compute)): (u32, &(u64, f64))| {
            let mut device = device(index);
            device.sharing = Some(Sharing {
                memory_promised_bytes: Bytes(device.memory_usable_bytes().0 / 10 * memory + 1),
                compute_promised_ratio: *compute,
                ..Sharing::default()
            });
            device
        };
        (0..).zip(promised).map(of).collect()
    }

    fn indices(order: &mut Order, promised: &[(u64, f64)]) -> Vec<u32> {
        let devices = order.of(&devices(promised));
        devices.iter().map(|device| device.index).collect()
    }

    #[test]
    fn preferences_put_devices_in_order() {
        let promised = [(2, 0.0), (0, 0.9), (5, 0.5), (0, 0.0)];
        for (prefer, first) in [
            (Prefer::Index, [0, 1, 2, 3]),
            (Prefer::Binpack, [1, 2, 0, 3]),
            (Prefer::Spread, [3, 0, 2, 1]),
        ] {
            assert_eq!(indices(&mut Order::new(prefer), &promised), first, "{prefer:?}");
        }
        for strange in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(
                indices(&mut Order::new(Prefer::Spread), &[(0, strange), (1, 0.0)]),
                [0, 1]
            );
        }
    }

    /// Ten thousand nodes write to one API server.
    #[test]
    fn an_order_stays_for_a_minute_and_for_small_differences() {
        let mut order = Order::new(Prefer::Spread);
        assert_eq!(indices(&mut order, &[(0, 0.0), (0, 0.0)]), [0, 1]);
        let mut looks = 0;
        while indices(&mut order, &[(3, 0.0), (0, 0.0)]) == [0, 1] {
            looks += 1;
        }
        assert_eq!(looks, STAYS);
        for _ in 0..2 * STAYS {
            assert_eq!(indices(&mut order, &[(3, 0.0), (0, 0.0)]), [1, 0]);
        }
        // Less than a tenth apart.
        assert_eq!(indices(&mut order, &[(3, 0.31), (3, 0.39)]), [1, 0]);
        // A device that comes is published at once, wherever it stands.
        let mut order = Order::new(Prefer::Binpack);
        assert_eq!(indices(&mut order, &[(1, 0.0), (2, 0.0)]), [1, 0]);
        assert_eq!(indices(&mut order, &[(1, 0.0), (2, 0.0), (9, 0.0)]), [1, 0, 2]);
        assert_eq!(indices(&mut order, &[(1, 0.0)]), [0]);
    }
}
