//! Which tenant's turn it is on a device, and which must give way.

use crate::arbiter::Arbiter;
use crate::tenant::{Claim, Place};
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
        let urgent = self.devices[d].urgent.first().copied();
        if let Some((deadline, i)) = urgent
            && !self.claimed_before(d, deadline)
        {
            self.grant(i, FOREVER);
            return;
        }
        if self.devices[d].draining.is_some() {
            return;
        }
        self.claim_due(d, None);
        let mut horizon = FOREVER;
        if let Some(claim) = self.active_claim(d) {
            if self.all_free(claim.gang) && !self.urgent_before(claim.gang) {
                self.grant(claim.gang, FOREVER);
                return;
            }
            if claim.deadline.is_some() {
                self.mark_holders(claim.gang);
            }
            if claim.target < self.clock.now().saturating_add(self.settings.least_backfill) {
                return;
            }
            horizon = claim.target;
        }
        if let Some((_, i)) = urgent {
            self.grant(i, horizon);
        } else if let Some((gang, horizon)) = self.backfill_gang(d) {
            self.grant(gang, horizon);
        } else if let Some(&(_, i)) = self.devices[d].ready.first() {
            self.grant(i, horizon);
        }
    }

    /// Whether an urgent gang's claim to a device goes before an urgent tenant with this deadline.
    fn claimed_before(&mut self, d: usize, deadline: Nanos) -> bool {
        self.active_claim(d)
            .and_then(|claim| claim.deadline)
            .is_some_and(|gangs| gangs < deadline)
    }

    /// Whether urgent tenants that go before a gang wait for one of its devices.
    pub(crate) fn urgent_before(&self, gang: usize) -> bool {
        let tenant = self.tenant(gang);
        let urgent = tenant.claim.filter(Claim::is_urgent);
        let before = |deadline: Nanos| urgent.is_none_or(|claim| deadline <= claim.key.deadline);
        tenant.leaseholders.iter().any(|leaseholder| {
            let first = self.devices[leaseholder.device].urgent.first();
            first.is_some_and(|&(deadline, _)| before(deadline))
        })
    }

    /// An urgent gang waits for the last of its devices: their holders are pressed.
    fn mark_holders(&mut self, gang: usize) {
        for h in 0..self.tenant(gang).leaseholders.len() {
            let d = self.device_of(gang, h);
            if self.devices[d].holder.is_some() {
                self.mark(d);
            }
        }
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
        let before = |deadline: Nanos| !lease.urgent || deadline < lease.deadline;
        // A gang with budget does not wait for the best effort either. But it gains nothing from a device before its
        // others are free.
        let for_gang = claim
            .filter(|claim| claim.deadline.is_some_and(before))
            .map(|claim| claim.target.max(now));
        if urgent.is_some_and(before) {
            self.stop(holder, now);
            self.hand_over(d, holder);
        } else if let Some(end) = for_gang {
            if end < lease.until {
                self.settle(holder);
                self.stop(holder, end);
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
        let deadline = match self.tenant(i).server {
            Some(server) if urgent => server.deadline(),
            _ => FOREVER,
        };
        for h in 0..self.tenant(i).leaseholders.len() {
            let (d, pace) = (self.device_of(i, h), self.pace(i, h));
            if let Some(&(other, _)) = self.devices[d].urgent.first()
                && (!urgent || other < deadline)
            {
                return None;
            }
            let reached = self.tenant(i).leaseholders[h].time.later(left, pace);
            if !urgent {
                self.claim_due(d, Some(reached));
            }
            if let Some(claim) = self.active_claim(d)
                && (!urgent || claim.deadline.is_some_and(|other| other < deadline))
            {
                if claim.target < lease.until.saturating_add(self.settings.least_backfill) {
                    return None;
                }
                horizon = horizon.min(claim.target);
            }
            if let Some(&(time, _)) = self.devices[d].ready.first()
                && !urgent
                && time <= reached
            {
                return None;
            }
        }
        if let Some(lease) = &mut self.tenant_mut(i).lease {
            (lease.urgent, lease.deadline) = (urgent, deadline);
        }
        self.allowed(i, lease.until, urgent)
            .map(|until| until.min(horizon))
    }
}
