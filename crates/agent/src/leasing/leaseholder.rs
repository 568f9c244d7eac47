//! A slice as the arbiter's tenant: its accounts, one for each of its devices, and its state among the others.

use divvy_arbiter::{Nanos, Terms};

use super::Member;
use super::account::{Account, Hold, Report};

/// A slice that leases its devices.
#[derive(Debug)]
pub(super) struct Leaseholder {
    /// The slice.
    pub member: Member,
    /// The terms that the arbiter has for it: its own, unless they could not be promised.
    pub held_to: Terms,
    /// One for each of its devices, in order.
    pub accounts: Vec<Account>,
    /// The slice has just come: its gates are new, or as an earlier agent left them.
    pub fresh: bool,
    /// Its gates are open, and its use is not counted.
    pub lone: bool,
    /// The time until which the agent waits for launches under an earlier agent to finish; 0 for no wait.
    pub in_doubt_until: Nanos,
    /// The time since which it has waited for a lease, if it does.
    pub asked_at: Option<Nanos>,
    /// Its total waiting time.
    pub queued_ns: Nanos,
    /// Leases so far.
    pub leases: u64,
    /// Its work outlasted its lease by so much that others were told.
    pub overdue: bool,
    /// The number of such leases.
    pub overdue_total: u64,
    /// The number of leases that were outlasted by so much that the device went to others.
    pub expired_total: u64,
    /// Its processes use the device without being charged.
    pub is_uncharged: bool,
    /// The total of that time, in nanoseconds.
    pub uncharged_ns: Nanos,
}

impl Leaseholder {
    /// Whether it has a lease, or one that has not fully ended.
    pub fn holds(&self) -> bool {
        self.accounts.iter().any(|account| account.hold != Hold::Nothing)
    }

    /// Whether it has leases and none that ended.
    pub fn is_leased(&self) -> bool {
        self.holds()
            && !self
                .accounts
                .iter()
                .any(|account| matches!(account.hold, Hold::Ending { .. }))
    }

    /// Reads its processes' reports on each device.
    pub fn read(&mut self, now: Nanos) -> Vec<Report> {
        self.accounts
            .iter_mut()
            .map(|account| account.read(now))
            .collect()
    }

    /// It asks for a lease from now on.
    pub fn ask(&mut self, now: Nanos) {
        self.asked_at.get_or_insert(now);
    }

    /// It no longer waits.
    pub fn stop_asking(&mut self, now: Nanos) {
        if let Some(asked) = self.asked_at.take() {
            self.queued_ns = self.queued_ns.saturating_add(now.saturating_sub(asked));
        }
    }

    /// Its total waiting time, with the present wait.
    pub fn queued(&self, now: Nanos) -> Nanos {
        let present = self.asked_at.map_or(0, |asked| now.saturating_sub(asked));
        self.queued_ns.saturating_add(present)
    }
}
