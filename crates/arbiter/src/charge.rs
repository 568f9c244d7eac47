//! What each tenant is charged: max(reported busy, unreleased lease time), in virtual time, tokens and budget alike.

use crate::Nanos;
use crate::arbiter::Arbiter;

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
        if let Some(held) = &mut self.tenant_mut(i).leaseholders[h].held {
            let run = now.saturating_sub(held.charged_to);
            held.charged_to = now;
            let paid = &mut self.tenant_mut(i).leaseholders[h].paid;
            *paid = paid.saturating_add(run);
            if !waits {
                self.charge(i, h, run);
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
        let devices = tenant.leaseholders.len();
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
