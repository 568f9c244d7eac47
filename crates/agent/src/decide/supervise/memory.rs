//! The memory of a supervised slice on one device: who is ended when it holds more than its limit for too long.

use std::collections::{HashMap, HashSet};

use divvy_model::Bytes;

use super::ProcessId;

const MILLISECOND: u64 = 1_000_000;
/// For how long a slice may be beyond its limit, in nanoseconds: an honest program is for a moment, while the driver
/// makes a context or loads code.
pub(crate) const GRACE: u64 = 1000 * MILLISECOND;
/// The same where the slice's processes were ended for it a moment ago.
const SHORT_GRACE: u64 = 50 * MILLISECOND;
/// For how long an end is remembered.
const REMEMBERED: u64 = 10_000 * MILLISECOND;
/// The memory that a driver may hold for one process beside what any call showed: what it rounds up, and its caches.
pub(crate) const TOLERANCE: Bytes = Bytes(32 << 20);
/// An ended process that is still there after this time cannot be ended, as in an uninterruptible sleep.
const UNENDING: u64 = 5000 * MILLISECOND;
/// An ended process that the kernel does not take down by then is held by something, as by a tracer: it counts again.
const GOING: u64 = 200 * MILLISECOND;
/// One process that the kernel vouches for as the slice's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// The process.
    pub id: ProcessId,
    /// Its memory by the driver's figure.
    pub memory: Bytes,
    /// Its memory by the slice's ledger. A tenant writes that: it says which process is ended, and never whether.
    pub accounted: Bytes,
    /// The kernel is taking it down: it holds its memory for as long as the driver takes for that.
    pub leaves: bool,
    /// It has ended, and another process keeps what it had.
    pub has_ended: bool,
    /// It has ended just now: what it had is on its way back, or another process keeps it. It counts once that is known, from
    /// the end on.
    pub returns: bool,
}

/// The figures of one look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    /// When, in nanoseconds.
    pub at: u64,
    /// The limit of the slice's own programs.
    pub limit: Bytes,
    /// What its ledger has. A tenant writes that: it may keep no more than it is charged for.
    pub accounted: Bytes,
    /// The cost of one context, which is allowed for once: contexts are inside the limit.
    pub context: Bytes,
    /// Its processes on the device. Each is vouched for at this look.
    pub processes: &'a [Held],
}

/// The processes that are to be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The one that took the memory.
    One(ProcessId),
    /// All that hold memory of the device.
    Holders(Vec<ProcessId>),
    /// All of the slice's processes.
    All,
}

/// What a look tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Finding {
    /// How much the slice holds beyond its limit and what is allowed for.
    pub beyond: Bytes,
    /// It is beyond its limit, if what has just ended counts: in so many nanoseconds that may have consequences.
    pub ends_in: Option<u64>,
    /// The processes that are to be ended now.
    pub end: Option<Target>,
    /// Processes that should have ended and have not. Each is named once.
    pub unending: Vec<ProcessId>,
}

/// A process that was to be ended.
#[derive(Clone, Copy, Debug)]
struct Ending {
    /// Since when, in nanoseconds.
    since: u64,
    /// The signal was sent. Where it was refused, the process is signalled again only if a later look says so as well.
    is_sent: bool,
    /// It was said that it is still there.
    is_told: bool,
}

/// What earlier looks at the slice on the device saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// What the slice may hold: its limit, or what it held when it was resized to less.
    bound: Option<Bytes>,
    /// For how long it has been beyond that, in nanoseconds. Time within the limit takes away a quarter of itself, so that
    /// memory which comes and goes counts as well.
    beyond_for: u64,
    /// When the last look was, and whether it was beyond then.
    looked: Option<(u64, bool)>,
    /// The driver gave no figure since then.
    missed: bool,
    /// Each process's memory, and when that last grew.
    seen: HashMap<ProcessId, (Bytes, u64)>,
    /// The processes that were to be ended, and are there still.
    ending: HashMap<ProcessId, Ending>,
    /// When those were seen first that have ended just now.
    returning: HashMap<ProcessId, u64>,
    /// How often some were, of late, and when last.
    ends: u32,
    ended_at: u64,
}

