//! A launch that needs a look: it goes when the lease lets it, and waits until then with no lock held.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::time::Duration;

use divvy_charges::locked;
use divvy_ledger::attach::Attached;
use divvy_ledger::{Gate as Says, GateWord, monotonic_ns};
use rustix::thread::futex;

use super::admission::{self, Admission, Bounds};
use super::books::{Books, in_use};
use super::lane::COMMON;
use super::launch::Launch;
use super::mark::Plan;
use super::{Gate, NOTHING_SEEN, capture};

/// A beat older than this, in nanoseconds, is a dead agent's.
const STALE_NS: u64 = 500_000_000;
/// What may be in flight, in nanoseconds, while no agent is there.
const ALONE_NS: u64 = 2_000_000;
/// What is in flight is late when it has run for twice its time and this, in nanoseconds: its estimates are wrong, and
/// nothing is put on top of it.
const LATE_NS: u64 = 200_000;
/// After so many nanoseconds it is no longer waited for: it may never end, or not before what comes next.
const ENDLESS_NS: u64 = 50_000_000;
/// A wait shorter than this, in nanoseconds, is no sleep.
const SPIN_NS: u64 = 15_000;
/// Longest sleeps. At the gate, until the agent's beat is looked at again:
const AT_GATE: Duration = Duration::from_millis(100);
/// and for something to complete, in nanoseconds.
const FOR_PROGRESS_NS: u64 = 2_000_000;
/// Who waits for a completion has the gate thread look within so many nanoseconds.
const SOON_NS: u64 = 100_000;
/// Of settled kernels, one in so many looks is measured again, and each that lasts longer than this, in nanoseconds: one of them
/// that is taken for longer than it is keeps the device idle.
const MEASURED: u64 = 8;
const LONG_NS: u64 = 4_000_000;
/// Measurements or looks that the typical kernel is a mean of.
const TYPICAL: u64 = 16;

/// What a look at the gate finds.
enum Finds {
    /// The launch goes, uncounted.
    Free,
    /// It goes, counted.
    Goes(Passed),
    /// It may go in so many nanoseconds.
    Later(u64),
    /// When something completes.
    Completion,
    /// When the gate says something else.
    Shut,
}

/// A launch that passed.
pub(super) struct Passed {
    pub lane: usize,
    /// Its stream's later launches cannot be seen by another thread: it needs a mark of its own.
    pub own_mark: bool,
    /// Nothing was in flight: the gate thread has to be told that something is.
    pub first: bool,
}

/// A thread that waits, as the agent is told.
struct Waiting {
    gate: &'static Gate,
    attached: &'static Attached,
    since_ns: u64,
    rang: bool,
}

impl Waiting {
    fn begin(gate: &'static Gate, attached: &'static Attached) -> Self {
        gate.waiting.fetch_add(1, SeqCst);
        Self {
            gate,
            attached,
            since_ns: monotonic_ns(),
            rang: false,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.gate.waiting.fetch_sub(1, SeqCst) == 1 {
            let mut books = locked(&self.gate.books);
            self.gate.say(self.attached, &mut books);
        }
    }
}

impl Gate {
    /// Waits until the launch may go. `None` where nobody counts it.
    pub(super) fn pass(&'static self, attached: &'static Attached, launch: &Launch) -> Option<Passed> {
        let mut waiting = None;
        loop {
            let progress = self.progress.load(Acquire);
            let word = attached.gate();
            self.note(word);
            self.thread.start(self, attached, word);
            let now = monotonic_ns();
            let since = waiting.as_ref().map_or(now, |waiting: &Waiting| waiting.since_ns);
            let finds = match word.gate() {
                Says::Open => self.pass_open(attached, word),
                Says::Leased => self.look(attached, word, launch),
                Says::Closed => Finds::Shut,
            };
            let finds = match finds {
                Finds::Shut if is_alone(attached, now, since) => self.look_alone(attached, launch, now),
                other => {
                    if !matches!(other, Finds::Shut) {
                        locked(&self.books).bucket.rest();
                    }
                    other
                }
            };
            match finds {
                Finds::Free => return None,
                Finds::Goes(passed) => return Some(passed),
                Finds::Later(ns) if ns <= SPIN_NS => {
                    while monotonic_ns() < now + ns {
                        core::hint::spin_loop();
                    }
                    continue;
                }
                _ => {}
            }
            let waiting = waiting.get_or_insert_with(|| Waiting::begin(self, attached));
            match finds {
                Finds::Shut => {
                    self.ask_for_a_lease(attached, waiting);
                    let _word = attached.grant().wait_gate(word, AT_GATE);
                }
                Finds::Later(ns) => self.wait_for_progress(attached, progress, ns, ns),
                _ => self.wait_for_progress(attached, progress, FOR_PROGRESS_NS, SOON_NS),
            }
        }
    }

