//! What a gate believes to be in flight, and what of it is known to be over. Under one lock, which nobody holds while he
//! waits or calls the driver.

use std::collections::VecDeque;

use super::admission::Flight;
use super::bucket::Bucket;
use super::estimates::Key;
use super::lane::{self, LANES, Lane};
use super::stream::Name;

/// One lane's part of the books. Amounts of work are nanoseconds since the lane was assigned, so that what completes
/// late or twice does no harm.
#[derive(Debug, Default)]
pub(super) struct LaneBook {
    pub context: usize,
    /// Put into the purse so far.
    granted_ns: u64,
    /// Known to be over.
    completed_ns: u64,
    /// Launched before the newest mark.
    pub marked_ns: u64,
    pub marks: u32,
    /// By count: of the launches that were told, and of those known to be over.
    told: u64,
    over: u64,
    /// A launch overlapped the kernel before it: no event ever comes between two kernels here.
    pub programmatic: bool,
    /// Its stream is destroyed, and what it did is still in flight.
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
    /// The stream had run dry before it: what is measured has the launch's way to the device in it.
    pub dry: bool,
}

/// An event of ours in a stream, and what is over once it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub event: usize,
    pub context: usize,
    pub lane: usize,
    /// The lane's work up to here, and by how much that is more than the mark before.
    pub upto_ns: u64,
    pub ns: u64,
    pub launches: u64,
    /// It ends a measurement, and whether the stream had run dry when it was recorded.
    pub ends: Option<(Bracket, bool)>,
    /// A measurement begins at it: the event is still needed.
    pub begins: bool,
}

#[derive(Debug)]
pub(super) struct Books {
    pub lanes: [LaneBook; LANES],
    pub marks: VecDeque<Mark>,
    /// Events to use again, by context.
    spare: Vec<(usize, usize)>,
    /// Since when the first of what is in flight runs.
    pub began_ns: u64,
    /// When something in flight was last seen not to be over.
    pub running_ns: u64,
    busy_ns: u64,
    busy_since: Option<u64>,
    /// The device was passed on ahead of the end of what was in flight: when that was, and when it should have ended.
    passed_on: Option<(u64, u64)>,
    /// How often the device runs dry before estimates are relied upon again.
    distrust: u32,
    /// Launches that were counted; 1 for all that were not; and those known to be over.
    pub passed: u64,
    pub uncounted: u64,
    pub completed: u64,
    /// Launches that were looked at.
    pub looks: u64,
    pub typical_ns: u64,
    /// When something was last launched or found completed.
    pub active_ns: u64,
    /// When a thread at the gate wants to be woken.
    pub alarm_ns: u64,
    /// Or as soon as what is in flight has come down to this, in nanoseconds.
    pub wake_below_ns: u64,
    pub wants: bool,
    pub busy: bool,
    pub acknowledged: Option<u32>,
    pub bucket: Bucket,
}

/// What ends no later than so many nanoseconds after its time was only kept waiting by the hardware's turns.
const OUTSTAYED_NS: u64 = 3_000_000;
/// Whose estimate was so wrong runs dry so often before the device is passed on ahead again.
const DISTRUST: u32 = 256;

/// Events that are kept for later.
const SPARE: usize = 4096;

