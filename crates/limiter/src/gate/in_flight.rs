//! The in-flight table: which work the gate believes to be in flight, and which of it is known to be over. It stands
//! under one lock, which no thread holds while it waits or calls the driver.

use std::collections::VecDeque;

use super::admission::{self, Flight};
use super::bucket::Bucket;
use super::budget::{self, STREAMS, StreamBudget};
use super::estimates::Key;
use super::pauses::Pauses;
use super::ranks::Ranks;
use super::slept::Slept;
use super::stream::Name;

/// The state of one stream. Amounts of work are nanoseconds since its budget was assigned, so that a completion that is
/// reported late or twice does no harm.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    pub context: usize,
    /// Total credit granted so far.
    granted_ns: u64,
    /// Work that is known to be over.
    completed_ns: u64,
    /// Launched before the newest mark.
    pub marked_ns: u64,
    pub marks: u32,
    /// The same as counts: reported launches, and those known to be over.
    told: u64,
    over: u64,
    /// A launch overlapped the kernel before it: no event may come between two kernels here.
    pub programmatic: bool,
    /// Its stream is destroyed, and its work is still in flight.
    pub sealed: bool,
    pub bracket: Option<Bracket>,
}

/// A launch that is being measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bracket {
    /// Our event before it.
    pub event: usize,
    pub key: Key,
    pub since_ns: u64,
    /// The stream's count of launches before it.
    pub at: u64,
    /// The stream was idle before it, so the measurement includes the launch's way to the device.
    pub dry: bool,
    /// For how long the machine had been suspended when it began.
    pub slept: Slept,
}

/// An event of ours in a stream, and the work that is over once the event is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub event: usize,
    pub context: usize,
    /// The stream's position in the table.
    pub index: usize,
    /// The stream's work up to this mark, and how much of it is new since the previous mark.
    pub upto_ns: u64,
    pub ns: u64,
    pub launches: u64,
    /// It ends a measurement, and whether the stream was idle when it was recorded.
    pub ends: Option<(Bracket, bool)>,
    /// A measurement begins at this mark, so the event is still needed.
    pub begins: bool,
}

/// The in-flight table of one gate.
#[derive(Debug)]
pub(super) struct InFlight {
    pub streams: [StreamState; STREAMS],
    pub marks: VecDeque<Mark>,
    /// Events to reuse, by context.
    spare: Vec<(usize, usize)>,
    /// Since when the first of the work in flight runs.
    pub began_ns: u64,
    /// When work in flight was last seen not to be over.
    pub running_ns: u64,
    busy_ns: u64,
    busy_since: Option<u64>,
    /// The device was handed over before the end of the work in flight: when that was, and when the work should have
    /// ended.
    passed_on: Option<(u64, u64)>,
    /// How often the device has to run idle before estimates are trusted again.
    distrust: u32,
    /// Counted launches, or 1 for all uncounted ones; and how many are known to be over.
    pub passed: u64,
    pub uncounted: u64,
    pub completed: u64,
    /// Launches that took the slow path.
    pub looks: u64,
    pub typical_ns: u64,
    /// When work was last launched or found completed.
    pub active_ns: u64,
    pub pauses: Pauses,
    pub ranks: Ranks,
    /// When a thread at the gate wants to wake.
    pub alarm_ns: u64,
    /// Or as soon as the work in flight has fallen to this, in nanoseconds.
    pub wake_below_ns: u64,
    pub wants: bool,
    pub busy: bool,
    pub acknowledged: Option<u32>,
    pub bucket: Bucket,
}

/// Work that ends at most this many nanoseconds late was only delayed by the hardware's time slices.
const OUTSTAYED_NS: u64 = 3_000_000;
/// After a bad estimate, how many times the device must run idle before early hand-over is allowed again.
const DISTRUST: u32 = 256;

/// Events that are kept for reuse.
const SPARE: usize = 4096;

