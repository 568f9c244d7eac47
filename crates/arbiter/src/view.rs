//! What people may see of a tenant: `divvy ps` and `divvy top`.

use crate::arbiter::Arbiter;
use crate::tenant::Place;
use crate::terms::Terms;
use crate::{DeviceId, Nanos, TenantId};

/// Where a tenant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It wants nothing.
    Idle,
    /// It wants to run and its hard cap does not let it.
    Throttled,
    /// It waits its turn.
    Waiting,
    /// It holds a lease.
    Running,
    /// Its lease expired with work in flight.
    Stuck,
}

/// A tenant on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Where it stands.
    pub standing: Standing,
    /// Its terms.
    pub terms: Terms,
    /// Everything it was charged on the device, nanoseconds.
    pub charged: u128,
    /// How long it held leases that were its to use, in nanoseconds. What it was charged beyond that it reported: its own
    /// word, which says nothing of what it may use.
    pub leased: u128,
    /// How long it held a lease on the device and was not charged, because the tenant before was charged for that time:
    /// its work was still in flight. In nanoseconds. The device may run both in turns.
    pub waited: u128,
    /// How long its leases had expired and were not released, because work of them was in flight by its own word. In
    /// nanoseconds. It is charged for that time too.
    pub outlasted: u128,
    /// Device time it has to repay: to the others by virtual time, or to its own cap or budget, whichever is more.
    pub debt: Nanos,
    /// How long it has been waiting; 0 when it is not.
    pub waiting: Nanos,
}

impl Arbiter {
    /// A tenant on one of its devices, as of the last event; `None` if there is no such tenant or it is not on that
    /// device.
    pub fn view(&self, tenant: TenantId, device: DeviceId) -> Option<View> {
        let &i = self.numbers.get(&tenant)?;
        let tenant = self.tenant(i);
        let h = tenant
            .leaseholders
            .iter()
            .position(|leaseholder| leaseholder.device == device.0 as usize)?;
        let leaseholder = &tenant.leaseholders[h];
        let standing = match tenant.place {
            Place::Away => Standing::Idle,
            Place::Throttled => Standing::Throttled,
            Place::Queued | Place::Urgent | Place::Claiming => Standing::Waiting,
            Place::Holding => Standing::Running,
            Place::Stuck => Standing::Stuck,
        };
        let to_others = leaseholder
            .time
            .beyond(self.devices[leaseholder.device].floor, self.pace(i, h));
        let to_cap = tenant.bucket.map_or(0, |bucket| bucket.debt());
        let to_budget = tenant.server.map_or(0, |server| server.debt());
        let [leased, waited, outlasted] = self.held(i, h);
        let waits = matches!(standing, Standing::Waiting | Standing::Throttled);
        Some(View {
            standing,
            terms: tenant.terms,
            charged: leaseholder.charged,
            leased,
            waited,
            outlasted,
            // A server's tenant runs ahead of the others by right.
            debt: if tenant.server.is_some() { 0 } else { to_others }
                .max(to_cap)
                .max(to_budget),
            waiting: if waits {
                self.clock.now().saturating_sub(tenant.waits_since)
            } else {
                0
            },
        })
    }

    /// How long it held leases that were its to use, ones for which it waited, and expired ones: up to the last event, also
    /// if that was another tenant's.
    fn held(&self, i: usize, h: usize) -> [u128; 3] {
        let (tenant, now) = (self.tenant(i), self.clock.now());
        let leaseholder = &tenant.leaseholders[h];
        let mut held = [leaseholder.leased, leaseholder.waited, leaseholder.outlasted];
        let device = &self.devices[leaseholder.device];
        let which = match tenant.place {
            Place::Stuck => 2,
            _ if device.draining.is_some() && device.holder == Some(i) => 1,
            _ => 0,
        };
        let charged_to = leaseholder.held.map_or(now, |held| held.charged_to);
        held[which] += u128::from(now.saturating_sub(charged_to));
        held
    }

    /// The tenant that holds a device.
    pub fn holder(&self, device: DeviceId) -> Option<TenantId> {
        let holder = self.devices.get(device.0 as usize)?.holder?;
        Some(self.tenant(holder).id)
    }

    /// How many tenants are registered.
    pub fn tenants(&self) -> usize {
        self.numbers.len()
    }
}