impl Memory {
    /// Takes the figures of a look.
    pub fn look(&mut self, look: &Look<'_>) -> Finding {
        let (returning, there): (Vec<Held>, Vec<Held>) =
            look.processes.iter().copied().partition(|held| held.returns);
        let kept_for = self.note_returning(&returning, &there, look.at);
        let present: HashSet<ProcessId> = there.iter().map(|held| held.id).collect();
        self.seen.retain(|id, _| present.contains(id));
        self.ending.retain(|id, _| present.contains(id));
        for held in &there {
            let seen = self.seen.entry(held.id).or_insert((Bytes(0), look.at));
            if held.memory > seen.0 {
                seen.1 = look.at;
            }
            seen.0 = held.memory;
        }
        // What is being ended gives its memory back by itself.
        let staying = there.iter().copied();
        let staying: Vec<Held> = staying
            .filter(|held| {
                let ending = self
                    .ending
                    .get(&held.id)
                    .filter(|ending| ending.is_sent && !held.has_ended);
                // One that cannot be ended has its memory still.
                let most = if held.leaves { UNENDING } else { GOING };
                ending.is_none_or(|ending| look.at.saturating_sub(ending.since) > most)
            })
            .collect();
        let measured = sum(&there);
        let bound = match self.bound {
            // It was resized below what it holds: it may keep that, and no more.
            Some(bound) if bound > look.limit => look.limit.max(bound.min(measured).min(look.accounted)),
            _ => look.limit,
        };
        self.bound = Some(bound);
        let mut finding = Finding {
            beyond: beyond(&staying, bound, look.context),
            ..Finding::default()
        };
        let is_beyond = !finding.beyond.is_zero();
        let all: Vec<Held> = staying.iter().copied().chain(returning).collect();
        let counts = !beyond(&all, bound, look.context).is_zero();
        if !is_beyond {
            // What was refused is no longer asked for.
            self.ending.retain(|_, ending| ending.is_sent);
        }
        for (id, ending) in &mut self.ending {
            if !ending.is_told && look.at.saturating_sub(ending.since) > UNENDING {
                ending.is_told = true;
                finding.unending.push(*id);
            }
        }
        finding.unending.sort_unstable();
        let missed = std::mem::take(&mut self.missed);
        if let Some((at, was_beyond)) = self.looked.replace((look.at, is_beyond)) {
            let time = look.at.saturating_sub(at);
            self.beyond_for = match is_beyond && was_beyond {
                // What happened while the driver did not answer is unknown. A look that is late all the same counts in
                // full: a tenant can make looks slow.
                _ if missed && time > GRACE => 0,
                true => self.beyond_for.saturating_add(time).min(GRACE),
                false => self.beyond_for.saturating_sub(time / 4),
            };
        }
        if is_beyond {
            self.beyond_for = self.beyond_for.saturating_add(kept_for).min(GRACE);
        }
        if !counts {
            return finding;
        }
        if look.at.saturating_sub(self.ended_at) > REMEMBERED {
            self.ends = 0;
        }
        let grace = if self.ends == 0 { GRACE } else { SHORT_GRACE };
        finding.ends_in = Some(grace.saturating_sub(self.beyond_for));
        if is_beyond && self.beyond_for >= grace {
            finding.end = self.target(&staying, look.context);
        }
        finding
    }

    /// Notes what has ended just now. Returns for how long one has been gone that is known to be kept by another from this look on.
    fn note_returning(&mut self, returning: &[Held], there: &[Held], at: u64) -> u64 {
        let before = std::mem::take(&mut self.returning);
        let since = |held: &Held| (held.id, before.get(&held.id).copied().unwrap_or(at));
        self.returning = returning.iter().map(since).collect();
        let kept = there.iter().filter(|held| held.has_ended);
        let gone_for = kept.filter_map(|held| before.get(&held.id).map(|since| at.saturating_sub(*since)));
        gone_for.max().unwrap_or(0)
    }