impl InFlight {
    pub fn new() -> Self {
        Self {
            streams: core::array::from_fn(|_| StreamState::default()),
            marks: VecDeque::new(),
            spare: Vec::new(),
            began_ns: 0,
            running_ns: 0,
            busy_ns: 0,
            busy_since: None,
            passed_on: None,
            distrust: 0,
            passed: 0,
            uncounted: 0,
            looks: 0,
            completed: 0,
            typical_ns: 0,
            active_ns: 0,
            pauses: Pauses::default(),
            ranks: Ranks::default(),
            alarm_ns: u64::MAX,
            wake_below_ns: 0,
            wants: false,
            busy: false,
            acknowledged: None,
            bucket: Bucket::default(),
        }
    }

    /// The position of a stream: its present one, a new one, or the common one.
    pub fn index_of(
        &mut self,
        budgets: &[StreamBudget; STREAMS],
        name: Name,
        context: impl FnOnce() -> usize,
    ) -> usize {
        if let Some(known) = budget::find(budgets, name) {
            return known;
        }
        let unused = |index: usize| self.is_unused(budgets, index);
        let Some(index) = budget::room(budgets, name, unused) else {
            return budget::COMMON;
        };
        self.vacate(budgets, index);
        self.streams[index].context = context();
        budgets[index].assign(name);
        index
    }

    fn is_unused(&self, budgets: &[StreamBudget; STREAMS], index: usize) -> bool {
        let state = &self.streams[index];
        self.outstanding_ns(budgets, index) == 0
            && budgets[index].launches().1 == 0
            && state.marks == 0
            && state.bracket.is_none()
    }

    /// Frees a position: any work that its stream had in flight is forgotten.
    pub fn vacate(&mut self, budgets: &[StreamBudget; STREAMS], index: usize) {
        self.tally(budgets, index);
        self.drop_bracket(index);
        budgets[index].vacate();
        let (now, _) = budgets[index].launches();
        self.completed += StreamBudget::between(self.streams[index].over, now);
        // Threads that are launching right now may have overdrawn the credit.
        let overdrawn = budgets[index].left().unsigned_abs();
        budgets[index].give(overdrawn);
        self.streams[index] = StreamState {
            told: now,
            over: now,
            ..StreamState::default()
        };
    }

    pub fn give(&mut self, budgets: &[StreamBudget; STREAMS], index: usize, ns: u64) {
        self.streams[index].granted_ns += ns;
        budgets[index].give(ns);
    }

    /// Takes back unused credit.
    pub fn reclaim(&mut self, budgets: &[StreamBudget; STREAMS], index: usize) {
        self.streams[index].granted_ns -= budgets[index].empty();
    }

    pub fn reclaim_all(&mut self, budgets: &[StreamBudget; STREAMS]) {
        for index in in_use(budgets) {
            self.reclaim(budgets, index);
        }
    }

    /// What has been launched in a stream since its budget was assigned.
    pub fn spent_ns(&self, budgets: &[StreamBudget; STREAMS], index: usize) -> u64 {
        let spent = self.streams[index].granted_ns as i64 - budgets[index].left();
        spent.max(0) as u64
    }

    /// How much of it is not known to be over.
    pub fn outstanding_ns(&self, budgets: &[StreamBudget; STREAMS], index: usize) -> u64 {
        self.spent_ns(budgets, index)
            .saturating_sub(self.streams[index].completed_ns)
    }

    /// How much of it has no mark behind it.
    pub fn unmarked_ns(&self, budgets: &[StreamBudget; STREAMS], index: usize) -> u64 {
        let state = &self.streams[index];
        self.spent_ns(budgets, index)
            .saturating_sub(state.marked_ns.max(state.completed_ns))
    }

    pub fn flight(&self, budgets: &[StreamBudget; STREAMS], now: u64) -> Flight {
        let each = || {
            in_use(budgets)
                .map(|index| self.outstanding_ns(budgets, index))
                .filter(|ns| *ns > 0)
        };
        Flight {
            all_ns: each().sum(),
            head_ns: self
                .marks
                .front()
                .map_or_else(|| each().min().unwrap_or(0), |mark| mark.ns),
            ran_ns: now.saturating_sub(self.began_ns),
        }
    }

