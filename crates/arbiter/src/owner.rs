//! Tenants and their owners: what a tenant leaves to its owner when it goes, and what the owner's next one takes over
//! ([`crate::debts`]).

use crate::Nanos;
use crate::arbiter::Arbiter;
use crate::debts::Owed;
use crate::terms::Cap;

impl Arbiter {
    /// A tenant that has just arrived is an owner's.
    pub(crate) fn own(&mut self, i: usize, owner: u64) {
        if self.tenant(i).owner.is_some() {
            return;
        }
        self.tenant_mut(i).owner = Some(owner);
        for h in 0..self.tenant(i).leaseholders.len() {
            self.take_over(i, h, self.parts(i, h));
        }
        self.burden_cap(i);
    }

    /// Whether two tenants are of one owner.
    pub(crate) fn is_of_one(&self, i: usize, other: usize) -> bool {
        let owner = self.tenant(i).owner;
        owner.is_some() && owner == self.tenant(other).owner
    }

    /// Its part of a device, per 10 000.
    pub(crate) fn parts(&self, i: usize, h: usize) -> u32 {
        self.pace(i, h).parts()
    }

    /// What it owes on one of its devices, up to now.
    pub(crate) fn owed(&mut self, i: usize, h: usize) -> Owed {
        let (now, depth, fresh) = (self.clock.now(), self.depth(i), self.settings.quantum);
        let (d, pace) = (self.device_of(i, h), self.pace(i, h));
        self.settle_holder(d);
        let floor = self.devices[d].floor;
        let tenant = self.tenant_mut(i);
        let others = tenant.leaseholders[h].time.beyond(floor, pace);
        // Beyond its budget a soft one runs by the others' leave: what it took from none is not owed.
        let most = match tenant.terms.cap {
            Cap::Soft => others,
            Cap::Hard => Nanos::MAX,
        };
        let of_bucket = tenant.bucket.as_mut().map_or(0, |bucket| {
            bucket.refill(now, depth);
            bucket.missing(fresh)
        });
        let of_server = tenant.server.as_mut().map_or(0, |server| {
            server.replenish(now);
            server.spent(most)
        });
        Owed {
            cap: of_bucket.max(of_server),
            others,
        }
    }

    /// It goes: its owner's next tenants there take over what it owes.
    pub(crate) fn leave_debts(&mut self, i: usize) {
        let (Some(owner), now) = (self.tenant(i).owner, self.clock.now()) else {
            return;
        };
        for h in 0..self.tenant(i).leaseholders.len() {
            let (owed, d) = (self.owed(i, h), self.device_of(i, h));
            self.debts.leave((owner, d), self.parts(i, h), owed, now);
        }
    }

    /// It has another part of its devices than these, with which it owed that. A smaller part leaves its share of the debt, and a larger
    /// one takes over what others left.
    pub(crate) fn share_debts(&mut self, i: usize, before: &[(u32, Owed)]) {
        let (Some(owner), now) = (self.tenant(i).owner, self.clock.now()) else {
            return;
        };
        let mut relief = Nanos::MAX;
        for (h, &(parts, owed)) in before.iter().enumerate() {
            let (has, d) = (self.parts(i, h), self.device_of(i, h));
            if has > parts {
                self.take_over(i, h, has - parts);
            }
            let less = parts.saturating_sub(has);
            let left = owed.part(less, parts);
            if less > 0 {
                self.debts.leave((owner, d), less, left, now);
                let pace = self.pace(i, h);
                let leaseholder = &mut self.tenant_mut(i).leaseholders[h];
                leaseholder.time = leaseholder.time.earlier(left.others, pace);
            }
            relief = relief.min(left.cap);
        }
        self.burden_cap(i);
        let depth = self.settings.quantum;
        let tenant = self.tenant_mut(i);
        if let Some(bucket) = &mut tenant.bucket {
            bucket.give_back(relief, 1, depth);
        }
        if let Some(server) = &mut tenant.server {
            server.give_back(relief);
        }
    }

    /// Takes over what the owner owes on one device for so many parts.
    fn take_over(&mut self, i: usize, h: usize, parts: u32) {
        let (Some(owner), now) = (self.tenant(i).owner, self.clock.now()) else {
            return;
        };
        let (d, pace) = (self.device_of(i, h), self.pace(i, h));
        let taken = self.debts.take((owner, d), parts, now);
        let tenant = self.tenant_mut(i);
        // A gang has one bucket, and owes as much as on the device where it is most.
        tenant.takes_over = tenant.takes_over.max(taken.cap);
        let leaseholder = &mut tenant.leaseholders[h];
        leaseholder.time = leaseholder.time.later(taken.others, pace);
    }

    /// Takes off its tokens what it took over.
    fn burden_cap(&mut self, i: usize) {
        let tenant = self.tenant_mut(i);
        let taken = std::mem::take(&mut tenant.takes_over);
        if let Some(bucket) = &mut tenant.bucket {
            bucket.spend(taken, 1);
        }
        if let Some(server) = &mut tenant.server {
            server.spend(taken, 1);
        }
    }
}
