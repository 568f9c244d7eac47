//! The processes that the kernel vouches for as a slice's. Only these are ever signalled.
//!
//! A process is pinned first, and its ancestors are read after that. Where the pinned process and the `divvy run` above
//! it both live behind the walk, every number in between meant the process that it was taken for. A process that was
//! vouched for once stays its slice's, and so do its children, though their `divvy run` ends.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use divvy_model::SliceRecord;
use rustix::process::Signal;

use super::opens::Opens;
use super::sight::{Told, Whose, since_boot};
use super::slices::Slices;
use crate::decide::supervise::ProcessId;
use crate::files::kernel;
use crate::system::privilege;
use crate::system::procs::{self, Life, Stat};
use crate::system::watched::Watched;

/// How long a process that no slice has is not looked for in containers again. Such a look reads all of /proc.
const ASKED: Duration = Duration::from_secs(1);

/// How long an ended process's slice is remembered: a driver that samples tells of a process for a second after its end. A
/// number that a driver goes on to tell of is remembered until it does not.
const REMEMBERED: Duration = Duration::from_secs(2);

/// A driver that tells of a process for longer after its end does not take it down, in nanoseconds.
const TAKEN_DOWN: u64 = 200_000_000;

/// A process of a slice, pinned.
#[derive(Debug)]
pub(super) struct Vouched {
    watched: Watched,
    start_ticks: u64,
    /// Its slice, by id.
    pub slice: String,
    /// The slice's user.
    uid: u32,
    /// The `divvy run` that it is below, by process id.
    pub run: Option<u32>,
    /// It may belong to another user than the slice's: it is a container's.
    in_container: bool,
}

impl Vouched {
    /// Sends it a signal, where the slice's user might do so as well, or it is a container's. Returns whether it was sent.
    pub fn signal(&self, id: ProcessId, signal: Signal) -> bool {
        // The pinned process is the one that was looked at, whatever has its number now.
        let is_same = Stat::of(id.pid).is_ok_and(|stat| stat.start_ticks == id.start_ticks);
        is_same
            && may_signal(id.pid, self.uid, self.in_container)
            && self.watched.life() == Life::Alive
            && self.watched.signal_as(self.in_container, self.uid, signal)
    }

    /// Whether [`Self::signal`] would send one.
    pub fn may_be_signalled(&self, id: ProcessId) -> bool {
        may_signal(id.pid, self.uid, self.in_container)
    }

    fn lives(&self) -> bool {
        self.watched.is_alive()
    }

    /// The slice's user, and whether it is a container's.
    pub fn owner(&self) -> (u32, bool) {
        (self.uid, self.in_container)
    }
}

/// Whether this user might signal the process, as kill(2) has it; or it is a container's.
pub(super) fn may_signal(pid: u32, uid: u32, in_container: bool) -> bool {
    // Root may signal each process, and this one was found to be its slice's. The kernel is asked last: of a process that
    // runs as a subordinate user in a user namespace of the slice's user, only it knows.
    real_user(pid).is_some_and(|real| real == uid || uid == 0)
        || (in_container && is_in_container(pid))
        || privilege::may_signal(pid, uid)
}