    /// The same for a short launch into the stream at `index`: a long launch of another stream does not count. The device
    /// may run both at once, by the streams' priorities.
    pub fn flight_beside(&self, budgets: &[StreamBudget; STREAMS], now: u64, index: usize) -> Flight {
        let whole = self.flight(budgets, now);
        let counts = |at: usize| at == index || !admission::is_long(self.outstanding_ns(budgets, at));
        let each = || {
            in_use(budgets)
                .filter(|at| counts(*at))
                .map(|at| self.outstanding_ns(budgets, at))
                .filter(|ns| *ns > 0)
        };
        let all_ns = each().sum();
        if all_ns == whole.all_ns {
            return whole;
        }
        match self.marks.front().filter(|mark| counts(mark.index)) {
            Some(_) => Flight { all_ns, ..whole },
            // Since when it runs is not known.
            None => Flight {
                all_ns,
                head_ns: each().min().unwrap_or(0),
                ran_ns: 0,
            },
        }
    }

    /// How much the streams other than the one at `index` may launch on the fast path.
    pub fn promised_ns(budgets: &[StreamBudget; STREAMS], index: usize) -> u64 {
        in_use(budgets)
            .filter(|other| *other != index)
            .map(|other| budgets[other].left().max(0) as u64)
            .sum()
    }

    /// Whether no work is in flight or being launched.
    pub fn is_drained(&self, budgets: &[StreamBudget; STREAMS]) -> bool {
        in_use(budgets)
            .all(|index| self.outstanding_ns(budgets, index) == 0 && budgets[index].launches().1 == 0)
    }

    /// Whether a launch is on its way into the driver.
    pub fn is_entering(&self, budgets: &[StreamBudget; STREAMS]) -> bool {
        in_use(budgets).any(|index| budgets[index].launches().1 > 0)
    }

    /// Counts the launches of a stream.
    fn tally(&mut self, budgets: &[StreamBudget; STREAMS], index: usize) {
        let (now, _) = budgets[index].launches();
        let state = &mut self.streams[index];
        self.passed += StreamBudget::between(state.told, now);
        state.told = now;
    }

    pub fn tally_all(&mut self, budgets: &[StreamBudget; STREAMS]) {
        for index in in_use(budgets) {
            self.tally(budgets, index);
        }
    }

    /// A stream's work is over up to this point.
    pub fn complete(&mut self, index: usize, upto_ns: u64, launches: u64) {
        let state = &mut self.streams[index];
        if upto_ns >= state.completed_ns {
            state.completed_ns = upto_ns;
            self.completed += StreamBudget::between(state.over, launches);
            state.over = launches;
        }
    }

    /// The first of the work in flight, which should have taken `ns`, was found to be over at `now`. The work behind it
    /// began at its end: as predicted, but not before it was last seen running. If it were assumed to begin when the
    /// end was noticed, each kernel's end would be predicted later than the one before.
    pub fn head_ended(&mut self, ns: u64, now: u64) {
        let due = self.began_ns.saturating_add(ns);
        self.began_ns = due.max(self.running_ns).min(now);
        self.active_ns = now;
    }

    /// Work was launched into an idle device, or the last of it is over.
    pub fn set_running(&mut self, running: bool, now: u64) {
        match (running, self.busy_since) {
            (true, None) => {
                self.busy_since = Some(now);
                self.began_ns = now;
            }
            (false, Some(since)) => {
                self.busy_ns += now.saturating_sub(since);
                self.busy_since = None;
            }
            _ => {}
        }
    }

    /// Whether estimates were right recently.
    pub fn trusts(&self) -> bool {
        self.distrust == 0
    }

    /// The work in flight ends in `ends_in`, and from now on the device is the next process's. That process is charged
    /// for the rest, just as this process is charged when the device is handed to it. From now on the hardware's time
    /// slices would distort measurements, so they are dropped.
    pub fn pass_on(&mut self, budgets: &[StreamBudget; STREAMS], now: u64, ends_in: u64) {
        for index in in_use(budgets) {
            self.drop_bracket(index);
        }
        let ended: Vec<_> = self
            .marks
            .iter_mut()
            .filter_map(|mark| Some((mark.context, mark.ends.take()?.0.event)))
            .collect();
        for (context, event) in ended {
            self.let_go(context, event);
        }
        self.set_running(false, now);
        self.passed_on = Some((now, now.saturating_add(ends_in)));
    }

