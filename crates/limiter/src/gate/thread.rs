//! The gate thread: one for each account with a leasing agent, from the first launch on. It finds out which work is
//! over, tells the agent, and wakes waiting threads.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use core::time::Duration;

use divvy_abi::CU_STREAM_CAPTURE_MODE_RELAXED;
use divvy_charges::locked;
use divvy_ledger::attach::Attached;
use divvy_ledger::{Gate as Says, GateWord, monotonic_ns};
use rustix::thread::futex;

use super::in_flight::InFlight;
use super::{Gate, NOTHING_SEEN, capture};
use crate::below::forward;
use crate::{leave, log, threads};

/// While an unused lease is kept, the thread looks no more often than this, in nanoseconds.
const UNUSED_NS: u64 = 25_000;
/// How long to sleep on a word while no work is in flight: until the next check for a new grant, or, under a lease, in
/// case a launch's wake was missed.
const AT_REST: Duration = Duration::from_millis(500);
const IN_LEASE: Duration = Duration::from_millis(5);
/// This close to the end of a lease, in nanoseconds, the thread sleeps on the gate word: the lease may be renewed, or
/// closed early.
const NEAR_END_NS: u64 = 500_000;
/// If a sleeping thread wakes later than this, in nanoseconds, the whole machine stood still.
const LATEST_NS: u64 = 300_000;
/// The time from the report that no work is in flight to the next process's first kernel, in nanoseconds, within these
/// limits. Three sleeping threads have to wake and act, each as late as this one. A device runs one context after the
/// other anyway, so overlapping work waits there and not here.
const AHEAD_NS: (u64, u64) = (30_000, 400_000);
/// Behind a kernel longer than this, in nanoseconds, the device is not handed over early. Little is lost, and the
/// hardware's time slices might delay its end.
const PASSED_ON_NS: u64 = 2_000_000;
/// A kernel is late if it exceeds its estimate by this part and by so many nanoseconds, within which its end is
/// noticed.
const LATE_PART: u64 = 16;
const NOTICED_NS: u64 = 50_000;
/// Uncounted work cannot be waited for now: the thread tries again after so many nanoseconds.
const AGAIN_NS: u64 = 1_000_000;

/// The thread, as seen by threads that wake it.
#[derive(Debug)]
pub(super) struct Thread {
    started: AtomicBool,
    /// Futex word: raised by a thread that wakes it.
    kick: AtomicU32,
    sleeps: AtomicU8,
    /// When it plans to wake by itself.
    planned_ns: AtomicU64,
    /// How late its timed actions were recently, in nanoseconds.
    late_ns: AtomicU64,
}

const AWAKE: u8 = 0;
/// On its own futex word.
const DOZES: u8 = 1;
/// On the gate word.
const RESTS: u8 = 2;

enum Sleep {
    /// Until a time on the clock.
    Until(u64),
    /// Until the gate word changes.
    At(GateWord, Duration),
}

impl Thread {
    pub const fn new() -> Self {
        Self {
            started: AtomicBool::new(false),
            kick: AtomicU32::new(0),
            sleeps: AtomicU8::new(AWAKE),
            planned_ns: AtomicU64::new(u64::MAX),
            late_ns: AtomicU64::new(0),
        }
    }

    /// How early a report has to be made so that its consequences come in time, in nanoseconds.
    pub fn ahead_ns(&self) -> u64 {
        (3 * self.late_ns.load(Relaxed) + AHEAD_NS.0).min(AHEAD_NS.1)
    }

    /// It has done the action planned for `planned`, if that time had come.
    fn did(&self, planned: Option<u64>) {
        if let Some(late) = planned.and_then(|planned| monotonic_ns().checked_sub(planned)) {
            let mean = self.late_ns.load(Relaxed);
            self.late_ns.store((mean * 7 + late.min(LATEST_NS)) / 8, Relaxed);
        }
    }

