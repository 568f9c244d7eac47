//! When the arbiter wants to look at which tenant.

use std::collections::BTreeSet;

use crate::Nanos;

/// One alarm for each tenant.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    alarms: BTreeSet<(Nanos, usize)>,
}

impl Timers {
    /// Moves a tenant's alarm from `old` to `new`.
    pub fn set(&mut self, tenant: usize, old: Option<Nanos>, new: Option<Nanos>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.alarms.remove(&(old, tenant));
        }
        if let Some(new) = new {
            self.alarms.insert((new, tenant));
        }
    }

    pub fn first(&self) -> Option<Nanos> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// The tenant of an alarm that is due; the alarm stays until it is set again.
    pub fn due(&self, now: Nanos) -> Option<usize> {
        self.alarms
            .first()
            .filter(|&&(at, _)| at <= now)
            .map(|&(_, tenant)| tenant)
    }
}
