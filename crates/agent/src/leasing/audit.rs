//! The auditor of compute compares the driver's figure of each process's device time with its slice's charge. It finds
//! programs that have the driver below in their own address space and pass the gate.

use std::collections::HashMap;

use divvy_arbiter::{DeviceId, MILLISECOND, Nanos, TenantId};

use super::Leasing;
use super::charges::entitled;
use super::leaseholder::Leaseholder;
use super::meter::{Meter, Use, by_slice};
use super::state::State;
use super::uncharged::{IN_FLIGHT, LEAST, Seen, totals, uncharged};
use crate::api::events::EventKind;

/// Two looks that differ by less than this part saw one clock.
const SAME_CLOCK: u32 = 8;
/// A device that is used for less than this part of 10,000 may have lowered its clock.
const LOADED: u32 = 2_500;

impl Leasing {
    /// Looks at every device that slices lease. `slice_of` says which slice a process is in, by id.
    pub fn audit(&self, meter: &dyn Meter, slice_of: &HashMap<u32, String>) {
        let devices = self.with(|state, _| state.devices.clone());
        for (place, uuid) in devices.iter().enumerate() {
            // The driver is asked while no thread waits for the lock, because a driver takes its time.
            let by_slice = by_slice(meter.uses(uuid), slice_of);
            self.with(|state, now| {
                state.take_samples(now);
                state.compare(DeviceId(place as u32), &by_slice, now);
            });
        }
    }

    /// Asks the driver for the use of every slice's processes on its devices. A driver that names no process is
    /// ignored.
    pub fn meter(&self, meter: &dyn Meter, slice_of: &HashMap<u32, String>) {
        let devices = self.with(|state, _| state.devices.clone());
        for (place, uuid) in devices.iter().enumerate() {
            // The driver is asked while no thread waits for the lock, because a driver takes its time.
            let (uses, clock) = (meter.uses(uuid), meter.clock_mhz(uuid));
            let load = uses
                .iter()
                .fold(0_u32, |sum, (_, used)| sum.saturating_add(used.rate()));
            let by_slice = by_slice(uses, slice_of);
            self.with(|state, now| {
                state.note_use(place, &by_slice, now);
                state.note_clock(place, clock.filter(|_| load >= LOADED));
            });
        }
    }
}

impl State {
    /// Compares the driver's figures of the device with each slice's charge.
    pub(super) fn compare(&mut self, device: DeviceId, uses: &HashMap<&str, Vec<(u32, Use)>>, now: Nanos) {
        let numbers: Vec<u64> = self.leaseholders.keys().copied().collect();
        for number in numbers {
            let Some(leaseholder) = self.leaseholders.get(&number) else {
                continue;
            };
            if !leaseholder
                .accounts
                .iter()
                .any(|account| account.device == device)
            {
                continue;
            }
            let key = (number, device.0);
            let Some(view) = self
                .arbiter
                .view(TenantId(number), device)
                .filter(|_| !leaseholder.lone)
            else {
                self.audited.seen.remove(&key);
                self.audited.in_flight.insert(key, now.saturating_add(IN_FLIGHT));
                continue;
            };
            let none = Vec::new();
            let used = uses.get(leaseholder.member.id.as_str()).unwrap_or(&none);
            let before = self.audited.seen.get(&key);
            if before.is_some_and(|before| now.saturating_sub(before.at) < LEAST) {
                continue;
            }
            let mut now_seen = Seen {
                at: now,
                // Its word that work of an expired lease is in flight is believed: nothing is done to it here.
                charged: entitled(&view).saturating_add(view.outlasted),
                totals: totals(used),
                beyond: false,
            };
            if let Some(before) = before {
                let mut uncharged = uncharged(before, &now_seen, used);
                // What was launched while its gate was open is charged to no lease.
                match self.audited.in_flight.get(&key) {
                    Some(until) if *until > now && uncharged > 0 => uncharged = 0,
                    Some(_) => drop(self.audited.in_flight.remove(&key)),
                    None => {}
                }
                now_seen.beyond = uncharged > 0;
                let beyond = uncharged > 0 && before.beyond;
                self.note_uncharged(number, device, beyond.then_some(uncharged));
            }
            self.audited.seen.insert(key, now_seen);
        }
        let leaseholders = &self.leaseholders;
        self.audited
            .seen
            .retain(|(number, _), _| leaseholders.contains_key(number));
        self.audited
            .in_flight
            .retain(|(number, _), _| leaseholders.contains_key(number));
    }

    fn note_uncharged(&mut self, number: u64, device: DeviceId, uncharged: Option<Nanos>) {
        let Some(leaseholder) = self.leaseholders.get_mut(&number) else {
            return;
        };
        let news = leaseholder.note_uncharged(uncharged);
        self.uncharged_ns = self.uncharged_ns.saturating_add(uncharged.unwrap_or(0));
        if let (true, Some(uncharged)) = (news, uncharged) {
            let message = format!(
                "its processes used {} ms of the device that it was not charged for: they pass the gate",
                uncharged / MILLISECOND
            );
            self.note(number, Some(device), EventKind::Uncharged, message);
        }
    }
}

impl Leaseholder {
    /// Returns whether that is new.
    fn note_uncharged(&mut self, uncharged: Option<Nanos>) -> bool {
        let before = std::mem::replace(&mut self.is_uncharged, uncharged.is_some());
        self.uncharged_ns = self.uncharged_ns.saturating_add(uncharged.unwrap_or(0));
        self.is_uncharged && !before
    }
}

impl State {
    /// Tells the slices of a device the clock that it has under load, in MHz. An idle device lowers its clock, and one that
    /// has just begun to work has not raised it: the clock counts once two looks in a row agree.
    pub(super) fn note_clock(&mut self, device: usize, mhz: Option<u32>) {
        let before = match mhz {
            Some(mhz) => self.clocks.insert(device, mhz),
            None => self.clocks.remove(&device),
        };
        let Some((mhz, before)) = mhz.zip(before) else {
            return;
        };
        if mhz.abs_diff(before) > before / SAME_CLOCK {
            return;
        }
        let leaseholders = self.leaseholders.values();
        for account in leaseholders.flat_map(|leaseholder| &leaseholder.accounts) {
            if account.device.0 as usize == device {
                account.grant().set_clock_mhz(mhz);
            }
        }
    }

    fn note_use(&mut self, device: usize, uses: &HashMap<&str, Vec<(u32, Use)>>, now: Nanos) {
        for leaseholder in self.leaseholders.values_mut() {
            let used = uses.get(leaseholder.member.id.as_str());
            for account in &mut leaseholder.accounts {
                let known = used.is_some() || account.metered.looked_at.is_some();
                if account.device.0 as usize == device && (known || !uses.is_empty()) {
                    account.metered.take(used.map_or(&[], Vec::as_slice), now);
                }
            }
        }
    }
}