    /// Takes note of the gate's word. What an earlier one allowed no longer holds.
    pub(super) fn note(&self, word: GateWord) {
        if self.seen.load(Relaxed) == word.bits() || self.seen.load(Relaxed) == NOTHING_SEEN {
            return;
        }
        let mut books = locked(&self.books);
        if self.seen.load(Relaxed) != word.bits() {
            books.reclaim_all(&self.lanes);
            self.seen.store(NOTHING_SEEN, SeqCst);
        }
    }

    /// Whether a kernel is in flight that nobody has measured: until it is over, nothing is put on top of it.
    pub(super) fn has_stranger(&self, books: &Books) -> bool {
        in_use(&self.lanes).any(|place| {
            let bracket = &books.lanes[place].bracket;
            bracket.is_some_and(|bracket| {
                self.estimates().is_new(bracket.key) && books.outstanding_ns(&self.lanes, place) > 0
            })
        })
    }

    fn pass_open(&self, attached: &Attached, word: GateWord) -> Finds {
        let mut books = locked(&self.books);
        if attached.grant().gate() != word {
            return Finds::Later(0);
        }
        self.uncounted.store(true, SeqCst);
        books.busy = true;
        if let Some(line) = attached.slot().presence() {
            books.tally_all(&self.lanes);
            books.uncounted = 1;
            line.count(books.passed + books.uncounted, books.completed);
        }
        self.seen.store(word.bits(), SeqCst);
        Finds::Free
    }

    /// Whether a lease lets the launch go.
    fn look(&self, attached: &Attached, word: GateWord, launch: &Launch) -> Finds {
        let lease = attached.grant().lease();
        let bounds = Bounds {
            until_ns: lease.until_ns,
            in_flight_ns: lease.in_flight_ns,
        };
        self.admit(attached, Some(word), bounds, launch)
    }

    /// Whether the slice's share lets it go, where there is no agent.
    fn look_alone(&self, attached: &Attached, launch: &Launch, now: u64) -> Finds {
        let share = u64::from(attached.grant().fallback_share());
        let others = attached.slot().launching().max(1) as u64;
        let share = match share {
            0 => 0,
            share => (share / others).max(1),
        };
        let wait_ns = {
            let mut books = locked(&self.books);
            let busy_ns = books.busy_ns(now);
            books.bucket.wait_ns(now, busy_ns, share)
        };
        if wait_ns > 0 {
            // Not shorter than a sleep, or a slice with little would spin.
            return Finds::Later(wait_ns.max(SPIN_NS + 1));
        }
        let bounds = Bounds {
            until_ns: u64::MAX,
            in_flight_ns: ALONE_NS,
        };
        self.admit(attached, None, bounds, launch)
    }

    /// Whether these bounds let the launch go; it is charged, then. `word` is the lease's, which later launches can
    /// rely on.
    fn admit(&self, attached: &Attached, word: Option<GateWord>, bounds: Bounds, launch: &Launch) -> Finds {
        let (estimate_ns, unsettled) = self.estimates().guess(launch.key);
        let name = launch.stream.name();
        let context = launch.stream.context();
        let programmatic = launch.is_programmatic();
        let lanes = &self.lanes;
        let mut books = locked(&self.books);
        // With the books locked, or the agent could be told meanwhile that nothing is in flight; and the lease that was
        // read may be another than the word was of.
        if word.is_some_and(|word| attached.grant().gate() != word) {
            return Finds::Later(0);
        }
        let now = monotonic_ns();
        let lane = books.lane_of(lanes, name, || context);
        books.reclaim(lanes, lane);
        let mut flight = books.flight(lanes, now);
        let was_idle = flight.all_ns == 0;
        if !was_idle && flight.ran_ns < ENDLESS_NS && !capture::any() {
            let late = flight.ran_ns > 2 * flight.head_ns + LATE_NS;
            if late || self.has_stranger(&books) {
                books.wake_below_ns = u64::MAX;
                return Finds::Completion;
            }
        }
        let promised = Books::promised_ns(lanes, lane);
        flight.all_ns += promised;
        let late_ns = self.thread.ahead_ns();
        let mut answer = admission::admit(flight, bounds, estimate_ns, now, late_ns);
        if promised > 0 && !matches!(answer, Admission::Now { more_ns } if more_ns > 0) {
            books.reclaim_all(lanes);
            answer = admission::admit(books.flight(lanes, now), bounds, estimate_ns, now, late_ns);
        }
        let more_ns = match answer {
            Admission::Now { more_ns } => more_ns,
            Admission::In(ns) => {
                let remaining = books.flight(lanes, now).remaining_ns();
                books.alarm_ns = books.alarm_ns.min(now.saturating_add(ns));
                books.wake_below_ns = books.wake_below_ns.max(remaining.saturating_sub(ns));
                return Finds::Later(ns);
            }
            Admission::Late => {
                books.wake_below_ns = u64::MAX;
                return Finds::Completion;
            }
            Admission::Over if was_idle || now >= bounds.until_ns => return Finds::Shut,
            // What is in flight lasts to the lease's end: only where it does not, or the lease goes on, is there more to do.
            Admission::Over => return Finds::Completion,
        };
        books.looks += 1;
        books.lanes[lane].programmatic |= programmatic;
        let silent = books.lanes[lane].programmatic || capture::any();
        let own_mark = name.is_per_thread() || lane == COMMON;
        let again = books.looks.is_multiple_of(MEASURED) || estimate_ns >= LONG_NS;
        let measured = !silent && !own_mark && (unsettled || again);
        let plan = self.plan(
            &mut books,
            lane,
            context,
            launch.key,
            measured,
            silent || own_mark,
        );
        let more_ns = match word {
            Some(_) if !own_mark && !measured => more_ns.min(bounds.go_ns()),
            _ => 0,
        };
        books.set_running(true, now);
        books.give(lanes, lane, estimate_ns + more_ns);
        lanes[lane].charge(estimate_ns);
        books.typical_ns = match books.typical_ns {
            0 => estimate_ns,
            typical => (typical * (TYPICAL - 1) + estimate_ns) / TYPICAL,
        };
        books.active_ns = now;
        books.busy = true;
        if let Some(word) = word {
            self.seen.store(word.bits(), SeqCst);
        }
        self.report(attached, &mut books, now);
        drop(books);
        self.carry_out(plan, launch.stream);
        Finds::Goes(Passed {
            lane,
            own_mark: own_mark && !silent,
            first: was_idle,
        })
    }

