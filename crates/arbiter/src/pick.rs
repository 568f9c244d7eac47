//! Which tenant's turn it is on a device, and which must give way.

use crate::arbiter::Arbiter;
use crate::tenant::Place;
use crate::virtual_time::VirtualTime;
use crate::{FOREVER, Nanos};

impl Arbiter {
    /// Puts a device on the list of those to look at.
    pub(crate) fn mark(&mut self, d: usize) {
        if !self.devices[d].dirty {
            self.devices[d].dirty = true;
            self.dirty.push(d);
        }
    }

    /// Looks at every device on which something changed.
    pub(crate) fn look_around(&mut self) {
        while let Some(d) = self.dirty.pop() {
            self.devices[d].dirty = false;
            match self.devices[d].holder {
                Some(holder) => self.press(d, holder),
                None => self.pick(d),
            }
        }
    }

    /// Gives a free device to the tenant whose turn it is.
    fn pick(&mut self, d: usize) {
        if let Some(&(_, i)) = self.devices[d].urgent.first() {
            self.grant(i, FOREVER);
            return;
        }
        if self.devices[d].draining.is_some() {
            return;
        }
        self.claim_due(d, None);
        let mut horizon = FOREVER;
        if let Some((gang, target)) = self.active_claim(d) {
            if self.all_free(gang) && !self.urgent_on_devices_of(gang) {
                self.grant(gang, FOREVER);
                return;
            }
            if target < self.clock.now().saturating_add(self.settings.least_backfill) {
                return;
            }
            horizon = target;
        }
        if let Some(&(_, i)) = self.devices[d].ready.first() {
            self.grant(i, horizon);
        }
    }

    /// Whether a gang without urgency would take a device that a latency-critical tenant waits for.
    fn urgent_on_devices_of(&self, gang: usize) -> bool {
        let tenant = self.tenant(gang);
        let rank = tenant.claim.map_or(1, |claim| claim.key.rank);
        rank > 0
            && tenant
                .leaseholders
                .iter()
                .any(|leaseholder| !self.devices[leaseholder.device].urgent.is_empty())
    }

    /// Makes a holder give way where another tenant's claim is better now.
    fn press(&mut self, d: usize, holder: usize) {
        let now = self.clock.now();
        let Some(lease) = self.tenant(holder).lease else {
            return;
        };
        if lease.until <= now {
            return;
        }
        let urgent = self.devices[d].urgent.first().map(|&(deadline, _)| deadline);
        let claim = self.active_claim(d);
        // A gang with budget does not wait for the best effort either.
        let overrides = urgent.is_some_and(|deadline| !lease.urgent || deadline < self.deadline_of(holder))
            || (claim.is_some_and(|(_, target)| target == 0) && !lease.urgent);
        if overrides {
            self.stop(holder, now);
            if urgent.is_some() {
                self.hand_over(d, holder);
            }
        } else if lease.until == FOREVER && (claim.is_some() || self.contended(holder)) {
            self.settle(holder);
            let end = if lease.urgent {
                self.allowed(holder, now, true).unwrap_or(now)
            } else {
                lease.since.saturating_add(self.quantum(holder)).max(now)
            };
            self.stop(holder, end);
        }
    }

    /// A latency-critical tenant gets its lease while the last kernels of the tenant before still run. Its first launch
    /// is in the device's queue when they end, not two messages later. It is charged from then on; until then the other
    /// is.
    fn hand_over(&mut self, d: usize, holder: usize) {
        self.settle(holder);
        self.raise_floor(d);
        let device = &mut self.devices[d];
        device.holder = None;
        device.draining = Some(holder);
        self.mark(d);
    }

    fn deadline_of(&self, i: usize) -> Nanos {
        self.tenant(i).server.map_or(FOREVER, |server| server.deadline())
    }