    /// No work is in flight any more.
    pub fn set_drained(&mut self, now: u64) {
        if self.busy_since.is_some() {
            self.distrust = self.distrust.saturating_sub(1);
        }
        self.set_running(false, now);
        // Work that took much longer was not meant to be handed over.
        if let Some((at, due)) = self.passed_on.take()
            && now > due.saturating_add(OUTSTAYED_NS)
        {
            self.busy_ns += now.saturating_sub(at);
            self.distrust = DISTRUST;
        }
    }

    /// For how long work has been in flight while it was counted.
    pub fn busy_ns(&self, now: u64) -> u64 {
        self.busy_ns + self.busy_since.map_or(0, |since| now.saturating_sub(since))
    }

    /// An event of this context to reuse.
    pub fn spare(&mut self, context: usize) -> Option<usize> {
        let at = self.spare.iter().position(|(of, _)| *of == context)?;
        Some(self.spare.swap_remove(at).1)
    }

    /// Keeps an event for reuse. If there are too many, the event is left to its context.
    pub fn keep(&mut self, context: usize, event: usize) {
        if event != 0 && self.spare.len() < SPARE {
            self.spare.push((context, event));
        }
    }

    /// Abandons a measurement.
    pub fn drop_bracket(&mut self, index: usize) -> Option<Bracket> {
        let bracket = self.streams[index].bracket.take()?;
        self.let_go(self.streams[index].context, bracket.event);
        Some(bracket)
    }

    /// The event that a measurement began at is no longer needed for that.
    fn let_go(&mut self, context: usize, event: usize) {
        // It still stands as a mark: then it is released when the mark is over.
        let mut marks = self.marks.iter_mut();
        match marks.find(|mark| mark.event == event) {
            Some(mark) => mark.begins = false,
            None => self.keep(context, event),
        }
    }

    /// Forgets a context: its streams and events ended with it, after all their work.
    pub fn forget(&mut self, budgets: &[StreamBudget; STREAMS], context: usize) {
        for index in in_use(budgets) {
            if self.streams[index].context == context {
                self.streams[index].bracket = None;
                self.vacate(budgets, index);
            }
        }
        self.marks.retain(|mark| mark.context != context);
        self.spare.retain(|(of, _)| *of != context);
    }
}

/// The positions that belong to a stream, and the common one.
pub(super) fn in_use(budgets: &[StreamBudget; STREAMS]) -> impl Iterator<Item = usize> + '_ {
    (0..STREAMS).filter(|index| *index == budget::COMMON || !budgets[*index].is_free())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn who_notices_late_does_not_foretell_late() {
        let mut in_flight = InFlight::new();
        in_flight.set_running(true, 0);
        for kernel in 1..=100 {
            in_flight.head_ended(MS, kernel * MS + MS / 10);
        }
        assert_eq!(in_flight.began_ns, 100 * MS);
        // It had to wait for another process's last kernel, and was seen waiting.
        in_flight.running_ns = 102 * MS;
        in_flight.head_ended(MS, 102 * MS + MS / 50);
        assert_eq!(in_flight.began_ns, 102 * MS);
        in_flight.head_ended(5 * MS, 103 * MS);
        assert_eq!(in_flight.began_ns, 103 * MS, "it was shorter than foretold");
    }

    #[test]
    fn what_is_passed_on_is_the_next_ones_to_pay_unless_it_stays_on() {
        let budgets = [const { StreamBudget::new() }; STREAMS];
        let mut in_flight = InFlight::new();
        in_flight.set_running(true, 0);
        in_flight.pass_on(&budgets, 4 * MS, MS / 4);
        assert_eq!(in_flight.busy_ns(5 * MS), 4 * MS);
        in_flight.set_drained(6 * MS);
        assert_eq!(
            in_flight.busy_ns(7 * MS),
            4 * MS,
            "the hardware's turns kept it waiting"
        );

        in_flight.set_running(true, 10 * MS);
        in_flight.pass_on(&budgets, 14 * MS, MS / 4);
        in_flight.set_drained(30 * MS);
        assert_eq!(in_flight.busy_ns(31 * MS), 24 * MS, "all of it");
        assert!(!in_flight.trusts());
    }
}
