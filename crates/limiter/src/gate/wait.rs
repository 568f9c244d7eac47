//! The slow path of a launch: it goes when the lease allows it, and waits until then without locks.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::time::Duration;

use divvy_charges::locked;
use divvy_ledger::attach::Attached;
use divvy_ledger::{Gate as Says, GateWord, monotonic_ns};
use rustix::thread::futex;

use super::admission::{self, Admission, Bounds, Flight};
use super::budget::{COMMON, LONGEST_NS};
use super::estimates::Key;
use super::in_flight::{InFlight, in_use};
use super::launch::Launch;
use super::mark::Plan;
use super::ranks::Rank;
use super::{Gate, NOTHING_SEEN, capture};

/// If the last heartbeat is older than this, in nanoseconds, the agent is dead.
const STALE_NS: u64 = 500_000_000;
/// How much work may be in flight without an agent, in nanoseconds.
const ALONE_NS: u64 = 2_000_000;
/// Work in flight is late when it has run for twice its time and this, in nanoseconds. Its estimates are wrong, and no
/// work is queued behind it.
const LATE_NS: u64 = 200_000;
/// After so many nanoseconds the gate stops waiting for it: it may never end, or not before the next work. Only a
/// repetition of the launch that runs still waits: it lasts as long.
const ENDLESS_NS: u64 = 50_000_000;
/// A wait shorter than this, in nanoseconds, does not sleep.
const SPIN_NS: u64 = 15_000;
/// Longest sleeps: at the gate, until the agent's heartbeat is checked again;
const AT_GATE: Duration = Duration::from_millis(100);
/// and for a completion, in nanoseconds.
const FOR_PROGRESS_NS: u64 = 2_000_000;
/// A thread that waits for a completion has the gate thread poll within so many nanoseconds.
const SOON_NS: u64 = 100_000;
/// Of kernels with a settled estimate, one in so many slow paths is measured again. So is each that lasts longer than
/// this, in nanoseconds: a single overestimate of such a kernel leaves the device idle.
const MEASURED: u64 = 8;
const LONG_NS: u64 = 4_000_000;
/// How many measurements or slow paths the mean of the typical kernel covers.
const TYPICAL: u64 = 16;

/// The decision on a launch at the gate.
enum Finds {
    /// The launch goes, uncounted.
    Free,
    /// The launch goes, counted.
    Goes(Passed),
    /// The launch may go in so many nanoseconds.
    Later(u64),
    /// The launch may go after the next completion.
    Completion,
    /// The launch may go when the gate word changes.
    Shut,
}

/// A launch that passed.
pub(super) struct Passed {
    pub index: usize,
    /// Another thread cannot see later launches of its stream, so it needs a mark of its own.
    pub own_mark: bool,
    /// No work was in flight: the gate thread has to be told that there is some now.
    pub first: bool,
}

/// How a launch came to the gate.
#[derive(Clone, Copy, Debug, Default)]
struct Came {
    waited_ns: u64,
    /// If it is long and others wait.
    rank: Option<Rank>,
}

/// A waiting thread, as reported to the agent.
struct Waiting {
    gate: &'static Gate,
    attached: &'static Attached,
    since_ns: u64,
    rang: bool,
    /// If its launch is long.
    rank: Option<Rank>,
}

