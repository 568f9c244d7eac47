//! Where a tenant stands: coming, waiting, being throttled, going.

use crate::arbiter::Arbiter;
use crate::tenant::Place;
use crate::terms::Cap;
use crate::{FOREVER, Nanos};

impl Arbiter {
    /// A tenant has something to launch.
    pub(crate) fn ready(&mut self, i: usize) {
        self.tenant_mut(i).wants = true;
        if self.tenant(i).place != Place::Away {
            return;
        }
        let now = self.clock.now();
        self.tenant_mut(i).waits_since = now;
        if let Some(server) = &mut self.tenant_mut(i).server {
            server.wake(now);
        }
        self.enter(i);
        self.press_on_waking(i);
    }

    /// A tenant has nothing to launch and nothing in flight.
    pub(crate) fn idle(&mut self, i: usize) {
        self.tenant_mut(i).wants = false;
        self.leave_queues(i);
        for h in 0..self.tenant(i).leaseholders.len() {
            self.give_back_shared(i, h);
            self.release(i, h);
            self.tenant_mut(i).leaseholders[h].is_squared = false;
        }
        if self.tenant(i).place != Place::Away {
            self.depart(i, Place::Away);
        }
    }

    /// Puts a tenant that wants to run, holds nothing and waits nowhere where it belongs.
    pub(crate) fn enter(&mut self, i: usize) {
        let now = self.clock.now();
        if !self.tenant(i).wants {
            self.depart(i, Place::Away);
            return;
        }
        let depth = self.depth(i);
        let enough = self.least_tokens(i);
        let tenant = self.tenant_mut(i);
        if let Some(server) = &mut tenant.server {
            server.replenish(now);
            if server.budget() > 0 {
                self.enter_urgent(i);
                return;
            }
            if tenant.terms.cap == Cap::Hard {
                self.depart(i, Place::Throttled);
                return;
            }
        }
        if let Some(bucket) = &mut tenant.bucket {
            bucket.refill(now, depth);
            if !bucket.holds(enough) {
                self.depart(i, Place::Throttled);
                return;
            }
        }
        self.enter_queue(i);
    }

    fn enter_urgent(&mut self, i: usize) {
        let deadline = self.tenant(i).server.map_or(FOREVER, |server| server.deadline());
        if self.tenant(i).is_gang() {
            self.claim(i, Some(deadline));
            return;
        }
        let tenant = self.tenant_mut(i);
        tenant.place = Place::Urgent;
        tenant.urgent_by = deadline;
        let d = tenant.leaseholders[0].device;
        self.devices[d].urgent.insert((deadline, i));
        self.mark(d);
        self.rearm(i);
    }

    fn enter_queue(&mut self, i: usize) {
        let now = self.clock.now();
        let was_away = matches!(self.tenant(i).place, Place::Away | Place::Throttled);
        for h in 0..self.tenant(i).leaseholders.len() {
            let d = self.device_of(i, h);
            if was_away {
                self.settle_holder(d);
                self.clamp(i, h);
            }
            let time = self.tenant(i).leaseholders[h].time;
            let gang = self.tenant(i).is_gang();
            self.devices[d].waiting(gang).insert((time, i));
            self.mark(d);
        }
        let tenant = self.tenant_mut(i);
        tenant.place = Place::Queued;
        tenant.away_since = now;
        self.rearm(i);
    }

    /// A tenant that slept comes back with a claim of at most `lag` on what others ran meanwhile. What it was owed
    /// before shrinks by no more than the time it slept: a nap of a millisecond does not cancel a debt of seconds that
    /// others have.
    fn clamp(&mut self, i: usize, h: usize) {
        let pace = self.pace(i, h);
        let floor = self.devices[self.device_of(i, h)].floor;
        let (lag, now) = (self.settings.lag, self.clock.now());
        let tenant = self.tenant_mut(i);
        let slept = now.saturating_sub(tenant.away_since);
        let leaseholder = &mut tenant.leaseholders[h];
        let claim = lag.max(leaseholder.owed.saturating_sub(slept));
        leaseholder.time = leaseholder.time.max(floor.earlier(claim, pace));
    }