    /// A best-effort tenant that wakes with a clearly better claim does not wait for the end of the holder's quantum.
    pub(crate) fn press_on_waking(&mut self, i: usize) {
        let tenant = self.tenant(i);
        if tenant.place != Place::Queued || tenant.is_gang() {
            return;
        }
        let (leaseholder, pace) = (&tenant.leaseholders[0], self.pace(i, 0));
        let Some(holder) = self.devices[leaseholder.device].holder else {
            return;
        };
        let other = self.tenant(holder);
        let (Some(lease), Some(theirs)) = (
            other.lease,
            other
                .leaseholders
                .iter()
                .find(|theirs| theirs.device == leaseholder.device),
        ) else {
            return;
        };
        if !lease.urgent && leaseholder.time.later(self.settings.lag / 2, pace) < theirs.time {
            let now = self.clock.now();
            let end = lease.since.saturating_add(self.settings.least_hold).max(now);
            if end < lease.until {
                self.stop(holder, end);
            }
        }
    }

    /// Until when a tenant may run if it begins, or goes on, now; `None` when it may not.
    pub(crate) fn allowed(&mut self, i: usize, from: Nanos, urgent: bool) -> Option<Nanos> {
        let now = self.clock.now();
        let quantum = self.quantum(i);
        let depth = self.depth(i);
        let contended = self.contended(i);
        let tenant = self.tenant_mut(i);
        let mut until = if contended {
            from.saturating_add(quantum)
        } else {
            FOREVER
        };
        if let Some(bucket) = &mut tenant.bucket {
            bucket.refill(now, depth);
            let lasts = bucket.lasts();
            until = until
                .min(from.saturating_add(quantum))
                .min(now.saturating_add(lasts));
        }
        let capped = tenant.terms.cap == crate::Cap::Hard;
        if let Some(server) = &mut tenant.server {
            server.replenish(now);
            if (urgent && contended) || capped {
                until = until
                    .min(from.saturating_add(quantum))
                    .min(now.saturating_add(server.budget()));
            }
        }
        (until > from).then_some(until)
    }

    /// Whether another tenant wants one of a tenant's devices.
    pub(crate) fn contended(&self, i: usize) -> bool {
        self.tenant(i).leaseholders.iter().any(|leaseholder| {
            let device = &self.devices[leaseholder.device];
            let other = |&(_, who): &(_, usize)| who != i;
            let first = |list: &std::collections::BTreeSet<(VirtualTime, usize)>| {
                list.iter().take(2).any(|&(_, who)| who != i)
            };
            first(&device.ready)
                || first(&device.gangs)
                || device.urgent.iter().take(2).any(other)
                || device.claims.iter().take(2).any(|&(_, who)| who != i)
        })
    }

    /// Until when a holder whose lease nears its end may keep it; `None` when another tenant's turn comes.
    pub(crate) fn may_continue(&mut self, i: usize) -> Option<Nanos> {
        let lease = self.tenant(i).lease?;
        let (mut horizon, now) = (FOREVER, self.clock.now());
        if let Some(server) = &mut self.tenant_mut(i).server {
            server.replenish(now);
        }
        let left = lease.until.saturating_sub(now);
        let budget = self.tenant(i).server.map_or(0, |server| server.budget());
        let urgent = budget > left;
        for h in 0..self.tenant(i).leaseholders.len() {
            let (d, pace) = (self.device_of(i, h), self.pace(i, h));
            if let Some(&(deadline, _)) = self.devices[d].urgent.first()
                && (!urgent || deadline < self.deadline_of(i))
            {
                return None;
            }
            let reached = self.tenant(i).leaseholders[h].time.later(left, pace);
            if !urgent {
                self.claim_due(d, Some(reached));
            }
            if let Some((_, target)) = self.active_claim(d)
                && !(urgent && target > 0)
            {
                if target < lease.until.saturating_add(self.settings.least_backfill) {
                    return None;
                }
                horizon = horizon.min(target);
            }
            if let Some(&(time, _)) = self.devices[d].ready.first()
                && !urgent
                && time <= reached
            {
                return None;
            }
        }
        if let Some(lease) = &mut self.tenant_mut(i).lease {
            lease.urgent = urgent;
        }
        self.allowed(i, lease.until, urgent)
            .map(|until| until.min(horizon))
    }
}
