//! What each tenant is charged: max(reported busy, unreleased lease time), in virtual time, tokens and budget alike.

use crate::arbiter::Arbiter;
use crate::holding::WHOLE;
use crate::tenant::{Leaseholder, Place};
use crate::{Cap, Nanos};

impl Arbiter {
    /// Charges a tenant for its unreleased leases up to now.
    pub(crate) fn settle(&mut self, i: usize) {
        for h in 0..self.tenant(i).leaseholders.len() {
            self.settle_leaseholder(i, h);
        }
    }

    pub(crate) fn settle_leaseholder(&mut self, i: usize, h: usize) {
        let now = self.clock.now();
        let device = &self.devices[self.device_of(i, h)];
        // Until the tenant before has drained, its time is that tenant's alone. Nor is this one charged for what it
        // reports of that time: its kernels are in flight, and wait.
        let waits = device.draining.is_some() && device.holder == Some(i);
        // Beside a launch that has long outlasted its lease the hardware gives it turns. A hard cap counts those, as half of the time:
        // else the tenant has them beside its cap. A soft share's turns take from the launch alone, and its requests must not wait.
        let drains = device.draining.and_then(|one| self.tenants[one].as_ref()?.lease);
        let is_long = drains.is_some_and(|lease| now > lease.until.saturating_add(self.settings.expiry));
        if let Some(held) = &mut self.tenant_mut(i).leaseholders[h].held {
            let run = now.saturating_sub(held.charged_to);
            held.charged_to = now;
            let paid = &mut self.tenant_mut(i).leaseholders[h].paid;
            *paid = paid.saturating_add(run);
            if waits {
                self.tenant_mut(i).leaseholders[h].waited += u128::from(run);
                if is_long && self.tenant(i).terms.cap == Cap::Hard {
                    self.charge(i, h, run / 2);
                }
            } else {
                let is_stuck = self.tenant(i).place == Place::Stuck;
                self.tenant_mut(i).leaseholders[h].note_held(is_stuck, run);
                self.note_shared(i, h, run);
                self.charge(i, h, run);
            }
        }
    }

    /// The caller's clock leapt, because the machine slept or the caller did. Holders are not charged for that, and may have
    /// used the device all the same.
    pub(crate) fn note_leap(&mut self, leap: Nanos) {
        for tenant in self.tenants.iter_mut().flatten() {
            let is_stuck = tenant.place == Place::Stuck;
            let leaseholders = tenant.leaseholders.iter_mut();
            for leaseholder in leaseholders.filter(|leaseholder| leaseholder.held.is_some()) {
                leaseholder.note_held(is_stuck, leap);
            }
        }
    }

    /// Notes the part of a charge in which others had work on the device: one whose lease has expired, or the holder
    /// beside it.
    fn note_shared(&mut self, i: usize, h: usize, run: Nanos) {
        let tenant = self.tenant(i);
        let device = &self.devices[tenant.leaseholders[h].device];
        if device.stuck == 0 || tenant.bucket.is_none() {
            return;
        }
        let holders = u64::from(device.holder.is_some_and(|holder| holder != i));
        let others = u128::from(self.stuck_beside(i, h, true) + holders * WHOLE);
        let theirs = u128::from(run) * others / (others + u128::from(WHOLE));
        let shared = &mut self.tenant_mut(i).leaseholders[h].shared;
        *shared = shared.saturating_add(theirs as Nanos);
    }

    /// The first lease on a device expires: the time in which its work and that of others run in turns begins.
    pub(crate) fn begin_sharing(&mut self, d: usize) {
        if self.devices[d].stuck > 0 {
            return;
        }
        // What a tenant used alone until now is not shared.
        for i in 0..self.tenants.len() {
            if self.tenants[i].is_none() {
                continue;
            }
            self.settle(i);
            let of_device = |leaseholder: &&mut Leaseholder| leaseholder.device == d;
            if let Some(leaseholder) = self.tenant_mut(i).leaseholders.iter_mut().find(of_device) {
                leaseholder.shared = 0;
            }
        }
    }