    /// Takes a tenant off every waiting list.
    pub(crate) fn leave_queues(&mut self, i: usize) {
        match self.tenant(i).place {
            Place::Queued => {
                let gang = self.tenant(i).is_gang();
                for h in 0..self.tenant(i).leaseholders.len() {
                    let leaseholder = &self.tenant(i).leaseholders[h];
                    let (d, entry) = (leaseholder.device, (leaseholder.time, i));
                    self.devices[d].waiting(gang).remove(&entry);
                }
            }
            Place::Urgent => {
                let entry = (self.tenant(i).urgent_by, i);
                let d = self.device_of(i, 0);
                self.devices[d].urgent.remove(&entry);
            }
            Place::Claiming => self.withdraw_claim(i),
            Place::Away | Place::Throttled | Place::Holding | Place::Stuck => {}
        }
    }

    fn depart(&mut self, i: usize, place: Place) {
        let now = self.clock.now();
        let tenant = self.tenant_mut(i);
        if !matches!(tenant.place, Place::Away | Place::Throttled) {
            tenant.away_since = now;
            for h in 0..self.tenant(i).leaseholders.len() {
                let (d, pace) = (self.device_of(i, h), self.pace(i, h));
                self.settle_holder(d);
                let floor = self.devices[d].floor;
                let leaseholder = &mut self.tenant_mut(i).leaseholders[h];
                leaseholder.owed = floor.beyond(leaseholder.time, pace);
            }
        }
        self.tenant_mut(i).place = place;
        self.rearm(i);
    }

    pub(crate) fn queued_at(&self, i: usize) -> bool {
        self.tenant(i).place == Place::Queued
    }

    pub(crate) fn settle_holder(&mut self, d: usize) {
        if let Some(holder) = self.devices[d].holder {
            self.settle(holder);
        }
        self.raise_floor(d);
    }

    /// The quantum of a tenant: the longest of its devices'.
    pub(crate) fn quantum(&self, i: usize) -> Nanos {
        let now = self.clock.now();
        let quantum = |leaseholder: &crate::tenant::Leaseholder| {
            self.devices[leaseholder.device].quantum(&self.settings, now)
        };
        self.tenant(i)
            .leaseholders
            .iter()
            .map(quantum)
            .max()
            .unwrap_or(self.settings.quantum)
    }

    /// How deep a hard cap's bucket is: a quantum, and what accrues while another tenant's kernel outlasts its lease. With
    /// launches that are longer than a lease's expiry, what accrues while each of the other tenants' does so, but no more
    /// than one such launch. Otherwise the share would be lost with each long launch of a neighbour's.
    pub(crate) fn depth(&self, i: usize) -> Nanos {
        let tenant = self.tenant(i);
        let Some(share) = tenant.terms.share() else {
            return FOREVER;
        };
        let now = self.clock.now();
        let made_up = tenant.leaseholders.iter().map(|leaseholder| {
            let device = &self.devices[leaseholder.device];
            let overrun = device.overrun.at(now);
            // Short ones bound how far a cap is passed in a second: a quantum, the bound and one kernel.
            let others = match overrun > self.settings.expiry {
                true => u64::from(device.members.saturating_sub(1)),
                false => 1,
            };
            share.of(overrun.saturating_mul(others)).min(overrun)
        });
        self.quantum(i) + made_up.max().unwrap_or(0)
    }

    /// The tokens without which a lease is not worth its change of holder. Where changes cost so much that the quantum is
    /// longer, it is nearly all of that: a device that is free would otherwise go to each tenant as soon as it has a
    /// little, and change as often as before.
    pub(crate) fn least_tokens(&self, i: usize) -> Nanos {
        let quantum = self.quantum(i);
        let longer = quantum.min(self.settings.longest_stretch);
        quantum / 4 + longer.saturating_sub(self.settings.quantum) / 2
    }
}
