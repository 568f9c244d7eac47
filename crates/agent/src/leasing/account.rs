//! A slice on one of its devices: its gate as this agent wrote it, and the reports of its processes.

use std::collections::HashMap;
use std::sync::Arc;

use divvy_arbiter::{DeviceId, Nanos, SECOND};
use divvy_ledger::attach::Pages;
use divvy_ledger::{Gate, GateWord, Grant, Lease, Ledger};

use super::figures::Figures;
use super::listener::{ListenerHandle, MOST};
use super::metered::Metered;

/// The slice's hold on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// The slice has no lease, and by its processes' reports no work of one is in flight.
    Nothing,
    /// The slice has a lease.
    Leased {
        /// The lease's number, by the arbiter's count.
        epoch: u64,
        /// The time at which it ends.
        until: Nanos,
    },
    /// The lease has ended, and work of it may be in flight.
    Ending {
        /// The lease's number.
        epoch: u64,
        /// The time of the next search for dead processes.
        reap_at: Nanos,
    },
}

/// The combined reports of an account's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// A thread waits at the gate.
    pub wants: bool,
    /// Work is in flight, or may be.
    pub busy: bool,
    /// Each process that ever launched has read the present gate.
    pub settled: bool,
    /// Each process that ever launched has read that it is counted.
    pub counted: bool,
    /// Their busy time or their typical kernel differs from the last look, or they have more in flight.
    pub news: bool,
    /// Some processes that were not there at the last look, by number where they gave one.
    pub newcomers: Vec<u32>,
}

/// A slice on one of its devices.
#[derive(Debug)]
pub(super) struct Account {
    /// The device.
    pub device: DeviceId,
    /// The slice's hold on it.
    pub hold: Hold,
    /// The doorbell's thread, where there is one.
    pub listener: Option<Arc<ListenerHandle>>,
    /// Nanoseconds that its processes kept the device busy, since this agent first looked.
    pub busy_ns: Nanos,
    /// Their longest typical kernel.
    pub kernel_ns: Nanos,
    /// Their own estimate of their work in flight.
    pub in_flight_ns: Nanos,
    /// Launches of the living processes.
    pub launched: u64,
    /// Its part while all slices want the device, in parts of 10,000.
    pub effective: u32,
    /// Its samples of the last seconds.
    pub figures: Figures,
    /// The driver's figures of its processes.
    pub metered: Metered,
    pages: Arc<Vec<Pages>>,
    place: usize,
    word: GateWord,
    opened: Option<GateWord>,
    /// The busy time of each process at the last look, by its slot and the time when it came.
    seen: HashMap<(usize, u64), u64>,
    /// No look was made yet: earlier use is not for this agent to charge.
    unread: bool,
    looked_at: Nanos,
}

/// A typical kernel that is longer than this counts as this long: nothing depends on more.
const LONGEST_KERNEL: Nanos = 60 * SECOND;

/// The delay of the first search for dead processes after a lease's end, and of later ones. The kernel reports most
/// deaths earlier: see [`super::pidfd_watcher`].
const FIRST_REAP: Nanos = 2_000_000;
const NEXT_REAP: Nanos = 5_000_000;

impl Account {
    /// The account at `place` of a slice's pages.
    pub fn new(device: DeviceId, pages: &Arc<Vec<Pages>>, place: usize, now: Nanos) -> Self {
        let word = pages[place].grant.gate();
        Self {
            device,
            hold: Hold::Nothing,
            listener: None,
            busy_ns: 0,
            kernel_ns: 0,
            in_flight_ns: 0,
            launched: 0,
            effective: 0,
            figures: Figures::default(),
            metered: Metered::default(),
            pages: pages.clone(),
            place,
            word,
            opened: (word.gate() == Gate::Open).then_some(word),
            seen: HashMap::new(),
            unread: true,
            looked_at: now,
        }
    }

    /// Its grant.
    pub fn grant(&self) -> &Grant {
        &self.pages[self.place].grant
    }

