//! Each process's activity record in a slice, and the doorbell by which it calls the agent.
//!
//! All of it lies in a page that tenants can write: any of them may write any value. The arbiter believes a tenant's
//! word only where that costs the tenant itself. docs/adr/0023.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use rustix::thread::futex;

use crate::layout::{ActivityLine, LedgerPage};
use crate::lease::GateWord;

/// A thread of the process waits at the gate.
const WANTS: u32 = 1;
/// The process has work in flight, or may have.
const BUSY: u32 = 2;

/// A process's activity record: what it reports about its use of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Its slot in the ledger.
    pub slot: usize,
    /// When the slot was claimed: nanoseconds since the Unix epoch. Another time means another process.
    pub claimed_at_ns: u64,
    /// Its process id in the page server's pid namespace, as it reports it; 0 if it is not known.
    pub host_pid: u32,
    /// A thread waits at the gate.
    pub wants: bool,
    /// Work is in flight, or may be. It is not maintained while the gate is open.
    pub busy: bool,
    /// The newest gate word that it has acknowledged: from then on `busy` refers to that word.
    pub acknowledged: GateWord,
    /// Nanoseconds of work in flight, by its estimate.
    pub in_flight_ns: u64,
    /// Nanoseconds for which its counted work has kept the device busy.
    pub busy_ns: u64,
    /// The length of its typical kernel in nanoseconds; 0 if it is not known.
    pub kernel_ns: u64,
    /// Launches that passed the gate while they were counted, and one for all launches through an open gate. 0: it
    /// never launched.
    pub launched: u64,
    /// How many of the counted launches are known to have completed.
    pub completed: u64,
}

impl ActivityLine {
    /// Sets whether a thread waits at the gate and whether work may be in flight. Returns true if that is a change.
    pub fn set(&self, wants: bool, busy: bool) -> bool {
        let state = if wants { WANTS } else { 0 } | if busy { BUSY } else { 0 };
        self.state.swap(state, Release) != state
    }

    /// Acknowledges `word`: what this process wrote before is true from then on.
    pub fn acknowledge(&self, word: GateWord) {
        self.acknowledged.store(word.bits(), Release);
    }

    /// Reports figures, each as the present total.
    pub fn report(&self, in_flight_ns: u64, busy_ns: u64, kernel_ns: u64) {
        self.in_flight_ns.store(in_flight_ns, Relaxed);
        self.busy_ns.store(busy_ns, Relaxed);
        self.kernel_ns.store(kernel_ns, Relaxed);
    }

    /// Reports the total numbers of launches that passed and of those known to have completed.
    pub fn count(&self, launched: u64, completed: u64) {
        self.launched.store(launched, Relaxed);
        self.completed.store(completed, Relaxed);
    }

    pub(crate) fn clear(&self) {
        self.set(false, false);
        self.acknowledge(GateWord::default());
        self.report(0, 0, 0);
        self.count(0, 0);
    }
}

impl LedgerPage {
    /// Calls the agent, because something has changed that it should look at.
    pub(crate) fn ring(&self) {
        self.doorbell.rings.fetch_add(1, Release);
        // It is not an error that no thread waits.
        let _woken = futex::wake(&self.doorbell.rings, futex::Flags::empty(), i32::MAX as u32);
    }

    pub(crate) fn rings(&self) -> u32 {
        self.doorbell.rings.load(Acquire)
    }

    pub(crate) fn wait_doorbell(&self, seen: u32, limit: Duration) -> u32 {
        let limit = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()) as _,
        };
        let _why = futex::wait(&self.doorbell.rings, futex::Flags::empty(), seen, Some(&limit));
        self.rings()
    }

    /// The activity records of the processes in the ledger, including dead ones that are not yet reaped.
    pub(crate) fn activities(&self) -> impl Iterator<Item = Activity> + '_ {
        (0..self.slots_in_use()).filter_map(|slot| {
            let place = &self.slots.0[slot];
            if place.claimed.load(Acquire) != crate::shared::claim::TAKEN {
                return None;
            }
            let line = &self.activities.0[slot];
            let state = line.state.load(Acquire);
            Some(Activity {
                slot,
                claimed_at_ns: place.claimed_at_ns.load(Relaxed),
                host_pid: place.host_pid.load(Relaxed),
                wants: state & WANTS != 0,
                busy: state & BUSY != 0,
                acknowledged: GateWord::from_bits(line.acknowledged.load(Relaxed)),
                in_flight_ns: line.in_flight_ns.load(Relaxed),
                busy_ns: line.busy_ns.load(Relaxed),
                kernel_ns: line.kernel_ns.load(Relaxed),
                launched: line.launched.load(Relaxed),
                completed: line.completed.load(Relaxed),
            })
        })
    }
}