    /// After the driver has taken the launch.
    pub(super) fn launched(&self, attached: &Attached, launch: &Launch, passed: Passed) {
        self.lanes[passed.lane].came_back();
        if passed.own_mark {
            let plan = {
                let mut books = locked(&self.books);
                self.plan_mark(&mut books, passed.lane, launch.stream.context())
            };
            self.carry_out(plan.map_or_else(Plan::default, Plan::mark), launch.stream);
        }
        // Not before the launch: the device waits for it, and a thread that wakes may take the launching one's place.
        if passed.first {
            self.thread.wake(attached);
        }
    }

    /// Tells the agent, once a wait, that somebody wants a lease.
    fn ask_for_a_lease(&self, attached: &Attached, waiting: &mut Waiting) {
        if waiting.rang {
            return;
        }
        waiting.rang = true;
        let mut books = locked(&self.books);
        let news = self.say(attached, &mut books);
        drop(books);
        if news {
            attached.slot().ring();
        }
    }

    /// Waits for `ns` at most, and has the gate thread look within `soon_ns`.
    fn wait_for_progress(&self, attached: &Attached, seen: u32, ns: u64, soon_ns: u64) {
        self.say(attached, &mut locked(&self.books));
        // The gate thread wakes us in time; should it not, we look ourselves.
        self.thread
            .wake_by(attached, monotonic_ns().saturating_add(soon_ns));
        let limit = ns.saturating_add(SPIN_NS).min(FOR_PROGRESS_NS);
        let limit = futex::Timespec {
            tv_sec: 0,
            tv_nsec: limit as _,
        };
        let _why = futex::wait(&self.progress, futex::Flags::PRIVATE, seen, Some(&limit));
    }

    /// Wakes who waits for something to complete.
    pub(super) fn make_progress(&self) {
        self.progress.fetch_add(1, AcqRel);
        if self.waiting.load(SeqCst) > 0 {
            // Nobody waiting is not an error.
            let _woken = futex::wake(&self.progress, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Says whether somebody waits and whether work may be in flight. Answers whether somebody waits who did not.
    pub(super) fn say(&self, attached: &Attached, books: &mut Books) -> bool {
        let wants = self.waiting.load(SeqCst) > 0;
        let news = wants && !books.wants;
        books.wants = wants;
        if let Some(line) = attached.slot().presence() {
            let _changed = line.set(wants, books.busy);
        }
        news
    }

    /// Says all there is to say.
    pub(super) fn report(&self, attached: &Attached, books: &mut Books, now: u64) {
        books.tally_all(&self.lanes);
        self.say(attached, books);
        if let Some(line) = attached.slot().presence() {
            let in_flight = books.flight(&self.lanes, now).all_ns;
            line.report(in_flight, books.busy_ns(now), books.typical_ns);
            line.count(books.passed + books.uncounted, books.completed.min(books.passed));
        }
    }
}

/// Whether the agent is dead, as somebody finds who has waited since `since`.
fn is_alone(attached: &Attached, now: u64, since: u64) -> bool {
    let beat = attached.grant().beat_ns();
    // Where it never beat, from the moment on that it is missed.
    let last = if beat == 0 { since } else { beat };
    now.saturating_sub(last) > STALE_NS
}
