//! Gangs: a tenant's devices are granted together or not at all.
//!
//! No tenant ever holds one device while waiting for another. A gang whose turn has come on *each* of its devices, by
//! their virtual times, puts a claim on all of them at once. Claims have one order for all devices; a claim is *active*
//! when it is the first on each of its own. An active claim lets the leases there run out. It lets others use a device
//! that is free early up to the time at which the last should be, and then takes all. So the first claim of all is
//! always active, and every claim's turn comes. There is no deadlock, and no starvation by smaller gangs that overlap
//! in turns.
//!
//! Claims of latency-critical gangs with budget are urgent: they go before the best effort, take devices from it at
//! once, and come in the order of their deadlines with single urgent tenants. While another urgent tenant keeps one of
//! their devices, the best effort may use the others. A gang with a share whose claim waits far longer than its share
//! allows becomes urgent too. Otherwise urgent gangs that are never all gone at one time would keep it from running.

use crate::arbiter::Arbiter;
use crate::tenant::{ActiveClaim, Claim, ClaimKey, Lease, Place};
use crate::virtual_time::VirtualTime;
use crate::{FOREVER, Nanos};

/// A claim becomes urgent after so many times the time in which its gang's share of a device makes a quantum.
const WAITS_AT_MOST: u64 = 4;
/// So many claims behind the first one of a device are looked at for one that may go before it.
const LOOK_AHEAD: usize = 8;

impl Arbiter {
    /// Puts a claim on all devices of a gang: an urgent one where there is a deadline.
    pub(crate) fn claim(&mut self, i: usize, deadline: Option<Nanos>) {
        self.leave_queues(i);
        self.claims += 1;
        let time = self.tenant(i).gang_time.max(self.gang_floor);
        self.tenant_mut(i).gang_time = time;
        let key = ClaimKey {
            rank: u8::from(deadline.is_none()),
            deadline: deadline.unwrap_or(0),
            time,
            number: self.claims,
        };
        let since = self.clock.now();
        let tenant = self.tenant_mut(i);
        tenant.place = Place::Claiming;
        tenant.claim = Some(Claim {
            key,
            since,
            target: None,
        });
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
                self.claim(i, None);
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

    /// When a claim of best effort becomes urgent: once its gang waited several times as long as a quantum takes to
    /// accrue at its share. A weight is promised nothing, and waits.
    pub(crate) fn urgent_at(&self, i: usize) -> Option<Nanos> {
        let tenant = self.tenant(i);
        let claim = tenant.claim.filter(|claim| !claim.is_urgent())?;
        let accrues = tenant.terms.share()?.accrues(self.quantum(i));
        Some(claim.since.saturating_add(accrues.saturating_mul(WAITS_AT_MOST)))
    }

    /// The alarm of a gang whose claim waits: a new period has brought it budget, or it has waited too long.
    pub(crate) fn tick_claiming(&mut self, i: usize) {
        let now = self.clock.now();
        let due = self.urgent_at(i).is_some_and(|at| at <= now);
        let waits = self.tenant(i).claim.is_some_and(|claim| !claim.is_urgent());
        let budget = self.tenant_mut(i).server.as_mut().and_then(|server| {
            server.replenish(now);
            (server.budget() > 0).then(|| server.deadline())
        });
        match budget {
            Some(deadline) if waits => self.claim(i, Some(deadline)),
            _ if due => self.claim(i, Some(now)),
            _ => {}
        }
    }

    /// The active claim to a device.
    pub(crate) fn active_claim(&mut self, d: usize) -> Option<ActiveClaim> {
        let &(key, i) = self.devices[d].claims.first()?;
        let first_everywhere = |leaseholder: &crate::tenant::Leaseholder| {
            self.devices[leaseholder.device].claims.first() == Some(&(key, i))
        };
        if !self.tenant(i).leaseholders.iter().all(first_everywhere) {
            return None;
        }
        let claim = self.tenant(i).claim?;
        let deadline = claim.is_urgent().then_some(key.deadline);
        let target = match (deadline, claim.target) {
            (Some(deadline), _) => self.urgent_target(i, deadline),
            (None, Some(target)) => target,
            (None, None) => self.set_target(i),
        };
        Some(ActiveClaim {
            gang: i,
            deadline,
            target,
        })
    }

    /// When the devices of an urgent gang should be free: now, but for those of urgent tenants with earlier deadlines.
    fn urgent_target(&self, i: usize, deadline: Nanos) -> Nanos {
        let now = self.clock.now();
        let ends = self.tenant(i).leaseholders.iter().map(|leaseholder| {
            let holder = self.devices[leaseholder.device].holder;
            match holder.and_then(|holder| self.tenant(holder).lease) {
                Some(lease) if lease.urgent && lease.deadline <= deadline => self.end_of(&lease),
                _ => now,
            }
        });
        ends.max().unwrap_or(now)
    }

    fn end_of(&self, lease: &Lease) -> Nanos {
        match lease.until {
            FOREVER => lease.since.saturating_add(self.settings.quantum),
            until => until,
        }
    }

    /// What an urgent gang waits for changed: its devices are looked at again.
    pub(crate) fn mark_urgent_claim(&mut self, d: usize) {
        let Some(&(key, gang)) = self.devices[d].claims.first() else {
            return;
        };
        if key.rank == 0 {
            for h in 0..self.tenant(gang).leaseholders.len() {
                let d = self.device_of(gang, h);
                self.mark(d);
            }
        }
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
                target = target.max(self.end_of(&lease));
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

    /// A gang behind the first claim of a device that may use all of its own meanwhile, and until when.
    pub(crate) fn backfill_gang(&mut self, d: usize) -> Option<(usize, Nanos)> {
        let now = self.clock.now();
        let gangs: Vec<usize> = self.devices[d]
            .claims
            .iter()
            .skip(1)
            .take(LOOK_AHEAD)
            .map(|&(_, gang)| gang)
            .collect();
        for gang in gangs {
            if !self.all_free(gang) || self.urgent_before(gang) {
                continue;
            }
            let mut horizon = FOREVER;
            for h in 0..self.tenant(gang).leaseholders.len() {
                let d = self.device_of(gang, h);
                let claim = self.active_claim(d).filter(|claim| claim.gang != gang);
                horizon = horizon.min(claim.map_or(FOREVER, |claim| claim.target));
            }
            if horizon >= now.saturating_add(self.settings.least_backfill) {
                return Some((gang, horizon));
            }
        }
        None
    }
}
