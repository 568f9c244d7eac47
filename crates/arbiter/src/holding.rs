//! The life of a lease: granted, renewed, shortened, released, overdue, expired.

use crate::arbiter::Arbiter;
use crate::decision::Decision;
use crate::tenant::{Claim, Held, Lease, Leaseholder, Place, Tenant};
use crate::{DeviceId, FOREVER, Nanos};

/// An expected launch is waited for at most so many times as long because others are stuck on the device.
const SLOWEST: u64 = 4;
/// Of a lease that expired, at most so many times the time that it was waited for counts as launches. So a launch of a
/// second is waited for from the third on, even if its gate cannot measure it. And of the work that a tenant says it has in flight, at
/// most so many times as long as it was seen to outlast a lease: else each new tenant would have the longest lease by its word.
const BELIEVED: u64 = 8;
/// A whole, in which tenants that are stuck are counted.
pub(crate) const WHOLE: u64 = 10_000;

impl Arbiter {
    /// Gives a tenant all its devices, which are free, until `horizon` at most.
    pub(crate) fn grant(&mut self, i: usize, horizon: Nanos) {
        let now = self.clock.now();
        let claim = self.tenant(i).claim.filter(Claim::is_urgent);
        let deadline = match self.tenant(i).place {
            Place::Urgent => Some(self.tenant(i).urgent_by),
            Place::Claiming => claim.map(|claim| claim.key.deadline),
            _ => None,
        };
        let urgent = deadline.is_some();
        if let Some(claim) = self.tenant(i).claim {
            self.gang_floor = self.gang_floor.max(claim.key.time);
        }
        self.leave_queues(i);
        let Some(until) = self.allowed(i, now, urgent) else {
            // It waited so long that its terms changed under it: its tokens or budget no longer allow it to run.
            self.tenant_mut(i).place = Place::Away;
            self.enter(i);
            // Its devices are still free, and others may wait for them.
            for h in 0..self.tenant(i).leaseholders.len() {
                let d = self.device_of(i, h);
                self.mark(d);
            }
            return;
        };
        self.epoch += 1;
        let epoch = self.epoch;
        let tenant = self.tenant_mut(i);
        tenant.place = Place::Holding;
        tenant.lease = Some(Lease {
            epoch,
            since: now,
            until: until.min(horizon),
            urgent,
            deadline: deadline.unwrap_or(FOREVER),
            ending: false,
            told: false,
        });
        for leaseholder in &mut tenant.leaseholders {
            leaseholder.held = Some(Held { charged_to: now });
        }
        self.leases += 1;
        for h in 0..self.tenant(i).leaseholders.len() {
            let d = self.device_of(i, h);
            self.devices[d].holder = Some(i);
            // A gang that waits for this device waits for this lease now.
            if let Some(&(_, gang)) = self.devices[d].claims.first()
                && let Some(claim) = &mut self.tenant_mut(gang).claim
            {
                claim.target = None;
            }
            self.mark_urgent_claim(d);
        }
        self.tell(i);
        self.rearm(i);
    }

    /// Tells a holder its lease as it is now, on every device it still has.
    fn tell(&mut self, i: usize) {
        let tenant = self.tenant(i);
        let Some(lease) = tenant.lease else { return };
        let until = self.clock.outside(lease.until);
        let told: Vec<Decision> = (0..tenant.leaseholders.len())
            .filter(|&h| tenant.leaseholders[h].held.is_some())
            .map(|h| Decision::Grant {
                tenant: tenant.id,
                device: DeviceId(tenant.leaseholders[h].device as u32),
                epoch: lease.epoch,
                until,
                in_flight: self.bound(i, h),
            })
            .collect();
        self.decisions.extend(told);
    }

    /// After a jump of the clock the ends that tenants were told are wrong.
    pub(crate) fn tell_all_again(&mut self) {
        for d in 0..self.devices.len() {
            if let Some(holder) = self.devices[d].holder
                && self.device_of(holder, 0) == d
            {
                self.tell(holder);
            }
        }
    }

    /// The members of a device changed, and with them perhaps the bound on work in flight.
    pub(crate) fn rebound(&mut self, d: usize) {
        if let Some(holder) = self.devices[d].holder
            && self
                .tenant(holder)
                .lease
                .is_some_and(|lease| lease.until > self.clock.now())
        {
            self.tell(holder);
        }
    }

