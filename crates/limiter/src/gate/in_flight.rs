//! The in-flight table: which work the gate believes to be in flight, and which of it is known to be over. It stands
//! under one lock, which no thread holds while it waits or calls the driver.

use std::collections::VecDeque;

use super::admission::Flight;
use super::bucket::Bucket;
use super::estimates::Key;
use super::lane::{self, LANES, Lane};
use super::stream::Name;

/// The state of one lane (the budget of one stream). Amounts of work are nanoseconds since the lane was assigned, so
/// that a completion that is reported late or twice does no harm.
#[derive(Debug, Default)]
pub(super) struct LaneState {
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
    /// The lane's count of launches before it.
    pub at: u64,
    /// The stream was idle before it, so the measurement includes the launch's way to the device.
    pub dry: bool,
}

/// An event of ours in a stream, and the work that is over once the event is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub event: usize,
    pub context: usize,
    pub lane: usize,
    /// The lane's work up to this mark, and how much of it is new since the previous mark.
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
    pub lanes: [LaneState; LANES],
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
            lanes: core::array::from_fn(|_| LaneState::default()),
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
            alarm_ns: u64::MAX,
            wake_below_ns: 0,
            wants: false,
            busy: false,
            acknowledged: None,
            bucket: Bucket::default(),
        }
    }

    /// The lane of a stream: its present one, a new one, or the common one.
    pub fn lane_of(&mut self, lanes: &[Lane; LANES], name: Name, context: impl FnOnce() -> usize) -> usize {
        if let Some(known) = lane::find(lanes, name) {
            return known;
        }
        let unused = |place: usize| self.is_unused(lanes, place);
        let Some(place) = lane::room(lanes, name, unused) else {
            return lane::COMMON;
        };
        self.vacate(lanes, place);
        self.lanes[place].context = context();
        lanes[place].assign(name);
        place
    }

    fn is_unused(&self, lanes: &[Lane; LANES], place: usize) -> bool {
        let state = &self.lanes[place];
        self.outstanding_ns(lanes, place) == 0
            && lanes[place].launches().1 == 0
            && state.marks == 0
            && state.bracket.is_none()
    }

    /// Frees a lane: any work that it had in flight is forgotten.
    pub fn vacate(&mut self, lanes: &[Lane; LANES], place: usize) {
        self.tally(lanes, place);
        self.drop_bracket(place);
        lanes[place].vacate();
        let (now, _) = lanes[place].launches();
        self.completed += Lane::between(self.lanes[place].over, now);
        // Threads that are launching right now may have overdrawn the credit.
        let overdrawn = lanes[place].left().unsigned_abs();
        lanes[place].give(overdrawn);
        self.lanes[place] = LaneState {
            told: now,
            over: now,
            ..LaneState::default()
        };
    }

    pub fn give(&mut self, lanes: &[Lane; LANES], place: usize, ns: u64) {
        self.lanes[place].granted_ns += ns;
        lanes[place].give(ns);
    }

    /// Takes back unused credit.
    pub fn reclaim(&mut self, lanes: &[Lane; LANES], place: usize) {
        self.lanes[place].granted_ns -= lanes[place].empty();
    }

    pub fn reclaim_all(&mut self, lanes: &[Lane; LANES]) {
        for place in in_use(lanes) {
            self.reclaim(lanes, place);
        }
    }

    /// What has been launched in a lane, since it was assigned.
    pub fn spent_ns(&self, lanes: &[Lane; LANES], place: usize) -> u64 {
        let spent = self.lanes[place].granted_ns as i64 - lanes[place].left();
        spent.max(0) as u64
    }

    /// How much of it is not known to be over.
    pub fn outstanding_ns(&self, lanes: &[Lane; LANES], place: usize) -> u64 {
        self.spent_ns(lanes, place)
            .saturating_sub(self.lanes[place].completed_ns)
    }

    /// How much of it has no mark behind it.
    pub fn unmarked_ns(&self, lanes: &[Lane; LANES], place: usize) -> u64 {
        let state = &self.lanes[place];
        self.spent_ns(lanes, place)
            .saturating_sub(state.marked_ns.max(state.completed_ns))
    }

    pub fn flight(&self, lanes: &[Lane; LANES], now: u64) -> Flight {
        let each = || {
            in_use(lanes)
                .map(|place| self.outstanding_ns(lanes, place))
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

    /// How much the lanes other than `place` may launch on the fast path.
    pub fn promised_ns(lanes: &[Lane; LANES], place: usize) -> u64 {
        in_use(lanes)
            .filter(|other| *other != place)
            .map(|other| lanes[other].left().max(0) as u64)
            .sum()
    }

    /// Whether no work is in flight or being launched.
    pub fn is_drained(&self, lanes: &[Lane; LANES]) -> bool {
        in_use(lanes).all(|place| self.outstanding_ns(lanes, place) == 0 && lanes[place].launches().1 == 0)
    }

    /// Whether a launch is on its way into the driver.
    pub fn is_entering(&self, lanes: &[Lane; LANES]) -> bool {
        in_use(lanes).any(|place| lanes[place].launches().1 > 0)
    }

    /// Counts the launches of a lane.
    fn tally(&mut self, lanes: &[Lane; LANES], place: usize) {
        let (now, _) = lanes[place].launches();
        let state = &mut self.lanes[place];
        self.passed += Lane::between(state.told, now);
        state.told = now;
    }

    pub fn tally_all(&mut self, lanes: &[Lane; LANES]) {
        for place in in_use(lanes) {
            self.tally(lanes, place);
        }
    }

    /// A lane's work is over up to this point.
    pub fn complete(&mut self, place: usize, upto_ns: u64, launches: u64) {
        let state = &mut self.lanes[place];
        if upto_ns >= state.completed_ns {
            state.completed_ns = upto_ns;
            self.completed += Lane::between(state.over, launches);
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
    pub fn pass_on(&mut self, lanes: &[Lane; LANES], now: u64, ends_in: u64) {
        for place in in_use(lanes) {
            self.drop_bracket(place);
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
    pub fn drop_bracket(&mut self, place: usize) -> Option<Bracket> {
        let bracket = self.lanes[place].bracket.take()?;
        self.let_go(self.lanes[place].context, bracket.event);
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
    pub fn forget(&mut self, lanes: &[Lane; LANES], context: usize) {
        for place in in_use(lanes) {
            if self.lanes[place].context == context {
                self.lanes[place].bracket = None;
                self.vacate(lanes, place);
            }
        }
        self.marks.retain(|mark| mark.context != context);
        self.spare.retain(|(of, _)| *of != context);
    }
}

/// The lanes that belong to a stream, and the common one.
pub(super) fn in_use(lanes: &[Lane; LANES]) -> impl Iterator<Item = usize> + '_ {
    (0..LANES).filter(|place| *place == lane::COMMON || !lanes[*place].is_free())
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
        let lanes = [const { Lane::new() }; LANES];
        let mut in_flight = InFlight::new();
        in_flight.set_running(true, 0);
        in_flight.pass_on(&lanes, 4 * MS, MS / 4);
        assert_eq!(in_flight.busy_ns(5 * MS), 4 * MS);
        in_flight.set_drained(6 * MS);
        assert_eq!(
            in_flight.busy_ns(7 * MS),
            4 * MS,
            "the hardware's turns kept it waiting"
        );

        in_flight.set_running(true, 10 * MS);
        in_flight.pass_on(&lanes, 14 * MS, MS / 4);
        in_flight.set_drained(30 * MS);
        assert_eq!(in_flight.busy_ns(31 * MS), 24 * MS, "all of it");
        assert!(!in_flight.trusts());
    }
}