    /// Its ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.pages[self.place].ledger
    }

    /// Some of its processes, by number where they gave one.
    pub fn host_pids(&self) -> Vec<u32> {
        let pids = self.ledger().activities().map(|process| process.host_pid);
        pids.filter(|pid| *pid != 0).take(MOST).collect()
    }

    /// Some of its processes that say that they have work in flight, by number where they gave one. What a process says is
    /// good for a message, and decides nothing.
    pub fn host_pids_in_flight(&self) -> impl Iterator<Item = u32> {
        let in_flight = self.ledger().activities().filter(|process| process.busy);
        in_flight
            .map(|process| process.host_pid)
            .filter(|pid| *pid != 0)
            .take(MOST)
    }

    /// How many processes the last look covered.
    pub fn crowd(&self) -> usize {
        self.seen.len()
    }

    /// Whether the account is of these pages.
    pub fn is_of(&self, pages: &Arc<Vec<Pages>>) -> bool {
        Arc::ptr_eq(&self.pages, pages)
    }

    /// Lets the slice launch without a limit.
    pub fn open(&mut self) {
        self.word = self.grant().open_gate();
        self.opened = Some(self.word);
        self.hold = Hold::Nothing;
    }

    /// Stops further launches of the slice.
    pub fn close(&mut self) {
        self.word = self.grant().close_gate();
    }

    /// Leases the device to the slice.
    pub fn lease(&mut self, epoch: u64, lease: Lease) {
        self.word = self.grant().lease(lease);
        self.hold = Hold::Leased {
            epoch,
            until: lease.until_ns,
        };
    }

    /// Ends a lease.
    pub fn end(&mut self, now: Nanos) {
        if let Hold::Leased { epoch, .. } = self.hold {
            self.close();
            self.hold = Hold::Ending {
                epoch,
                reap_at: now.saturating_add(FIRST_REAP),
            };
        }
    }

    /// Searches for dead processes, where a lease's end waits for a process that may be dead.
    pub fn reap_if_due(&mut self, now: Nanos) {
        if let Hold::Ending { epoch, reap_at } = self.hold
            && reap_at <= now
        {
            self.hold = Hold::Ending {
                epoch,
                reap_at: now.saturating_add(NEXT_REAP),
            };
            if let Some(listener) = &self.listener {
                listener.reap();
            }
        }
    }

    /// Reads the reports of its processes. From each it takes what is new, but from all together no more than the time
    /// that has passed, because a process may write any figure.
    pub fn read(&mut self, now: Nanos) -> Report {
        let mut report = Report {
            settled: true,
            counted: true,
            ..Report::default()
        };
        let (word, opened) = (self.word, self.opened);
        let mut seen = HashMap::with_capacity(self.seen.len());
        let (mut more, mut kernel, mut in_flight, mut launched) = (0_u64, 0, 0_u64, 0_u64);
        for process in self.pages[self.place].ledger.activities() {
            report.wants |= process.wants;
            report.busy |= process.busy;
            if process.launched > 0 {
                report.settled &= process.acknowledged.is_since(word);
                report.counted &= opened.is_none_or(|opened| {
                    process.acknowledged != opened && process.acknowledged.is_since(opened)
                });
                kernel = process.kernel_ns.max(kernel);
            }
            let key = (process.slot, process.claimed_at_ns);
            let before = self.seen.get(&key).copied();
            if before.is_none() && process.host_pid != 0 && report.newcomers.len() < MOST {
                report.newcomers.push(process.host_pid);
            }
            more = more.saturating_add(process.busy_ns.saturating_sub(before.unwrap_or(0)));
            in_flight = in_flight.saturating_add(process.in_flight_ns);
            launched = launched.saturating_add(process.launched);
            seen.insert(key, process.busy_ns);
        }
        more = match self.unread {
            true => 0,
            false => more.min(now.saturating_sub(self.looked_at)),
        };
        self.unread = false;
        kernel = kernel.min(LONGEST_KERNEL);
        // More in flight than before: a lease's end is waited for accordingly.
        report.news = more > 0 || kernel != self.kernel_ns || in_flight > self.in_flight_ns;
        self.busy_ns = self.busy_ns.saturating_add(more);
        (self.kernel_ns, self.in_flight_ns, self.launched) = (kernel, in_flight, launched);
        self.looked_at = now;
        self.seen = seen;
        report
    }
}