    /// Starts the thread if an agent leases and the thread does not exist yet.
    pub fn start(&self, gate: &'static Gate, attached: &'static Attached, word: GateWord) {
        let leases = word != GateWord::default() || attached.grant().beat_ns() != 0;
        if !leases || self.started.load(SeqCst) || self.started.swap(true, SeqCst) {
            return;
        }
        leave::at_exit();
        if let Err(error) = threads::start("divvy-gate", move || gate.run(attached)) {
            log::line(format_args!("No gate thread: {error}"));
            self.started.store(false, SeqCst);
        }
    }

    /// Has the thread poll now, if it means to sleep on.
    pub fn wake(&self, attached: &Attached) {
        self.kick.fetch_add(1, SeqCst);
        match self.sleeps.load(SeqCst) {
            DOZES => {
                let _woken = futex::wake(&self.kick, futex::Flags::PRIVATE, 1);
            }
            RESTS => attached.grant().wake_gate(),
            _ => {}
        }
    }

    /// Has the thread poll at time `at`.
    pub fn wake_by(&self, attached: &Attached, at: u64) {
        if self.planned_ns.load(SeqCst) > at {
            self.wake(attached);
        }
    }

    /// Sleeps. Returns the planned time if the clock woke it.
    fn sleep(&self, attached: &Attached, seen: u32, sleep: &Sleep) -> Option<u64> {
        let mut timed = None;
        match *sleep {
            Sleep::Until(at) => {
                let ns = at.saturating_sub(monotonic_ns()).min(AT_REST.as_nanos() as u64);
                if ns == 0 {
                    return None;
                }
                let limit = futex::Timespec {
                    tv_sec: 0,
                    tv_nsec: ns as _,
                };
                self.planned_ns.store(at, SeqCst);
                self.sleeps.store(DOZES, SeqCst);
                let why = futex::wait(&self.kick, futex::Flags::PRIVATE, seen, Some(&limit));
                timed = (why == Err(rustix::io::Errno::TIMEDOUT)).then_some(at);
            }
            Sleep::At(word, limit) => {
                let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                let planned = monotonic_ns().saturating_add(limit_ns);
                self.planned_ns.store(planned, SeqCst);
                self.sleeps.store(RESTS, SeqCst);
                if self.kick.load(SeqCst) == seen {
                    let _word = attached.grant().wait_gate(word, limit);
                }
            }
        }
        self.sleeps.store(AWAKE, SeqCst);
        self.planned_ns.store(0, SeqCst);
        timed
    }
}