    /// Nothing of an expired lease is in flight any more. Each of those that ran in turns was charged for the whole time
    /// in which each had a part of the device. Hard caps get the rest back: otherwise the device would idle for it. By
    /// virtual time all of them have paid too much alike. With the last expired lease all get it back, before that the
    /// one whose work has ended. One that dies says nothing about its work, and gives nothing back.
    pub(crate) fn give_back_shared(&mut self, i: usize, h: usize) {
        let d = self.device_of(i, h);
        if self.tenant(i).place != Place::Stuck || self.tenant(i).leaseholders[h].held.is_none() {
            return;
        }
        let last = self.devices[d].stuck == 1;
        for one in 0..self.tenants.len() {
            if self.tenants[one].is_none() || (one != i && !last) {
                continue;
            }
            self.settle(one);
            let (now, depth) = (self.clock.now(), self.depth(one));
            let tenant = self.tenant_mut(one);
            let devices = tenant.leaseholders.len();
            let of_device = |leaseholder: &&mut Leaseholder| leaseholder.device == d;
            let shared = match tenant.leaseholders.iter_mut().find(of_device) {
                Some(leaseholder) => std::mem::take(&mut leaseholder.shared),
                None => continue,
            };
            if let Some(bucket) = &mut tenant.bucket {
                bucket.refill(now, depth);
                bucket.give_back(shared, devices, depth);
            }
            if self.tenant(one).place == Place::Throttled {
                // It may run earlier than was thought.
                self.rearm(one);
            }
        }
    }

    /// Takes a tenant's word for its busy time, where that is more than it was charged for, and for its kernels.
    pub(crate) fn report(&mut self, i: usize, h: usize, busy: Nanos, kernel: Nanos) {
        self.settle_leaseholder(i, h);
        let leaseholder = &mut self.tenant_mut(i).leaseholders[h];
        if kernel > 0 {
            leaseholder.kernel = kernel;
        }
        leaseholder.reported = leaseholder.reported.max(busy);
        let more = (leaseholder.reported - leaseholder.squared).saturating_sub(leaseholder.paid);
        leaseholder.paid = leaseholder.paid.saturating_add(more);
        self.charge(i, h, more);
    }

    /// A lease ends with nothing in flight: what of it the device was idle for, by the tenant's word, was the change of
    /// holder. A lie makes the device's quantum longer, within bounds.
    pub(crate) fn note_change(&mut self, i: usize, h: usize) {
        let d = self.device_of(i, h);
        let leaseholder = &mut self.tenant_mut(i).leaseholders[h];
        let held = leaseholder.held.is_some();
        let busy = leaseholder.reported - leaseholder.squared;
        let idle = leaseholder.paid.saturating_sub(busy);
        if std::mem::replace(&mut leaseholder.is_squared, true) && held {
            self.devices[d].change.note(idle);
        }
    }

    fn charge(&mut self, i: usize, h: usize, run: Nanos) {
        if run == 0 {
            return;
        }
        let pace = self.pace(i, h);
        let d = self.device_of(i, h);
        let queued = self.queued_at(i);
        let gang = self.tenant(i).is_gang();
        if queued {
            let entry = (self.tenant(i).leaseholders[h].time, i);
            self.devices[d].waiting(gang).remove(&entry);
        }
        let tenant = self.tenant_mut(i);
        let held = tenant.leaseholders.iter().filter(|one| one.held.is_some());
        let devices = held.count().max(1);
        let leaseholder = &mut tenant.leaseholders[h];
        leaseholder.charged += u128::from(run);
        leaseholder.time = leaseholder.time.later(run, pace);
        let time = leaseholder.time;
        if gang && h == 0 {
            tenant.gang_time = tenant.gang_time.later(run, pace);
        }
        if let Some(bucket) = &mut tenant.bucket {
            bucket.spend(run, devices);
        }
        if let Some(server) = &mut tenant.server {
            server.spend(run, devices);
        }
        if queued {
            self.devices[d].waiting(gang).insert((time, i));
        }
        self.raise_floor(d);
    }

    /// Moves a device's virtual time to the least of the tenants that run or wait for it.
    pub(crate) fn raise_floor(&mut self, d: usize) {
        let device = &self.devices[d];
        // A gang that waits for another of its devices does not hold this one's time back.
        let waiting = device
            .ready
            .first()
            .or(device.gangs.first())
            .map(|&(time, _)| time);
        let running = device.holder.and_then(|h| {
            let tenant = self.tenant(h);
            // A latency-critical holder with budget does not run by virtual time.
            if tenant.lease.is_some_and(|lease| lease.urgent) {
                return None;
            }
            tenant
                .leaseholders
                .iter()
                .find(|leaseholder| leaseholder.device == d)
                .map(|leaseholder| leaseholder.time)
        });
        let least = match (waiting, running) {
            (Some(a), Some(b)) => a.min(b),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return,
        };
        let device = &mut self.devices[d];
        device.floor = device.floor.max(least);
    }
}