fn real_user(pid: u32) -> Option<u32> {
    let status = kernel::text(pid, "status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Whether it still has mounts of its own. That alone makes no container: services and sandboxes of the host have them
/// too. Only [`Register::elsewhere`] says of a process that it is a container's.
fn is_in_container(pid: u32) -> bool {
    match privilege::mount_namespaces(&[pid, std::process::id(), 1])[..] {
        [its, ours, first] => its != 0 && its != ours && its != first,
        _ => false,
    }
}

/// All that were vouched for and live.
#[derive(Debug, Default)]
pub(super) struct Register {
    /// By number.
    known: HashMap<u32, Vouched>,
    /// Processes that were in no slice, and when that was last looked for in containers.
    others: HashMap<ProcessId, Instant>,
    /// Numbers that were free of late, or whose process ended.
    ended: HashMap<u32, Ended>,
    /// The numbers of this look's figures.
    named: HashSet<u32>,
    /// Since when drivers tell of each number at each look, in the kernel's ticks since boot.
    told_since: HashMap<u32, u64>,
}

/// A number whose process has ended.
#[derive(Debug)]
struct Ended {
    /// Which it was, its slice and that slice's user; none for one that no look found alive.
    of: Option<(ProcessId, String, u32)>,
    /// When its end was noticed, in nanoseconds since boot.
    at: u64,
    /// When it was noticed, or a driver told of the number last.
    told: Instant,
    /// A driver told of the number when it was asked long behind that end: what the process had is kept by another, as by a
    /// child that has its open files.
    is_kept: bool,
}

impl Ended {
    fn new(of: Option<(ProcessId, String, u32)>) -> Self {
        Self {
            of,
            at: since_boot(),
            told: Instant::now(),
            is_kept: false,
        }
    }

    fn whose(&self) -> Whose {
        match &self.of {
            Some((id, slice, _)) => Whose::Slice(*id, slice.clone()),
            None => Whose::Unknown,
        }
    }
}

impl Register {
    /// Forgets what has ended.
    pub fn settle(&mut self) {
        let now = Instant::now();
        for (pid, vouched) in self.known.extract_if(|_, vouched| !vouched.lives()) {
            let start_ticks = vouched.start_ticks;
            let of = (ProcessId { pid, start_ticks }, vouched.slice, vouched.uid);
            match self.ended.get_mut(&pid) {
                // What the driver told of under this number was an earlier process's, and is that still.
                Some(before) if before.is_kept => before.told = now,
                _ => {
                    self.ended.insert(pid, Ended::new(Some(of)));
                }
            }
        }
        self.ended
            .retain(|_, ended| now.duration_since(ended.told) < REMEMBERED);
        self.others.retain(|_, asked| asked.elapsed() < ASKED);
    }

    /// Forgets the ended processes of which no driver told that was asked at `asked` or later, behind their end: what it tells of
    /// such a number from now on is another's.
    pub fn forget_unnamed(&mut self, asked: u64) {
        let named = std::mem::take(&mut self.named);
        self.told_since.retain(|pid, _| named.contains(pid));
        self.ended
            .retain(|pid, ended| ended.at >= asked || named.contains(pid));
    }

    /// What the ended processes of a slice left behind is another's from now on.
    pub fn hand_over(&mut self, slice: &str, to: &SliceRecord) {
        let all = self.ended.values_mut().filter_map(|ended| ended.of.as_mut());
        for (_, of, uid) in all.filter(|(_, of, _)| of == slice) {
            (*of, *uid) = (to.id.clone(), to.uid);
        }
    }

    /// Whether a process of this slice lives.
    pub fn has(&self, slice: &str) -> bool {
        self.known.values().any(|vouched| vouched.slice == slice)
    }

    pub fn get(&self, id: ProcessId) -> Option<&Vouched> {
        let known = self.known.get(&id.pid);
        known.filter(|known| known.start_ticks == id.start_ticks)
    }

    /// Whether this process has ended, and another keeps what it had of a device.
    pub fn is_kept(&self, id: ProcessId) -> bool {
        let ended = self.ended.get(&id.pid).filter(|ended| ended.is_kept);
        ended.is_some_and(|ended| ended.of.as_ref().is_some_and(|(of, ..)| *of == id))
    }

    /// Whose a driver's figure of this number is, which is of the time that `told` says. The process that has the number now
    /// counts where it was there before the driver was asked. One that came later got the number in between: the figure is of
    /// the one that had it when a look saw it last, if any. So it is where the figure may be of a time at which that one lived.
    /// It counts for figures alone, because a number is not signalled.
    ///
    /// Where the process that has the number now has the device not open, the figure is of what the one before left to another.
    pub fn whose(&mut self, pid: u32, told: Told, slices: &Slices<'_>, opens: &Opens<'_>) -> Whose {
        self.named.insert(pid);
        self.told_since.entry(pid).or_insert(told.asked);
        let found = self.find(pid, slices);
        let living = found.and_then(|id| self.get(id).map(|known| (id, known.slice.clone(), known.uid)));
        let start_ticks = match (&living, Stat::of(pid)) {
            (Some((id, ..)), _) => Some(id.start_ticks),
            (None, Ok(stat)) if !stat.has_ended() => Some(stat.start_ticks),
            // What the system does not tell of is none of a slice's, as far as is known.
            (None, Err(error)) if !procs::is_gone(&error) => return Whose::Other,
            (None, _) => None,
        };
        let is_sampled = told.from < told.asked;
        let Some(start_ticks) = start_ticks else {
            let ended = self.ended.entry(pid).or_insert_with(|| Ended::new(None));
            if !is_sampled {
                ended.is_kept |= ended.at.saturating_add(TAKEN_DOWN) < told.asked_at;
                ended.told = Instant::now();
            }
            return ended.whose();
        };
        let before = self.ended.get_mut(&pid);
        if start_ticks >= told.asked {
            return before.map_or(Whose::Unknown, |ended| ended.whose());
        }
        if let Some(ended) = before {
            let of = ended.of.as_ref();
            let is_same_slice = living.as_ref().map(|(_, slice, _)| slice) == of.map(|(_, slice, _)| slice);
            if start_ticks >= told.from && !is_same_slice && of.is_some() {
                return ended.whose();
            }
            // A process that could have closed what it opened is not believed: only a number that was told of before it began is
            // another's. Nor is another user's slice answerable for it, unless that was so before.
            let uid = living.as_ref().map(|(.., uid)| *uid).or_else(|| real_user(pid));
            let is_later = self
                .told_since
                .get(&pid)
                .is_some_and(|since| start_ticks > *since);
            if let (Some(uid), Some((.., former)), true, false) = (uid, &ended.of, is_later, is_sampled)
                && opens.are_none(pid, uid)
            {
                if uid != *former && !ended.is_kept {
                    return Whose::Unknown;
                }
                ended.is_kept |= ended.at.saturating_add(TAKEN_DOWN) < told.asked_at;
                ended.told = Instant::now();
                return ended.whose();
            }
            // A figure that was there before the process was is not its own. One user's slices may sort that out themselves.
            let is_same_user = living.as_ref().map(|(.., uid)| uid) == of.map(|(.., uid)| uid);
            let is_own = is_same_user && of.is_some();
            if ended.is_kept {
                ended.told = Instant::now();
                if !is_own {
                    return Whose::Unknown;
                }
            }
        }
        living.map_or(Whose::Other, |(id, slice, _)| Whose::Slice(id, slice))
    }

    /// The process that has this number now, where it is a slice's: the innermost one's.
    pub fn find(&mut self, pid: u32, slices: &Slices<'_>) -> Option<ProcessId> {
        let stat = Stat::of(pid).ok().filter(|stat| !stat.has_ended())?;
        let id = ProcessId {
            pid,
            start_ticks: stat.start_ticks,
        };
        if self.get(id).is_some_and(Vouched::lives) {
            return Some(id);
        }
        let watched = Watched::again(pid, id.start_ticks)?;
        let found = self
            .below(id, &watched, slices)
            .or_else(|| self.elsewhere(id, &watched, slices));
        let (slice, uid, run, in_container) = found?;
        // It lives behind all that was read: the number meant this process.
        if watched.life() != Life::Alive {
            return None;
        }
        self.known.insert(
            pid,
            Vouched {
                watched,
                start_ticks: id.start_ticks,
                slice,
                uid,
                run,
                in_container,
            },
        );
        Some(id)
    }

    /// The slice of the nearest `divvy run`, or process that was vouched for, above it or that it is.
    fn below(&self, id: ProcessId, watched: &Watched, slices: &Slices<'_>) -> Option<Found> {
        let decides = |pid: u32| {
            let known = self.known.get(&pid);
            slices.runs.iter().any(|(run, _)| run.pid() == pid)
                || known.is_some_and(|known| known.watched.life() == Life::Alive)
        };
        let mut chain = vec![id.pid];
        if !decides(id.pid) {
            chain.extend(procs::ancestors_until(id.pid, id.start_ticks, decides).ok()?);
        }
        for at in chain {
            if let Some((run, record)) = slices.runs.iter().find(|(run, _)| run.pid() == at) {
                let both = run.life() == Life::Alive && watched.life() == Life::Alive;
                return both.then(|| (record.id.clone(), record.uid, Some(at), false));
            }
            let known = self.known.get(&at);
            if let Some(known) = known.filter(|known| known.watched.life() == Life::Alive) {
                return Some((known.slice.clone(), known.uid, known.run, known.in_container));
            }
        }
        None
    }

    /// The lasting slice that it has attached to, or whose container it is in.
    fn elsewhere(&mut self, id: ProcessId, watched: &Watched, slices: &Slices<'_>) -> Option<Found> {
        if self.others.contains_key(&id) || watched.life() != Life::Alive {
            return None;
        }
        let lasting = || slices.records.iter().filter(|record| record.lasting);
        let of = |record: &SliceRecord, in_container| (record.id.clone(), record.uid, None, in_container);
        let all = slices.inside();
        let inside = |record: &&SliceRecord| {
            let began = all.get(&record.id).and_then(|of_slice| of_slice.get(&id.pid));
            began == Some(&id.start_ticks)
        };
        let attached = lasting().find(|record| slices.members.roster.has(&record.id, id.pid));
        let found = match attached {
            // Any process that reaches the slice's socket may attach. Another user's is only the slice's where its mounts
            // or its cgroup show it inside one of the slice's containers.
            Some(record) if inside(&record) => Some(of(record, true)),
            Some(record) => may_signal(id.pid, record.uid, false).then(|| of(record, false)),
            None => lasting().find(inside).map(|record| of(record, true)),
        };
        if found.is_none() {
            self.others.insert(id, Instant::now());
        }
        found
    }

    /// The processes of a slice that live now, except its `divvy run`s, parents first. Processes that started since this
    /// look walked over all are missed: [`Slices::renew`] has them looked for again.
    pub fn members(&mut self, slice: &SliceRecord, slices: &Slices<'_>) -> Vec<ProcessId> {
        let table = slices.table();
        let mut found: Vec<ProcessId> = Vec::new();
        let mut seen: HashSet<u32> = HashSet::new();
        let mut pids = slices.members.of_in(slice, &table);
        if slice.lasting {
            let inside = slices.inside();
            pids.extend(inside.get(&slice.id).into_iter().flat_map(HashMap::keys));
        }
        // Those whose `divvy run` has ended, and their children.
        let known = self.known.iter().filter(|(_, vouched)| vouched.slice == slice.id);
        let mut lost: Vec<u32> = known.map(|(pid, _)| *pid).collect();
        lost.sort_unstable();
        let below: HashSet<u32> = pids.iter().copied().collect();
        for pid in lost {
            if !below.contains(&pid) && !slices.is_run(pid) {
                pids.extend(table.tree(pid, std::process::id()));
            }
        }
        for pid in pids {
            if !seen.insert(pid) || slices.is_run(pid) {
                continue;
            }
            let id = self.find(pid, slices);
            found.extend(id.filter(|id| self.is_of(*id, &slice.id)));
        }
        found
    }

    fn is_of(&self, id: ProcessId, slice: &str) -> bool {
        self.get(id).is_some_and(|vouched| vouched.slice == slice)
    }
}

/// A slice by id, its user, the `divvy run` above, and whether the process is a container's.
type Found = (String, u32, Option<u32>, bool);