impl Gate {
    fn run(&self, attached: &'static Attached) {
        // SAFETY: concerns this thread alone: its short sleeps end in time.
        let _precise = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
        let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a valid in- and out-parameter.
        let _relaxed = unsafe { forward::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        let mut timed = None;
        while !leave::is_exiting() && attached.is_ours() {
            let seen = self.thread.kick.load(SeqCst);
            let sleep = self.step(attached);
            self.thread.did(timed);
            timed = self.thread.sleep(attached, seen, &sleep);
        }
    }

    /// Polls everything once. Returns until when there is nothing to do.
    fn step(&self, attached: &Attached) -> Sleep {
        let word = attached.gate();
        self.note(word);
        self.note_clock(attached.grant().clock_mhz());
        if word.gate() != Says::Open && self.uncounted.load(SeqCst) && !self.settle() {
            return Sleep::Until(monotonic_ns() + AGAIN_NS);
        }
        let over = self.watch();
        let now = monotonic_ns();
        let until_ns = match word.gate() {
            Says::Open => u64::MAX,
            Says::Closed => 0,
            Says::Leased => attached.grant().lease().until_ns,
        };
        let mut in_flight = locked(&self.in_flight);
        // The lease continues, so threads that waited for its end need not wait.
        let goes_on = word.gate() == Says::Leased && in_flight.acknowledged != Some(word.bits());
        let enough = over && in_flight.flight(&self.budgets, now).remaining_ns() <= in_flight.wake_below_ns;
        if goes_on || enough || in_flight.alarm_ns <= now {
            (in_flight.alarm_ns, in_flight.wake_below_ns) = (u64::MAX, 0);
            self.make_progress();
        }
        if now >= until_ns && self.seen.load(SeqCst) != NOTHING_SEEN {
            self.seen.store(NOTHING_SEEN, SeqCst);
            in_flight.reclaim_all(&self.budgets);
        }
        if !in_flight.is_drained(&self.budgets) {
            if now < until_ns {
                self.acknowledge(attached, &mut in_flight, word);
            }
            let ahead = self.thread.ahead_ns();
            let ends_in = self.ends_in(&in_flight, now);
            let mut passed_on = false;
            if let (Says::Closed, Some(ns), true) =
                (word.gate(), ends_in.filter(|ns| *ns <= ahead), in_flight.busy)
            {
                in_flight.pass_on(&self.budgets, now, ns);
                in_flight.busy = false;
                self.acknowledge(attached, &mut in_flight, word);
                passed_on = true;
            }
            let told = !in_flight.busy;
            self.report(attached, &mut in_flight, now);
            drop(in_flight);
            if passed_on {
                attached.slot().ring();
            }
            let mut next = self.next_look(now);
            if let (Some(ns), false) = (ends_in, told) {
                next = next.min(now + ns.saturating_sub(ahead).max(AHEAD_NS.0));
            }
            let near_ns = until_ns.saturating_sub(NEAR_END_NS);
            let near = now >= near_ns;
            if now < until_ns {
                next = next.min(if near { until_ns } else { near_ns });
            }
            return match next.checked_sub(now) {
                Some(ns) if near => Sleep::At(word, Duration::from_nanos(ns)),
                _ => Sleep::Until(next),
            };
        }
        in_flight.set_drained(now);
        if now >= until_ns {
            let released = core::mem::take(&mut in_flight.busy);
            self.report(attached, &mut in_flight, now);
            let news = self.acknowledge(attached, &mut in_flight, word);
            drop(in_flight);
            if released || news {
                attached.slot().ring();
            }
            return Sleep::At(word, AT_REST);
        }
        self.acknowledge(attached, &mut in_flight, word);
        self.report(attached, &mut in_flight, now);
        if word.gate() == Says::Open {
            return Sleep::At(word, AT_REST);
        }
        let unused_at = in_flight.active_ns.saturating_add(in_flight.pauses.idle_ns());
        if self.waiting.load(SeqCst) > 0 || now < unused_at {
            return Sleep::Until(unused_at.max(now + UNUSED_NS).min(until_ns));
        }
        in_flight.reclaim_all(&self.budgets);
        if !in_flight.is_drained(&self.budgets) {
            return Sleep::Until(now);
        }
        let released = core::mem::take(&mut in_flight.busy);
        self.report(attached, &mut in_flight, now);
        drop(in_flight);
        if released {
            attached.slot().ring();
        }
        Sleep::At(word, IN_LEASE.min(Duration::from_nanos(until_ns - now)))
    }

    /// In how many nanoseconds the work in flight should end. `None` if that is too uncertain to rely on, or not worth
    /// using.
    fn ends_in(&self, in_flight: &InFlight, now: u64) -> Option<u64> {
        let flight = in_flight.flight(&self.budgets, now);
        let late = flight.ran_ns > flight.head_ns + flight.head_ns / LATE_PART + NOTICED_NS;
        let entering = in_flight.is_entering(&self.budgets);
        let long = flight.head_ns > PASSED_ON_NS;
        let known = in_flight.trusts()
            && !late
            && !long
            && !entering
            && !capture::any()
            && !self.has_unmeasured(in_flight);
        known.then(|| flight.remaining_ns())
    }

    /// Acknowledges the agent's word. Returns true if the word is new.
    fn acknowledge(&self, attached: &Attached, in_flight: &mut InFlight, word: GateWord) -> bool {
        if in_flight.acknowledged == Some(word.bits()) {
            return false;
        }
        in_flight.acknowledged = Some(word.bits());
        if let Some(line) = attached.slot().activity() {
            line.acknowledge(word);
        }
        true
    }
}