    /// Work that a tenant may have in flight on one device.
    fn bound(&self, i: usize, h: usize) -> Nanos {
        let tenant = self.tenant(i);
        let leaseholder = &tenant.leaseholders[h];
        let device = &self.devices[leaseholder.device];
        let settings = &self.settings;
        if device.members == 1 && tenant.bucket.is_none() {
            FOREVER
        } else if device.latency > 0 && !tenant.terms.is_latency() {
            // Long kernels one at a time, short ones as many as keep the device fed.
            let typical = if leaseholder.kernel == 0 {
                settings.in_flight_beside_latency
            } else {
                leaseholder.kernel / 2
            };
            typical
                .max(settings.in_flight_floor)
                .min(settings.in_flight_beside_latency)
        } else if let (Some(server), 1) = (tenant.server, device.latency) {
            // No other tenant may take the device before the budget is used up. With a whole request in flight, the
            // device does not wait for a gate in the middle of it.
            let most = settings.in_flight_of_latency.max(settings.in_flight);
            server.budget().clamp(settings.in_flight, most)
        } else {
            settings.in_flight
        }
    }

    /// Ends a lease at `at`, which is no later than the present end.
    pub(crate) fn stop(&mut self, i: usize, at: Nanos) {
        let now = self.clock.now();
        let Some(lease) = &mut self.tenant_mut(i).lease else {
            return;
        };
        lease.until = at;
        // Before its end it may still turn out that no other tenant's claim is better.
        lease.ending = at <= now;
        let epoch = lease.epoch;
        if at > now {
            self.tell(i);
        } else {
            let tenant = self.tenant(i);
            let revoked: Vec<Decision> = tenant
                .leaseholders
                .iter()
                .filter(|leaseholder| leaseholder.held.is_some())
                .map(|leaseholder| Decision::Revoke {
                    tenant: tenant.id,
                    device: DeviceId(leaseholder.device as u32),
                    epoch,
                })
                .collect();
            self.decisions.extend(revoked);
        }
        self.rearm(i);
    }

    /// A resized holder's lease ends no later than its new terms allow.
    pub(crate) fn shorten_to_terms(&mut self, i: usize) {
        let now = self.clock.now();
        let Some(lease) = self.tenant(i).lease else { return };
        if lease.until <= now {
            return;
        }
        let until = self.allowed(i, now, lease.urgent).unwrap_or(now);
        if until < lease.until {
            self.stop(i, until);
        } else {
            self.rearm(i);
        }
    }

    /// Nothing of a lease is in flight on this device any more.
    pub(crate) fn release(&mut self, i: usize, h: usize) {
        // What its other devices were charged until now was while it held all of them.
        self.settle(i);
        let now = self.clock.now();
        let lease = self.tenant(i).lease;
        let d = self.device_of(i, h);
        if self.tenant_mut(i).leaseholders[h].held.take().is_none() {
            return;
        }
        let stuck = self.tenant(i).place == Place::Stuck;
        self.devices[d].stuck -= u32::from(stuck);
        let overrun = now.saturating_sub(lease.map_or(now, |lease| lease.until));
        // The lease of a program that was stopped for long is no sign of long launches.
        let longest = match stuck {
            true => self.expiry_of(i).saturating_mul(BELIEVED),
            false => FOREVER,
        };
        let overrun = overrun.min(longest).min(self.settings.longest_launch);
        let leaseholder = &mut self.tenant_mut(i).leaseholders[h];
        leaseholder.overrun.note(overrun, now);
        leaseholder.in_flight = 0;
        if self.devices[d].holder == Some(i) {
            self.devices[d].overrun.note(overrun, now);
            self.raise_floor(d);
            self.devices[d].holder = None;
        }
        self.drained(d, i, overrun);
        self.mark(d);
        if self
            .tenant(i)
            .leaseholders
            .iter()
            .all(|leaseholder| leaseholder.held.is_none())
        {
            self.leases -= 1;
            let tenant = self.tenant_mut(i);
            tenant.lease = None;
            tenant.waits_since = now;
            self.enter(i);
        } else if let Some(lease) = &mut self.tenant_mut(i).lease {
            // A gang that let go of one device does not renew the others.
            lease.ending = true;
            self.rearm(i);
        }
    }

