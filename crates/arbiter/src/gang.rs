//! Gangs: a tenant's devices are granted together or not at all.
//!
//! No tenant ever holds one device while waiting for another. A gang whose turn has come on *each* of its devices, by
//! their virtual times, puts a claim on all of them at once. Claims have one order for all devices; a claim is *active*
//! when it is the first on each of its own. An active claim lets the leases there run out. It lets others use a device
//! that is free early up to the time at which the last should be, and then takes all. So the first claim of all is
//! always active, and every claim's turn comes. There is no deadlock, and no starvation by smaller gangs that overlap
//! in turns.

use crate::arbiter::Arbiter;
use crate::tenant::{Claim, ClaimKey, Place};
use crate::virtual_time::VirtualTime;
use crate::{FOREVER, Nanos};

impl Arbiter {
    /// Puts a claim on all devices of a gang. `rank` 0 goes before 1.
    pub(crate) fn claim(&mut self, i: usize, rank: u8) {
        self.leave_queues(i);
        self.claims += 1;
        let time = self.tenant(i).gang_time.max(self.gang_floor);
        self.tenant_mut(i).gang_time = time;
        let key = ClaimKey {
            rank,
            time,
            number: self.claims,
        };
        let tenant = self.tenant_mut(i);
        tenant.place = Place::Claiming;
        tenant.claim = Some(Claim { key, target: None });
        for seat in 0..self.tenant(i).seats.len() {
            let d = self.device_of(i, seat);
            self.devices[d].claims.insert((key, i));
            self.mark(d);
        }
        self.rearm(i);
    }

    /// Has the gangs whose turn has come on a device, and on all of their others, claim them. `holder` is the virtual
    /// time that the device's holder will have reached.
    pub(crate) fn claim_due(&mut self, d: usize, holder: Option<VirtualTime>) {
        let single = self.devices[d].ready.first().map(|&(time, _)| time);
        let turn = match (single, holder) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        };
        let due = |time: VirtualTime| turn.is_none_or(|turn| time <= turn);
        let gangs: Vec<usize> = self.devices[d]
            .gangs
            .iter()
            .take_while(|&&(time, _)| due(time))
            .map(|&(_, i)| i)
            .collect();
        for i in gangs {
            for seat in 0..self.tenant(i).seats.len() {
                self.settle_holder(self.device_of(i, seat));
            }
            let seats = &self.tenant(i).seats;
            if (0..seats.len()).all(|seat| seats[seat].device == d || self.due_at(i, seat)) {
                self.claim(i, 1);
            } else if let Some(turn) = turn {
                self.let_pass(i, d, turn);
            }
        }
    }

    /// Whether no tenant that runs or waits on the device of a gang's seat has a better claim to it.
    fn due_at(&self, i: usize, seat: usize) -> bool {
        let place = &self.tenant(i).seats[seat];
        let device = &self.devices[place.device];
        let better = |time: VirtualTime| time < place.time;
        let waits = device.ready.first().is_some_and(|&(time, _)| better(time));
        let runs = device.holder.is_some_and(|holder| {
            let other = self.tenant(holder);
            let mut seats = other.seats.iter().filter(|seat| seat.device == place.device);
            !other.is_gang() && seats.any(|seat| better(seat.time))
        });
        !waits && !runs
    }

    /// A gang that must wait elsewhere lets the others here pass, and does not claim all that time from them later.
    fn let_pass(&mut self, i: usize, d: usize, turn: VirtualTime) {
        let lag = self.settings.lag.max(self.quantum(i));
        for seat in 0..self.tenant(i).seats.len() {
            if self.device_of(i, seat) == d {
                let least = turn.earlier(lag, self.pace(i, seat));
                let old = self.tenant(i).seats[seat].time;
                if old < least {
                    self.devices[d].gangs.remove(&(old, i));
                    self.devices[d].gangs.insert((least, i));
                    self.tenant_mut(i).seats[seat].time = least;
                }
            }
        }
    }

    pub(crate) fn withdraw_claim(&mut self, i: usize) {
        let Some(claim) = self.tenant_mut(i).claim.take() else {
            return;
        };
        for seat in 0..self.tenant(i).seats.len() {
            let d = self.device_of(i, seat);
            self.devices[d].claims.remove(&(claim.key, i));
            self.mark(d);
            // The tenant whose turn it is now may be waiting for devices that no other event would have looked at.
            if let Some(&(_, next)) = self.devices[d].claims.first() {
                for seat in 0..self.tenant(next).seats.len() {
                    let d = self.device_of(next, seat);
                    self.mark(d);
                }
            }
        }
    }

    /// The gang with the active claim to a device, and when its last device should be free: 0 for a gang that no tenant
    /// may keep waiting.
    pub(crate) fn active_claim(&mut self, d: usize) -> Option<(usize, Nanos)> {
        let &(key, i) = self.devices[d].claims.first()?;
        let first_everywhere =
            |seat: &crate::tenant::Seat| self.devices[seat.device].claims.first() == Some(&(key, i));
        if !self.tenant(i).seats.iter().all(first_everywhere) {
            return None;
        }
        if key.rank == 0 {
            return Some((i, 0));
        }
        let claim = self.tenant(i).claim?;
        let target = match claim.target {
            Some(target) => target,
            None => self.set_target(i),
        };
        Some((i, target))
    }

    fn set_target(&mut self, i: usize) -> Nanos {
        let now = self.clock.now();
        let mut target = now;
        for seat in 0..self.tenant(i).seats.len() {
            let d = self.device_of(i, seat);
            if let Some(lease) = self.devices[d].holder.and_then(|h| self.tenant(h).lease) {
                let end = if lease.until == FOREVER {
                    lease.since.saturating_add(self.settings.quantum)
                } else {
                    lease.until
                };
                target = target.max(end);
            }
            self.mark(d);
        }
        if let Some(claim) = &mut self.tenant_mut(i).claim {
            claim.target = Some(target);
        }
        target
    }

    /// Whether no tenant holds any of a gang's devices.
    pub(crate) fn all_free(&self, i: usize) -> bool {
        let free = |seat: &crate::tenant::Seat| {
            let device = &self.devices[seat.device];
            device.holder.is_none() && device.draining.is_none()
        };
        self.tenant(i).seats.iter().all(free)
    }
}
