//! The auditor of compute: what the driver says that each process used of a device, beside what its slice was charged. A
//! program that has the driver below in its own address space passes the gate; this is how it shows.

use std::collections::HashMap;

use divvy_arbiter::{DeviceId, MILLISECOND, Nanos, TenantId};

use super::Leasing;
use super::seat::Seat;
use super::state::State;
use crate::api::events::EventKind;

/// What a driver says of the use of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nanoseconds that the process has kept the device busy in all.
    Total(Nanos),
    /// Its part of the device's time of late, in parts of 10,000, sampled coarsely.
    Rate(u32),
}

/// Who says what each process used of a device.
pub(crate) trait Meter {
    /// The processes of the device with this UUID, as far as the driver tells.
    fn uses(&self, device_uuid: &str) -> Vec<(u32, Use)>;
}

/// What is forgiven of a stretch of time: what kernels outlast their leases by between two looks, and what drivers round. A
/// rate that the driver samples is forgiven more.
const FORGIVEN_OF_TOTAL: u32 = 500;
const FORGIVEN_OF_RATE: u32 = 2500;

/// A shorter stretch says nothing.
const LEAST: Nanos = 500 * MILLISECOND;

/// What the last look at a slice on a device saw.
#[derive(Clone, Debug)]
struct Seen {
    at: Nanos,
    charged: u128,
    totals: HashMap<u32, Nanos>,
    /// It was beyond what is forgiven then already: one look in two may hit a long kernel's end.
    beyond: bool,
}

/// What earlier looks saw, by tenant and device.
#[derive(Debug, Default)]
pub(super) struct Escapes {
    seen: HashMap<(u64, u32), Seen>,
}

impl Leasing {
    /// Looks at every device that slices lease. `slice_of` says which slice a process is in, by id.
    pub fn audit(&self, meter: &dyn Meter, slice_of: &HashMap<u32, String>) {
        let devices = self.with(|state, _| state.devices.clone());
        for (place, uuid) in devices.iter().enumerate() {
            // Not while anybody waits for the desk: a driver takes its time.
            let by_slice = by_slice(meter.uses(uuid), slice_of);
            self.with(|state, now| {
                state.take_samples(now);
                state.compare(DeviceId(place as u32), &by_slice, now);
            });
        }
    }
}

/// What the driver says of processes, by the slice that each is in.
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

impl State {
    /// Compares what the driver says of the device with what each slice was charged.
    pub(super) fn compare(&mut self, device: DeviceId, uses: &HashMap<&str, Vec<(u32, Use)>>, now: Nanos) {
        let numbers: Vec<u64> = self.seats.keys().copied().collect();
        for number in numbers {
            let Some(seat) = self.seats.get(&number) else {
                continue;
            };
            if !seat.accounts.iter().any(|account| account.device == device) {
                continue;
            }
            let key = (number, device.0);
            let Some(view) = self.arbiter.view(TenantId(number), device).filter(|_| !seat.lone) else {
                self.escapes.seen.remove(&key);
                continue;
            };
            let none = Vec::new();
            let used = uses.get(seat.member.id.as_str()).unwrap_or(&none);
            let before = self.escapes.seen.get(&key);
            if before.is_some_and(|before| now.saturating_sub(before.at) < LEAST) {
                continue;
            }
            let mut now_seen = Seen {
                at: now,
                charged: view.charged,
                totals: totals(used),
                beyond: false,
            };
            if let Some(before) = before {
                let escaped = escaped(before, &now_seen, used);
                now_seen.beyond = escaped > 0;
                let beyond = escaped > 0 && before.beyond;
                self.note_escape(number, device, beyond.then_some(escaped));
            }
            self.escapes.seen.insert(key, now_seen);
        }
        let seats = &self.seats;
        self.escapes
            .seen
            .retain(|(number, _), _| seats.contains_key(number));
    }

    fn note_escape(&mut self, number: u64, device: DeviceId, escaped: Option<Nanos>) {
        let Some(seat) = self.seats.get_mut(&number) else {
            return;
        };
        let news = seat.escape(escaped);
        self.escaped_ns = self.escaped_ns.saturating_add(escaped.unwrap_or(0));
        if let (true, Some(escaped)) = (news, escaped) {
            let message = format!(
                "its processes used {} ms of the device that it was not charged for: they pass the gate",
                escaped / MILLISECOND
            );
            self.note(number, Some(device), EventKind::Escaped, message);
        }
    }
}

impl Seat {
    /// Says whether it is news.
    fn escape(&mut self, escaped: Option<Nanos>) -> bool {
        let before = std::mem::replace(&mut self.escapes, escaped.is_some());
        self.escaped_ns = self.escaped_ns.saturating_add(escaped.unwrap_or(0));
        self.escapes && !before
    }
}

fn totals(uses: &[(u32, Use)]) -> HashMap<u32, Nanos> {
    uses.iter()
        .filter_map(|(pid, used)| match used {
            Use::Total(total) => Some((*pid, *total)),
            Use::Rate(_) => None,
        })
        .collect()
}

/// What was used beyond what was charged and what is forgiven.
fn escaped(before: &Seen, after: &Seen, uses: &[(u32, Use)]) -> Nanos {
    let time = after.at.saturating_sub(before.at);
    let of_time = |parts: u32| (u128::from(time) * u128::from(parts) / 10_000) as Nanos;
    // A process that was not there at the last look began since: all of its time counts.
    let totals = after.totals.iter().map(|(pid, total)| {
        let at_first = before.totals.get(pid).copied().unwrap_or(0);
        total.saturating_sub(at_first)
    });
    let rates = uses.iter().map(|(_, used)| match used {
        Use::Total(_) => 0,
        Use::Rate(parts) => of_time(*parts),
    });
    let sampled = uses.iter().any(|(_, used)| matches!(used, Use::Rate(_)));
    let used = totals.chain(rates).fold(0, Nanos::saturating_add);
    let charged = u64::try_from(after.charged.saturating_sub(before.charged)).unwrap_or(u64::MAX);
    let forgiven = of_time(if sampled {
        FORGIVEN_OF_RATE
    } else {
        FORGIVEN_OF_TOTAL
    });
    used.saturating_sub(charged).saturating_sub(forgiven)
}