    /// Notes that some processes were to be ended: those that were signalled, and those whose signal was refused. The
    /// caller says so only where it acted.
    pub fn note_end(&mut self, signalled: &[ProcessId], refused: &[ProcessId], at: u64) {
        self.ends = self.ends.saturating_add(1);
        self.beyond_for = 0;
        self.ended_at = at;
        let new = |is_sent| Ending {
            since: at,
            is_sent,
            is_told: false,
        };
        for id in refused {
            self.ending.entry(*id).or_insert(new(false));
        }
        for id in signalled {
            let ending = self.ending.entry(*id).or_insert(new(true));
            if !ending.is_sent {
                *ending = new(true);
            }
        }
    }

    /// The driver gave no figure at this look.
    pub fn miss(&mut self) {
        self.missed = true;
    }

    /// The processes that were signalled to end and are there still, and since when, in nanoseconds.
    pub fn ending(&self) -> Vec<(ProcessId, u64)> {
        let sent = self.ending.iter().filter(|(_, ending)| ending.is_sent);
        sent.map(|(id, ending)| (*id, ending.since)).collect()
    }

    /// Whether it was signalled to end, and is there still.
    pub fn is_ending(&self, id: ProcessId) -> bool {
        self.ending.get(&id).is_some_and(|ending| ending.is_sent)
    }

    /// Takes what the slice holds now for what it may hold: it was resized to less while no look saw what it had before.
    pub fn allow_what_is_held(&mut self, held: Bytes) {
        self.bound = Some(held);
    }

    /// The first time it is the process that took the memory; where that was not all, each that holds some; where others
    /// came in their place, all. It is all at once where one has ended and another keeps its memory.
    fn target(&self, staying: &[Held], context: Bytes) -> Option<Target> {
        let has_ended = |id: ProcessId| staying.iter().any(|held| held.id == id && held.has_ended);
        let is_kept = |held: &Held| held.has_ended || self.is_ending(held.id);
        match self.ends {
            0 => self.guilty(staying, context).map(|id| match has_ended(id) {
                true => Target::All,
                false => Target::One(id),
            }),
            1 if !staying.iter().any(is_kept) => {
                let holders = staying.iter().filter(|held| !held.memory.is_zero());
                Some(Target::Holders(holders.map(|held| held.id).collect()))
            }
            _ => Some(Target::All),
        }
    }

    /// The process whose driver's figure is furthest beyond what the ledger has of it; where all account for what they
    /// hold, the one that grew last.
    fn guilty(&self, staying: &[Held], context: Bytes) -> Option<ProcessId> {
        let unaccounted = |held: &Held| held.memory.0.saturating_sub(held.accounted.0);
        let furthest = staying
            .iter()
            .max_by_key(|held| (unaccounted(held), held.memory, held.id))?;
        if unaccounted(furthest) > context.0.saturating_add(TOLERANCE.0) {
            return Some(furthest.id);
        }
        let grew = |held: &Held| self.seen.get(&held.id).map_or(0, |seen| seen.1);
        let holding = staying.iter().filter(|held| !held.memory.is_zero());
        let last = holding.max_by_key(|held| (grew(held), held.memory, held.id));
        last.map(|held| held.id)
    }
}

fn sum(processes: &[Held]) -> Bytes {
    Bytes(
        processes
            .iter()
            .fold(0, |sum, held| sum.saturating_add(held.memory.0)),
    )
}

/// What is held beyond the bound, a context, and what drivers hold for each process. The last is bounded, because
/// processes cost a tenant nothing.
fn beyond(processes: &[Held], bound: Bytes, context: Bytes) -> Bytes {
    let holders = processes.iter().filter(|held| !held.memory.is_zero()).count() as u64;
    let most = TOLERANCE.0.max(bound.0 / 8);
    let of_driver = TOLERANCE.0.saturating_mul(holders).min(most);
    let may = bound.0.saturating_add(context.0).saturating_add(of_driver);
    Bytes(sum(processes).0.saturating_sub(may))
}