impl Waiting {
    fn begin(gate: &'static Gate, attached: &'static Attached, launch: &Launch) -> Self {
        let priority = gate.priority_of_long(launch);
        gate.waiting.fetch_add(1, SeqCst);
        Self {
            gate,
            attached,
            since_ns: monotonic_ns(),
            rang: false,
            rank: priority.map(|priority| locked(&gate.in_flight).ranks.enter(priority)),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(rank) = self.rank {
            locked(&self.gate.in_flight).ranks.leave(rank);
        }
        if self.gate.waiting.fetch_sub(1, SeqCst) == 1 {
            let mut in_flight = locked(&self.gate.in_flight);
            self.gate.say(self.attached, &mut in_flight);
        }
    }
}

impl Gate {
    /// Waits until the launch may go. Returns `None` if it is not counted.
    pub(super) fn pass(&'static self, attached: &'static Attached, launch: &Launch) -> Option<Passed> {
        let mut waiting = None;
        loop {
            let progress = self.progress.load(Acquire);
            let word = attached.gate();
            self.note(word);
            self.thread.start(self, attached, word);
            let now = monotonic_ns();
            let since = waiting.as_ref().map_or(now, |waiting: &Waiting| waiting.since_ns);
            let came = Came {
                waited_ns: now.saturating_sub(since),
                rank: match &waiting {
                    Some(waiting) => waiting.rank,
                    None => self.rank(launch),
                },
            };
            let finds = match word.gate() {
                Says::Open => self.pass_open(attached, word),
                Says::Leased => self.look(attached, word, launch, came),
                Says::Closed => Finds::Shut,
            };
            let finds = match finds {
                Finds::Shut if is_alone(attached, now, since) => self.look_alone(attached, launch, now),
                other => {
                    if !matches!(other, Finds::Shut) {
                        locked(&self.in_flight).bucket.rest();
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
            let waiting = waiting.get_or_insert_with(|| Waiting::begin(self, attached, launch));
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

    /// Takes note of the gate word. Permissions by an earlier word no longer hold.
    pub(super) fn note(&self, word: GateWord) {
        if self.seen.load(Relaxed) == word.bits() || self.seen.load(Relaxed) == NOTHING_SEEN {
            return;
        }
        let mut in_flight = locked(&self.in_flight);
        if self.seen.load(Relaxed) != word.bits() {
            in_flight.reclaim_all(&self.budgets);
            self.seen.store(NOTHING_SEEN, SeqCst);
        }
    }

    /// Whether a kernel without a measurement is in flight: until it is over, no work is queued behind it.
    pub(super) fn has_unmeasured(&self, in_flight: &InFlight) -> bool {
        in_use(&self.budgets).any(|index| {
            let bracket = &in_flight.streams[index].bracket;
            bracket.is_some_and(|bracket| {
                self.estimates().is_new(bracket.key) && in_flight.outstanding_ns(&self.budgets, index) > 0
            })
        })
    }

    /// How long, in nanoseconds, the launch that runs has taken so far, if it is one of this key in the stream at `index`
    /// and should be over: another one will take no less. 0 otherwise, and after the longest time that is waited for:
    /// the kernel may wait for the program, and the program for this launch.
    fn ran_so_far_ns(&self, in_flight: &InFlight, index: usize, key: Key, flight: Flight) -> u64 {
        if !(ENDLESS_NS..LONGEST_NS).contains(&flight.ran_ns) {
            return 0;
        }
        let running = match in_flight.marks.front() {
            Some(mark) if mark.index == index => mark.ends.map(|(bracket, _)| bracket.key),
            Some(_) => None,
            None => in_flight.streams[index]
                .bracket
                .filter(|_| in_flight.outstanding_ns(&self.budgets, index) > 0)
                .map(|bracket| bracket.key),
        };
        match running == Some(key) {
            true => flight.ran_ns,
            false => 0,
        }
    }

    fn pass_open(&self, attached: &Attached, word: GateWord) -> Finds {
        let mut in_flight = locked(&self.in_flight);
        if attached.grant().gate() != word {
            return Finds::Later(0);
        }
        self.uncounted.store(true, SeqCst);
        in_flight.busy = true;
        if let Some(line) = attached.slot().activity() {
            in_flight.tally_all(&self.budgets);
            in_flight.uncounted = 1;
            line.count(in_flight.passed + in_flight.uncounted, in_flight.completed);
        }
        self.seen.store(word.bits(), SeqCst);
        Finds::Free
    }

    /// The priority of a launch that is long, or was of late.
    fn priority_of_long(&self, launch: &Launch) -> Option<i32> {
        let estimate_ns = self.estimates().settled(launch.key).unwrap_or(0);
        admission::is_long(self.alike_ns(launch.key, estimate_ns)).then(|| launch.stream.priority())
    }

    /// The rank of a launch that comes while others wait; without those it has none.
    fn rank(&self, launch: &Launch) -> Option<Rank> {
        if self.waiting.load(SeqCst) == 0 {
            return None;
        }
        let priority = self.priority_of_long(launch)?;
        Some(locked(&self.in_flight).ranks.of(priority))
    }

    /// How long a launch may take, in nanoseconds: a function that was long of late may be long again.
    fn alike_ns(&self, key: Key, estimate_ns: u64) -> u64 {
        match self.estimates().was_long(key) {
            true => estimate_ns.max(admission::LONG_NS),
            false => estimate_ns,
        }
    }

    /// Whether a lease allows the launch.
    fn look(&self, attached: &Attached, word: GateWord, launch: &Launch, came: Came) -> Finds {
        let lease = attached.grant().lease();
        let bounds = Bounds {
            until_ns: lease.until_ns,
            in_flight_ns: lease.in_flight_ns,
        };
        self.admit(attached, Some(word), bounds, launch, came)
    }

    /// Whether the slice's share allows the launch, if there is no agent.
    fn look_alone(&self, attached: &Attached, launch: &Launch, now: u64) -> Finds {
        let share = u64::from(attached.grant().fallback_share());
        let others = attached.slot().launching().max(1) as u64;
        let share = match share {
            0 => 0,
            share => (share / others).max(1),
        };
        let wait_ns = {
            let mut in_flight = locked(&self.in_flight);
            let busy_ns = in_flight.busy_ns(now);
            in_flight.bucket.wait_ns(now, busy_ns, share)
        };
        if wait_ns > 0 {
            // Not shorter than a sleep, or a slice with a small share would spin.
            return Finds::Later(wait_ns.max(SPIN_NS + 1));
        }
        let bounds = Bounds {
            until_ns: u64::MAX,
            in_flight_ns: ALONE_NS,
        };
        self.admit(attached, None, bounds, launch, Came::default())
    }

    /// Whether these bounds allow the launch; if so, it is charged. `word` is the lease's, and later launches can rely
    /// on it.
    fn admit(
        &self,
        attached: &Attached,
        word: Option<GateWord>,
        bounds: Bounds,
        launch: &Launch,
        came: Came,
    ) -> Finds {
        let (estimate_ns, unsettled) = self.estimates().guess(launch.key);
        let name = launch.stream.name();
        let context = launch.stream.context();
        let programmatic = launch.is_programmatic();
        let budgets = &self.budgets;
        let mut in_flight = locked(&self.in_flight);
        // The state stays locked here. Otherwise the agent could be told meanwhile that no work is in flight, and the
        // lease that was read may not be the word's lease.
        if word.is_some_and(|word| attached.grant().gate() != word) {
            return Finds::Later(0);
        }
        let now = monotonic_ns();
        let index = in_flight.index_of(budgets, name, || context);
        in_flight.reclaim(budgets, index);
        let whole = in_flight.flight(budgets, now);
        let estimate_ns = estimate_ns.max(self.ran_so_far_ns(&in_flight, index, launch.key, whole));
        let alike_ns = self.alike_ns(launch.key, estimate_ns);
        let mut flight = match admission::is_long(alike_ns) {
            true => whole,
            false => in_flight.flight_beside(budgets, now, index),
        };
        let was_idle = flight.all_ns == 0;
        if !was_idle && flight.ran_ns < ENDLESS_NS && !capture::any() {
            let late = flight.ran_ns > 2 * flight.head_ns + LATE_NS;
            if late || self.has_unmeasured(&in_flight) {
                in_flight.wake_below_ns = u64::MAX;
                return Finds::Completion;
            }
        }
        let promised = InFlight::promised_ns(budgets, index);
        flight.all_ns += promised;
        let late_ns = self.thread.ahead_ns();
        let mut answer = admission::admit(flight, bounds, alike_ns, now, late_ns);
        if promised > 0 && !matches!(answer, Admission::Now { more_ns } if more_ns > 0) {
            in_flight.reclaim_all(budgets);
            flight.all_ns -= promised;
            answer = admission::admit(flight, bounds, alike_ns, now, late_ns);
        }
        let is_first = in_flight.outstanding_ns(budgets, index) == 0;
        if is_first && admission::has_waited(flight, bounds, alike_ns, came.waited_ns) && answer.is_later() {
            answer = Admission::Now { more_ns: 0 };
        }
        let gives_way = came.rank.is_some_and(|rank| in_flight.ranks.gives_way(rank));
        let more_ns = match answer {
            Admission::Now { .. } if gives_way => {
                in_flight.wake_below_ns = u64::MAX;
                return Finds::Completion;
            }
            Admission::Now { more_ns } => more_ns,
            Admission::In(ns) => {
                let remaining = in_flight.flight(budgets, now).remaining_ns();
                in_flight.alarm_ns = in_flight.alarm_ns.min(now.saturating_add(ns));
                in_flight.wake_below_ns = in_flight.wake_below_ns.max(remaining.saturating_sub(ns));
                return Finds::Later(ns);
            }
            Admission::Late => {
                in_flight.wake_below_ns = u64::MAX;
                return Finds::Completion;
            }
            Admission::Over if was_idle || now >= bounds.until_ns => return Finds::Shut,
            // The work in flight lasts to the lease's end. There is more to do only if it does not, or if the lease
            // continues.
            Admission::Over => return Finds::Completion,
        };
        if admission::is_long(alike_ns) {
            in_flight.ranks.went();
        }
        in_flight.looks += 1;
        in_flight.streams[index].programmatic |= programmatic;
        let silent = in_flight.streams[index].programmatic || capture::any();
        let own_mark = name.is_per_thread() || index == COMMON;
        let again = in_flight.looks.is_multiple_of(MEASURED) || alike_ns >= LONG_NS;
        let measured = !silent && !own_mark && (unsettled || again);
        let plan = self.plan(
            &mut in_flight,
            index,
            context,
            launch.key,
            measured,
            silent || own_mark,
        );
        let more_ns = match word {
            Some(_) if !own_mark && !measured => more_ns.min(bounds.go_ns()),
            _ => 0,
        };
        if was_idle {
            // What it waited for the gate is no pause of its own.
            let came_ns = now.saturating_sub(came.waited_ns);
            let pause_ns = came_ns.saturating_sub(in_flight.active_ns);
            in_flight.pauses.note(pause_ns);
        }
        in_flight.set_running(true, now);
        in_flight.give(budgets, index, estimate_ns + more_ns);
        budgets[index].charge(estimate_ns);
        in_flight.typical_ns = match in_flight.typical_ns {
            0 => estimate_ns,
            typical => (typical * (TYPICAL - 1) + estimate_ns) / TYPICAL,
        };
        in_flight.active_ns = now;
        in_flight.busy = true;
        if let Some(word) = word {
            self.seen.store(word.bits(), SeqCst);
        }
        self.report(attached, &mut in_flight, now);
        drop(in_flight);
        self.carry_out(plan, launch.stream);
        Finds::Goes(Passed {
            index,
            own_mark: own_mark && !silent,
            first: was_idle,
        })
    }

    /// After the driver has taken the launch.
    pub(super) fn launched(&self, attached: &Attached, launch: &Launch, passed: Passed) {
        self.budgets[passed.index].came_back();
        if passed.own_mark {
            let plan = {
                let mut in_flight = locked(&self.in_flight);
                self.plan_mark(&mut in_flight, passed.index, launch.stream.context())
            };
            self.carry_out(plan.map_or_else(Plan::default, Plan::mark), launch.stream);
        }
        // Not before the launch: the device waits for it, and a thread that wakes may take the launching thread's
        // processor.
        if passed.first {
            self.thread.wake(attached);
        }
    }

    /// Tells the agent, once per wait, that a thread needs a lease.
    fn ask_for_a_lease(&self, attached: &Attached, waiting: &mut Waiting) {
        if waiting.rang {
            return;
        }
        waiting.rang = true;
        let mut in_flight = locked(&self.in_flight);
        let news = self.say(attached, &mut in_flight);
        drop(in_flight);
        if news {
            attached.slot().ring();
        }
    }

    /// Waits for `ns` at most, and has the gate thread poll within `soon_ns`.
    fn wait_for_progress(&self, attached: &Attached, seen: u32, ns: u64, soon_ns: u64) {
        self.say(attached, &mut locked(&self.in_flight));
        // The gate thread wakes this thread in time; if it does not, this thread polls itself.
        self.thread
            .wake_by(attached, monotonic_ns().saturating_add(soon_ns));
        let limit = ns.saturating_add(SPIN_NS).min(FOR_PROGRESS_NS);
        let limit = futex::Timespec {
            tv_sec: 0,
            tv_nsec: limit as _,
        };
        let _why = futex::wait(&self.progress, futex::Flags::PRIVATE, seen, Some(&limit));
    }

    /// Wakes the threads that wait for a completion.
    pub(super) fn make_progress(&self) {
        self.progress.fetch_add(1, AcqRel);
        if self.waiting.load(SeqCst) > 0 {
            // It is not an error that no thread waits.
            let _woken = futex::wake(&self.progress, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// Reports whether a thread waits and whether work may be in flight. Returns true if a thread waits now and none
    /// did before.
    pub(super) fn say(&self, attached: &Attached, in_flight: &mut InFlight) -> bool {
        let wants = self.waiting.load(SeqCst) > 0;
        let news = wants && !in_flight.wants;
        in_flight.wants = wants;
        if let Some(line) = attached.slot().activity() {
            let _changed = line.set(wants, in_flight.busy);
        }
        news
    }

    /// Reports all figures.
    pub(super) fn report(&self, attached: &Attached, in_flight: &mut InFlight, now: u64) {
        in_flight.tally_all(&self.budgets);
        self.say(attached, in_flight);
        if let Some(line) = attached.slot().activity() {
            let in_flight_ns = in_flight.flight(&self.budgets, now).all_ns;
            line.report(in_flight_ns, in_flight.busy_ns(now), in_flight.typical_ns);
            line.count(
                in_flight.passed + in_flight.uncounted,
                in_flight.completed.min(in_flight.passed),
            );
        }
    }
}

/// Whether the agent is dead, in the view of a thread that has waited since `since`.
fn is_alone(attached: &Attached, now: u64, since: u64) -> bool {
    // A new agent has come, and another thread fetches its word: this launch waits for that, but not for ever.
    if attached.is_following() && now.saturating_sub(since) < STALE_NS {
        return false;
    }
    let beat = attached.grant().beat_ns();
    // If there never was a heartbeat, the time counts from the moment when it was first missed.
    let last = if beat == 0 { since } else { beat };
    now.saturating_sub(last) > STALE_NS
}