impl Books {
    pub fn new() -> Self {
        Self {
            lanes: core::array::from_fn(|_| LaneBook::default()),
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

    /// The lane of a stream, one that is made its own now, or the common one.
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
        let book = &self.lanes[place];
        self.outstanding_ns(lanes, place) == 0
            && lanes[place].launches().1 == 0
            && book.marks == 0
            && book.bracket.is_none()
    }

    /// Makes a lane nobody's: whatever it had in flight is forgotten.
    pub fn vacate(&mut self, lanes: &[Lane; LANES], place: usize) {
        self.tally(lanes, place);
        self.drop_bracket(place);
        lanes[place].vacate();
        let (now, _) = lanes[place].launches();
        self.completed += Lane::between(self.lanes[place].over, now);
        // Threads that are just on their way may have overdrawn the purse.
        let overdrawn = lanes[place].left().unsigned_abs();
        lanes[place].give(overdrawn);
        self.lanes[place] = LaneBook {
            told: now,
            over: now,
            ..LaneBook::default()
        };
    }

    pub fn give(&mut self, lanes: &[Lane; LANES], place: usize, ns: u64) {
        self.lanes[place].granted_ns += ns;
        lanes[place].give(ns);
    }

    /// Takes back what no launch has used.
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

    /// What of it is not known to be over.
    pub fn outstanding_ns(&self, lanes: &[Lane; LANES], place: usize) -> u64 {
        self.spent_ns(lanes, place)
            .saturating_sub(self.lanes[place].completed_ns)
    }

    /// What of it no mark will tell of.
    pub fn unmarked_ns(&self, lanes: &[Lane; LANES], place: usize) -> u64 {
        let book = &self.lanes[place];
        self.spent_ns(lanes, place)
            .saturating_sub(book.marked_ns.max(book.completed_ns))
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

    /// What other lanes than `place` may launch without a look.
    pub fn promised_ns(lanes: &[Lane; LANES], place: usize) -> u64 {
        in_use(lanes)
            .filter(|other| *other != place)
            .map(|other| lanes[other].left().max(0) as u64)
            .sum()
    }

    /// Whether nothing is in flight, nor on its way.
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
        let book = &mut self.lanes[place];
        self.passed += Lane::between(book.told, now);
        book.told = now;
    }

    pub fn tally_all(&mut self, lanes: &[Lane; LANES]) {
        for place in in_use(lanes) {
            self.tally(lanes, place);
        }
    }

    /// A lane's work is over up to there.
    pub fn complete(&mut self, place: usize, upto_ns: u64, launches: u64) {
        let book = &mut self.lanes[place];
        if upto_ns >= book.completed_ns {
            book.completed_ns = upto_ns;
            self.completed += Lane::between(book.over, launches);
            book.over = launches;
        }
    }

    /// The first of what is in flight, which should have taken `ns`, was found to be over at `now`. What follows it began when
    /// it ended: as foretold, but not before it was last seen running. Were it taken to begin when somebody noticed, each
    /// kernel's end would be foretold later than the one's before.
    pub fn head_ended(&mut self, ns: u64, now: u64) {
        let due = self.began_ns.saturating_add(ns);
        self.began_ns = due.max(self.running_ns).min(now);
        self.active_ns = now;
    }

    /// Something was launched into an idle device, or the last of it is over.
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

    /// Whether estimates were right of late.
    pub fn trusts(&self) -> bool {
        self.distrust == 0
    }

    /// What is in flight ends in `ends_in`, and the device is the next one's from now on: he pays for the rest, as whoever
    /// passes it on to this process will be paid for. From now on the hardware's turns are in what is measured: it is not.
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

    /// Nothing is in flight any more.
    pub fn set_drained(&mut self, now: u64) {
        if self.busy_since.is_some() {
            self.distrust = self.distrust.saturating_sub(1);
        }
        self.set_running(false, now);
        // What took much longer was not meant to be passed on.
        if let Some((at, due)) = self.passed_on.take()
            && now > due.saturating_add(OUTSTAYED_NS)
        {
            self.busy_ns += now.saturating_sub(at);
            self.distrust = DISTRUST;
        }
    }

    /// For how long anything has been in flight while it was counted.
    pub fn busy_ns(&self, now: u64) -> u64 {
        self.busy_ns + self.busy_since.map_or(0, |since| now.saturating_sub(since))
    }

    /// An event of this context to use again.
    pub fn spare(&mut self, context: usize) -> Option<usize> {
        let at = self.spare.iter().position(|(of, _)| *of == context)?;
        Some(self.spare.swap_remove(at).1)
    }

    /// Keeps an event for later. One too many is left to its context.
    pub fn keep(&mut self, context: usize, event: usize) {
        if event != 0 && self.spare.len() < SPARE {
            self.spare.push((context, event));
        }
    }

    /// Gives a measurement up.
    pub fn drop_bracket(&mut self, place: usize) -> Option<Bracket> {
        let bracket = self.lanes[place].bracket.take()?;
        self.let_go(self.lanes[place].context, bracket.event);
        Some(bracket)
    }

    /// The event that a measurement began at is no longer needed for that.
    fn let_go(&mut self, context: usize, event: usize) {
        // Still waited for as a mark: then it goes when that is over.
        let mut marks = self.marks.iter_mut();
        match marks.find(|mark| mark.event == event) {
            Some(mark) => mark.begins = false,
            None => self.keep(context, event),
        }
    }

    /// Forgets a context: its streams and events went with it, after all their work.
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

/// The lanes that are some stream's, and the common one.
pub(super) fn in_use(lanes: &[Lane; LANES]) -> impl Iterator<Item = usize> + '_ {
    (0..LANES).filter(|place| *place == lane::COMMON || !lanes[*place].is_free())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn who_notices_late_does_not_foretell_late() {
        let mut books = Books::new();
        books.set_running(true, 0);
        for kernel in 1..=100 {
            books.head_ended(MS, kernel * MS + MS / 10);
        }
        assert_eq!(books.began_ns, 100 * MS);
        // It had to wait for somebody else's last kernel, and was seen to.
        books.running_ns = 102 * MS;
        books.head_ended(MS, 102 * MS + MS / 50);
        assert_eq!(books.began_ns, 102 * MS);
        books.head_ended(5 * MS, 103 * MS);
        assert_eq!(books.began_ns, 103 * MS, "it was shorter than foretold");
    }

    #[test]
    fn what_is_passed_on_is_the_next_ones_to_pay_unless_it_stays_on() {
        let lanes = [const { Lane::new() }; LANES];
        let mut books = Books::new();
        books.set_running(true, 0);
        books.pass_on(&lanes, 4 * MS, MS / 4);
        assert_eq!(books.busy_ns(5 * MS), 4 * MS);
        books.set_drained(6 * MS);
        assert_eq!(
            books.busy_ns(7 * MS),
            4 * MS,
            "the hardware's turns kept it waiting"
        );

        books.set_running(true, 10 * MS);
        books.pass_on(&lanes, 14 * MS, MS / 4);
        books.set_drained(30 * MS);
        assert_eq!(books.busy_ns(31 * MS), 24 * MS, "all of it");
        assert!(!books.trusts());
    }
}
