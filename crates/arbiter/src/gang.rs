//! Gangs: a tenant's devices are granted together or not at all.
//!
//! Nobody ever holds one device while waiting for another. A gang whose turn has come on one of its devices puts a claim on
//! all of them at once. Claims are numbered; one is *active* when it is the first on each of its devices. An active claim
//! lets the leases there run out, lets others use a device that is free early up to the time at which the last should be,
//! and then takes all. So the earliest claim of all is always active, and every claim's turn comes: no deadlock, no
//! starvation by smaller gangs that overlap in turns.

use crate::arbiter::Arbiter;
use crate::tenant::{Claim, ClaimKey, Place};
use crate::{FOREVER, Nanos};

impl Arbiter {
    /// Puts a claim on all devices of a gang. `rank` 0 goes before 1.
    pub(crate) fn claim(&mut self, i: usize, rank: u8) {
        self.leave_queues(i);
        self.claims += 1;
        let key = ClaimKey {
            rank,
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

    pub(crate) fn withdraw_claim(&mut self, i: usize) {
        let Some(claim) = self.tenant_mut(i).claim.take() else {
            return;
        };
        for seat in 0..self.tenant(i).seats.len() {
            let d = self.device_of(i, seat);
            self.devices[d].claims.remove(&(claim.key, i));
            self.mark(d);
            // Whose turn it is now may be waiting for devices that nothing else would have looked at.
            if let Some(&(_, next)) = self.devices[d].claims.first() {
                for seat in 0..self.tenant(next).seats.len() {
                    let d = self.device_of(next, seat);
                    self.mark(d);
                }
            }
        }
    }

    /// The gang with the active claim to a device, and when its last device should be free: 0 for one that nobody may
    /// keep waiting.
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

    /// Whether nobody holds any of a gang's devices.
    pub(crate) fn all_free(&self, i: usize) -> bool {
        let free = |seat: &crate::tenant::Seat| {
            let device = &self.devices[seat.device];
            device.holder.is_none() && device.draining.is_none()
        };
        self.tenant(i).seats.iter().all(free)
    }
}
