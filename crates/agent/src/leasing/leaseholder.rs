//! A slice as the arbiter's tenant: its accounts, one for each of its devices, and where it stands among the others.

use divvy_arbiter::{Nanos, Terms};

use super::Member;
use super::account::{Account, Hold, Report};

/// A slice that leases its devices.
#[derive(Debug)]
pub(super) struct Leaseholder {
    /// The slice.
    pub member: Member,
    /// The terms by which the arbiter has it: its own, unless they could not be promised.
    pub held_to: Terms,
    /// One for each of its devices, in order.
    pub accounts: Vec<Account>,
    /// It has just come: its gates are as they were made, or as an earlier agent left them.
    pub fresh: bool,
    /// Its gates are open, and nobody counts.
    pub lone: bool,
    /// Until when it is waited for that what an earlier agent let it launch is over; 0 for not at all.
    pub in_doubt_until: Nanos,
    /// It has asked for a lease and not got one yet: since when.
    pub asked_at: Option<Nanos>,
    /// How long it has waited in all.
    pub queued_ns: Nanos,
    /// Leases so far.
    pub leases: u64,
    /// Its lease was outlasted by so much that others were told.
    pub overdue: bool,
    /// Leases that were.
    pub overdue_total: u64,
    /// Leases that were outlasted by so much that the device went to others.
    pub expired_total: u64,
    /// Its processes use the device without being charged.
    pub escapes: bool,
    /// For how long they did, nanoseconds.
    pub escaped_ns: Nanos,
}

impl Leaseholder {
    /// Whether a lease of it is out or not over yet.
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

    /// Reads what its processes say on each device.
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

    /// How long it has waited in all, with the present wait.
    pub fn queued(&self, now: Nanos) -> Nanos {
        let present = self.asked_at.map_or(0, |asked| now.saturating_sub(asked));
        self.queued_ns.saturating_add(present)
    }
}
