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
        for h in 0..self.tenant(i).leaseholders.len() {
            let d = self.device_of(i, h);
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
            for h in 0..self.tenant(i).leaseholders.len() {
                self.settle_holder(self.device_of(i, h));
            }
            let leaseholders = &self.tenant(i).leaseholders;
            if (0..leaseholders.len()).all(|h| leaseholders[h].device == d || self.due_at(i, h)) {
                self.claim(i, 1);
            } else if let Some(turn) = turn {
                self.let_pass(i, d, turn);
            }
        }
    }

    /// Whether no tenant that runs or waits on the device of a gang's leaseholder has a better claim to it.
    fn due_at(&self, i: usize, h: usize) -> bool {
        let leaseholder = &self.tenant(i).leaseholders[h];
        let device = &self.devices[leaseholder.device];
        let better = |time: VirtualTime| time < leaseholder.time;
        let waits = device.ready.first().is_some_and(|&(time, _)| better(time));
        let runs = device.holder.is_some_and(|holder| {
            let other = self.tenant(holder);
            let mut here = other
                .leaseholders
                .iter()
                .filter(|theirs| theirs.device == leaseholder.device);
            !other.is_gang() && here.any(|theirs| better(theirs.time))
        });
        !waits && !runs
    }

    /// A gang that must wait elsewhere lets the others here pass, and does not claim all that time from them later.
    fn let_pass(&mut self, i: usize, d: usize, turn: VirtualTime) {
        let lag = self.settings.lag.max(self.quantum(i));
        for h in 0..self.tenant(i).leaseholders.len() {
            if self.device_of(i, h) == d {
                let least = turn.earlier(lag, self.pace(i, h));
                let old = self.tenant(i).leaseholders[h].time;
                if old < least {
                    self.devices[d].gangs.remove(&(old, i));
                    self.devices[d].gangs.insert((least, i));
                    self.tenant_mut(i).leaseholders[h].time = least;
                }
            }
        }
    }

    pub(crate) fn withdraw_claim(&mut self, i: usize) {
        let Some(claim) = self.tenant_mut(i).claim.take() else {
            return;
        };
        for h in 0..self.tenant(i).leaseholders.len() {
            let d = self.device_of(i, h);
            self.devices[d].claims.remove(&(claim.key, i));
            self.mark(d);
            // The tenant whose turn it is now may be waiting for devices that no other event would have looked at.
            if let Some(&(_, next)) = self.devices[d].claims.first() {
                for h in 0..self.tenant(next).leaseholders.len() {
                    let d = self.device_of(next, h);
                    self.mark(d);
                }
            }
        }
    }

    /// The gang with the active claim to a device, and when its last device should be free: 0 for a gang that no tenant
    /// may keep waiting.
    pub(crate) fn active_claim(&mut self, d: usize) -> Option<(usize, Nanos)> {
        let &(key, i) = self.devices[d].claims.first()?;
        let first_everywhere = |leaseholder: &crate::tenant::Leaseholder| {
            self.devices[leaseholder.device].claims.first() == Some(&(key, i))
        };
        if !self.tenant(i).leaseholders.iter().all(first_everywhere) {
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
        for h in 0..self.tenant(i).leaseholders.len() {
            let d = self.device_of(i, h);
            if let Some(lease) = self.devices[d]
                .holder
                .and_then(|holder| self.tenant(holder).lease)
            {
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
        let free = |leaseholder: &crate::tenant::Leaseholder| {
            let device = &self.devices[leaseholder.device];
            device.holder.is_none() && device.draining.is_none()
        };
        self.tenant(i).leaseholders.iter().all(free)
    }
}
