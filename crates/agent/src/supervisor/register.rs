//! The processes that the kernel vouches for as a slice's. Only these are ever signalled.
//!
//! A process is pinned first, and its ancestors are read after that. Where the pinned process and the `divvy run` above
//! it both live behind the walk, every number in between meant the process that it was taken for. A process that was
//! vouched for once stays its slice's, and so do its children, though their `divvy run` ends.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use divvy_model::SliceRecord;
use rustix::process::Signal;

use super::sight::Whose;
use super::slices::Slices;
use crate::decide::supervise::ProcessId;
use crate::files::kernel;
use crate::system::privilege;
use crate::system::procs::{self, Life, Stat};
use crate::system::watched::Watched;

/// How long a process that no slice has is not looked for in containers again. Such a look reads all of /proc.
const ASKED: Duration = Duration::from_secs(1);

/// How long an ended process's slice is remembered: a driver that samples tells of a process for a second after its end.
const REMEMBERED: Duration = Duration::from_secs(2);

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
    /// Those that ended of late, by number: which they were, their slice, and when that was noticed.
    ended: HashMap<u32, (ProcessId, String, Instant)>,
}

impl Register {
    /// Forgets what has ended.
    pub fn settle(&mut self) {
        let now = Instant::now();
        for (pid, vouched) in self.known.extract_if(|_, vouched| !vouched.lives()) {
            let start_ticks = vouched.start_ticks;
            self.ended
                .insert(pid, (ProcessId { pid, start_ticks }, vouched.slice, now));
        }
        self.ended
            .retain(|_, (.., noticed)| now.duration_since(*noticed) < REMEMBERED);
        self.others.retain(|_, asked| asked.elapsed() < ASKED);
    }

    /// Whether a process of this slice lives.
    pub fn has(&self, slice: &str) -> bool {
        self.known.values().any(|vouched| vouched.slice == slice)
    }

    pub fn get(&self, id: ProcessId) -> Option<&Vouched> {
        let known = self.known.get(&id.pid);
        known.filter(|known| known.start_ticks == id.start_ticks)
    }

    /// Whose a driver's figure of this number is: the process's that has the number now, or else that of the one that had
    /// it when a look saw it last. The latter counts for figures alone, because a number is not signalled.
    pub fn whose(&mut self, pid: u32, slices: &Slices<'_>) -> Whose {
        if let Some(id) = self.find(pid, slices)
            && let Some(vouched) = self.get(id)
        {
            return Whose::Slice(id, vouched.slice.clone());
        }
        if procs::life(pid) != Life::Gone {
            return Whose::Other;
        }
        match self.ended.get(&pid) {
            Some((id, slice, _)) => Whose::Slice(*id, slice.clone()),
            None => Whose::Unknown,
        }
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