    /// If a device was finishing this tenant's kernels, it no longer is.
    fn drained(&mut self, d: usize, i: usize, overrun: Nanos) {
        if self.devices[d].draining != Some(i) {
            return;
        }
        // The next one's time begins.
        self.settle_holder(d);
        self.devices[d].overrun.note(overrun, self.clock.now());
        self.devices[d].draining = None;
        self.mark(d);
    }

    /// Work that a tenant says it has in flight: its lease is waited for accordingly.
    pub(crate) fn expect(&mut self, i: usize, h: usize, in_flight: Nanos) {
        self.tenant_mut(i).leaseholders[h].in_flight = in_flight.min(self.settings.longest_launch);
        self.rearm(i);
    }

    /// How long after its end a lease of this tenant's is waited for: twice the work that it has in flight, by its
    /// own word or by what it did of late, and some more. The tenant pays for that time, or its owner's next tenant does, so a lie wins
    /// nothing.
    ///
    /// Tenants that are stuck on the device make its kernels slower by as much. If its lease expired for that, more
    /// would be stuck, and at last all of them.
    fn expiry_of(&self, i: usize) -> Nanos {
        let (now, settings) = (self.clock.now(), &self.settings);
        let leaseholders = &self.tenant(i).leaseholders;
        let stuck = (0..leaseholders.len())
            .map(|h| self.stuck_beside(i, h, false))
            .max();
        let slower = stuck.unwrap_or(0).saturating_add(WHOLE);
        let slowed = |time: Nanos, slower: u64| {
            let slowed = u128::from(time) * u128::from(slower) / u128::from(WHOLE);
            Nanos::try_from(slowed).unwrap_or(Nanos::MAX)
        };
        let unexpected = slowed(settings.expiry, slower);
        let unexpected = unexpected.min(settings.longest_expiry.max(settings.expiry));
        let expected = leaseholders.iter().map(|leaseholder| {
            let seen = leaseholder.overrun.at(now);
            let believed = seen.max(settings.expiry).saturating_mul(BELIEVED);
            leaseholder.in_flight.min(believed).max(seen)
        });
        let expected = expected.max().unwrap_or(0);
        let longest = 2 * settings.longest_launch + settings.expiry / 2;
        let waited = 2 * expected + settings.expiry / 2;
        unexpected.max(slowed(waited, slower.min(SLOWEST * WHOLE)).min(longest))
    }

    /// How many others are stuck on one of a tenant's devices, in parts of 10 000. One of the same owner counts as its part of the device
    /// to the tenant's, and at most as one: a user with small slices that are stuck on purpose gains no time for a large one. So does
    /// each, if `all_by_part`.
    pub(crate) fn stuck_beside(&self, i: usize, h: usize, all_by_part: bool) -> u64 {
        let d = self.device_of(i, h);
        if self.devices[d].stuck == 0 {
            return 0;
        }
        let parts = u64::from(self.parts(i, h)).max(1);
        let counts = |other: usize, tenant: &Tenant| {
            let is_here = |one: &Leaseholder| one.device == d && one.held.is_some();
            let place = tenant.leaseholders.iter().position(is_here)?;
            let is_other = other != i && tenant.place == Place::Stuck;
            let of_own = u64::from(self.parts(other, place)) * WHOLE / parts;
            let by_part = all_by_part || self.is_of_one(i, other);
            is_other.then_some(if by_part { of_own.min(WHOLE) } else { WHOLE })
        };
        let tenants = self.tenants.iter().enumerate();
        tenants
            .filter_map(|(other, tenant)| counts(other, tenant.as_ref()?))
            .sum()
    }

    /// How long after its end a lease of this tenant's is reported.
    fn overdue_of(&self, i: usize) -> Nanos {
        self.expiry_of(i) / 4 * 3
    }

    /// The device no longer waits for a lease that is long over.
    fn expire(&mut self, i: usize) {
        let now = self.clock.now();
        let until = self.tenant(i).lease.map_or(now, |lease| lease.until);
        let waited = now.saturating_sub(until);
        let tenant = self.tenant_mut(i);
        tenant.place = Place::Stuck;
        let (id, epoch) = (tenant.id, tenant.lease.map_or(0, |lease| lease.epoch));
        for h in 0..self.tenant(i).leaseholders.len() {
            let d = self.device_of(i, h);
            if self.tenant(i).leaseholders[h].held.is_some() {
                if self.devices[d].holder == Some(i) {
                    self.devices[d].holder = None;
                    // The others' hard caps make up for what they waited, as for any long launch.
                    self.devices[d].overrun.note(waited, now);
                }
                self.drained(d, i, self.expiry_of(i));
                self.begin_sharing(d);
                self.devices[d].stuck += 1;
                self.decisions.push(Decision::Expire {
                    tenant: id,
                    device: DeviceId(d as u32),
                    epoch,
                });
                self.mark(d);
            }
        }
    }

    /// A tenant's alarm.
    pub(crate) fn tick(&mut self, i: usize) {
        self.settle(i);
        match self.tenant(i).place {
            Place::Holding => self.tick_holding(i),
            Place::Throttled => self.enter(i),
            Place::Queued => {
                // A latency-critical tenant's next period has begun.
                self.leave_queues(i);
                self.enter(i);
            }
            Place::Claiming => self.tick_claiming(i),
            Place::Away | Place::Urgent | Place::Stuck => {}
        }
        self.rearm(i);
    }

    fn tick_holding(&mut self, i: usize) {
        let now = self.clock.now();
        let Some(lease) = self.tenant(i).lease else { return };
        if lease.until == FOREVER {
            return;
        }
        if now < lease.until {
            // Ever smaller extensions would never end.
            let worth = lease.until.saturating_add(self.settings.renew_ahead / 20);
            match self.may_continue(i) {
                Some(until) if until >= worth => {
                    if let Some(lease) = &mut self.tenant_mut(i).lease {
                        lease.until = until;
                    }
                    self.tell(i);
                    // Others may use the rest of an urgent gang's devices for as long.
                    for h in 0..self.tenant(i).leaseholders.len() {
                        let d = self.device_of(i, h);
                        self.mark_urgent_claim(d);
                    }
                }
                _ => {
                    if let Some(lease) = &mut self.tenant_mut(i).lease {
                        lease.ending = true;
                    }
                }
            }
        } else if now - lease.until >= self.expiry_of(i) {
            self.expire(i);
        } else if now - lease.until >= self.overdue_of(i) && !lease.told {
            let tenant = self.tenant(i);
            let ended = self.clock.outside(lease.until);
            let overdue: Vec<Decision> = tenant
                .leaseholders
                .iter()
                .filter(|leaseholder| leaseholder.held.is_some())
                .map(|leaseholder| Decision::Overdue {
                    tenant: tenant.id,
                    device: DeviceId(leaseholder.device as u32),
                    epoch: lease.epoch,
                    ended,
                })
                .collect();
            self.decisions.extend(overdue);
            if let Some(lease) = &mut self.tenant_mut(i).lease {
                lease.told = true;
            }
        }
    }

    /// Sets a tenant's alarm by where it stands.
    pub(crate) fn rearm(&mut self, i: usize) {
        let now = self.clock.now();
        let settings = &self.settings;
        let tenant = self.tenant(i);
        let next = match (tenant.place, tenant.lease) {
            (Place::Holding, Some(lease)) => {
                let next = if lease.until == FOREVER {
                    FOREVER
                } else if now < lease.until && !lease.ending {
                    // Never in the past: a short lease is looked at half-way.
                    let left = lease.until - now;
                    lease.until - settings.renew_ahead.min(left / 2)
                } else if now < lease.until.saturating_add(self.overdue_of(i)) && !lease.told {
                    lease.until.saturating_add(self.overdue_of(i))
                } else {
                    lease.until.saturating_add(self.expiry_of(i))
                };
                Some(next.min(now.saturating_add(settings.heartbeat)).max(now + 1))
            }
            (Place::Stuck, _) => Some(now.saturating_add(settings.heartbeat)),
            (Place::Throttled, _) => {
                let tokens = tenant.bucket.map(|bucket| bucket.holds_at(self.least_tokens(i)));
                let budget = tenant.server.map(|server| server.deadline());
                tokens.or(budget).map(|at| at.max(now + 1))
            }
            (Place::Queued, _) => tenant.server.map(|server| server.deadline().max(now + 1)),
            (Place::Claiming, _) => {
                let waits = tenant.claim.is_some_and(|claim| !claim.is_urgent());
                let budget = tenant.server.filter(|_| waits).map(|server| server.deadline());
                let next = [budget, self.urgent_at(i)].into_iter().flatten().min();
                next.map(|at| at.max(now + 1))
            }
            _ => None,
        };
        let old = std::mem::replace(&mut self.tenant_mut(i).timer, next);
        self.timers.set(i, old, next);
    }
}
