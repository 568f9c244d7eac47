//! Which processes are in a container of a slice, by the kernel's account of each. There are three kinds of evidence,
//! because a tenant controls any single one of them:
//!
//! - **mounts**: a process in whose mount namespace the slice's folder is mounted. /proc/PID/mountinfo shows what is below
//!   the process's root; a process that has changed its root is looked at from the top of its namespace.
//! - **namespace**: a process that shares its mount namespace with one of these.
//! - **cgroup**: a process in the container's cgroup or below it, whatever it has done to its mounts. A cgroup that has a
//!   process of the host's own mount namespace is not a container's.
//!
//! A look at one process costs some 100 microseconds, and a container may have thousands. So results are kept by
//! process number and start time, and missing ones are looked for again in a later round.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statx};
use rustix::io::Errno;

use crate::files::kernel;
use crate::lookout::opened::{look, place};
use crate::start::rundir::RunDir;
use crate::system::privilege;
use crate::system::procs;

/// The folder of their slice's socket, as containers see it.
const SLICE: &str = "/run/divvy/slice";
/// Processes whose mounts are looked at in one round.
const LOOKS: usize = 4096;
/// Rounds after which a process without evidence is looked at again: when a container's first process is made, it has
/// no mounts of its own yet.
const AGAIN: u64 = 8;

/// The folder of a slice that its containers have mounted.
#[derive(Debug)]
pub(super) struct SliceBox {
    /// The slice.
    pub id: String,
    /// The end of the folder's path, below any file system's mount point.
    tail: String,
    /// The file itself, by device and number.
    place: Option<(u64, u64)>,
}

impl SliceBox {
    pub fn of(run: &RunDir, id: &str) -> Self {
        let folder = run.slice_box(id);
        Self {
            id: id.to_owned(),
            tail: tail(run.path(), &folder),
            place: look(&folder).map(|seen| place(&seen)),
        }
    }
}

/// The folder's path below the run directory, with the slash before it. An entry of mountinfo ends with this path,
/// wherever the run directory's file system is mounted.
fn tail(run: &Path, folder: &Path) -> String {
    let below = folder.strip_prefix(run).unwrap_or(folder);
    format!("/{}", below.display())
}

/// The results of the rounds.
#[derive(Debug, Default)]
pub struct Evidence {
    round: u64,
    known: HashMap<(u32, u64), Known>,
}

#[derive(Debug)]
enum Known {
    /// It is in a container of the slice of this id, and stays there.
    In(String),
    /// This round found no evidence of that.
    Nothing(u64),
}

/// A process of the machine.
struct Process {
    pid: u32,
    began: u64,
    namespace: u64,
    cgroup: Option<String>,
}

impl Evidence {
    /// The processes of containers that have one of these folders, each with the folder's index in the list.
    pub(super) fn inside(&mut self, boxes: &[SliceBox]) -> Vec<(usize, u32)> {
        let found = self.inside_since(boxes).into_iter();
        found.map(|(slice, pid, _)| (slice, pid)).collect()
    }

    /// The same with the start of each process, in the kernel's ticks since boot.
    pub(super) fn inside_since(&mut self, boxes: &[SliceBox]) -> Vec<(usize, u32, u64)> {
        self.round += 1;
        let (hosts, others) = processes();
        let present: HashSet<(u32, u64)> = others.iter().map(|one| (one.pid, one.began)).collect();
        self.known.retain(|one, _| present.contains(one));
        self.look(&others, boxes);
        let own: Vec<Option<usize>> = others.iter().map(|one| self.slice_of(one, boxes)).collect();
        let seen = || {
            others
                .iter()
                .zip(&own)
                .filter_map(|(one, own)| Some((one, (*own)?)))
        };
        let namespaces: HashMap<u64, usize> = seen().map(|(one, slice)| (one.namespace, slice)).collect();
        let cgroups = claims(
            seen().filter_map(|(one, slice)| Some((one.cgroup.as_deref()?, slice))),
            &hosts,
        );
        let slice_of = |(one, own): (&Process, &Option<usize>)| {
            let by_cgroup = || above(one.cgroup.as_deref()?).find_map(|above| cgroups.get(above).copied());
            let slice = own
                .or_else(|| namespaces.get(&one.namespace).copied())
                .or_else(by_cgroup)?;
            Some((slice, one.pid, one.began))
        };
        let found = others.iter().zip(&own).filter_map(slice_of);
        // Its mounts were looked at behind its start: it must be the same process still.
        found
            .filter(|(_, pid, began)| procs::start_ticks(*pid) == Some(*began))
            .collect()
    }

    /// Has the processes without evidence looked at again in the next round.
    pub fn look_again(&mut self) {
        self.known.retain(|_, known| matches!(known, Known::In(_)));
    }

    fn slice_of(&self, process: &Process, boxes: &[SliceBox]) -> Option<usize> {
        match self.known.get(&(process.pid, process.began))? {
            Known::In(id) => boxes.iter().position(|one| one.id == *id),
            Known::Nothing(_) => None,
        }
    }

    /// Looks at the mounts of new processes, and again of those without evidence. The process that has waited longest
    /// comes first.
    fn look(&mut self, others: &[Process], boxes: &[SliceBox]) {
        let mut due: Vec<(u64, &Process)> = others
            .iter()
            .filter_map(|one| match self.known.get(&(one.pid, one.began)) {
                None => Some((0, one)),
                Some(Known::Nothing(round)) if round + AGAIN <= self.round => Some((*round, one)),
                Some(_) => None,
            })
            .collect();
        due.sort_by_key(|(round, _)| *round);
        for (_, one) in due.into_iter().take(LOOKS) {
            let known = match mounted(one.pid, boxes) {
                Some(slice) => Known::In(boxes[slice].id.clone()),
                None => Known::Nothing(self.round),
            };
            self.known.insert((one.pid, one.began), known);
        }
    }
}

/// The cgroups of the machine's own processes, and the processes of other mount namespaces than the machine's.
fn processes() -> (HashSet<String>, Vec<Process>) {
    // Its start is read before all else, and again behind: so all of it is of one process.
    let all = kernel::processes().unwrap_or_default().into_iter();
    let (pids, starts): (Vec<u32>, Vec<u64>) = all
        .filter_map(|pid| Some((pid, procs::start_ticks(pid)?)))
        .unzip();
    let own = privilege::mount_namespaces(&[std::process::id(), 1]);
    let (mut hosts, mut others) = (HashSet::new(), Vec::new());
    let namespaces = privilege::mount_namespaces(&pids);
    for ((pid, began), namespace) in pids.into_iter().zip(starts).zip(namespaces) {
        // The process has ended, or this agent may not look at it.
        if namespace == 0 {
            continue;
        }
        let cgroup = cgroup(&kernel::text(pid, "cgroup").unwrap_or_default());
        if own.contains(&namespace) {
            hosts.extend(cgroup);
        } else if procs::start_ticks(pid) == Some(began) {
            others.push(Process {
                pid,
                began,
                namespace,
                cgroup,
            });
        }
    }
    (hosts, others)
}

/// The most specific cgroup of a process, from the lines `hierarchy:controllers:path` of its /proc/PID/cgroup. The root
/// proves nothing.
fn cgroup(lines: &str) -> Option<String> {
    let paths = lines.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let telling = paths.filter(|path| !path.trim_matches('/').is_empty());
    let best = telling.max_by_key(|path| (path.split('/').any(is_container), path.len()))?;
    Some(best.to_owned())
}

/// Whether a cgroup of this name is a container's, as all engines name them: by an id of 64 hexadecimal digits.
fn is_container(name: &str) -> bool {
    let digits = name.split(|digit: char| !digit.is_ascii_hexdigit());
    digits.into_iter().any(|run| run.len() >= 64)
}

/// A path and its parents, the longest first.
fn above(path: &str) -> impl Iterator<Item = &str> {
    let mut next = Some(path);
    std::iter::from_fn(move || {
        let now = next?;
        next = now
            .rsplit_once('/')
            .map(|(above, _)| above)
            .filter(|above| !above.is_empty());
        Some(now)
    })
}

/// The slice of each container cgroup. It is the whole container's cgroup where its id names one, else the process's
/// own, and never one that also has the machine's own processes.
fn claims<'a>(
    seen: impl Iterator<Item = (&'a str, usize)>,
    hosts: &HashSet<String>,
) -> HashMap<&'a str, usize> {
    let shared: HashSet<&str> = hosts.iter().flat_map(|host| above(host)).collect();
    let mut claims = HashMap::new();
    for (path, slice) in seen {
        let levels: Vec<&str> = above(path).collect();
        let outermost = levels
            .iter()
            .rposition(|level| level.rsplit('/').next().is_some_and(is_container));
        let mut levels = levels[..=outermost.unwrap_or(0)].iter().rev();
        if let Some(level) = levels.find(|level| !shared.contains(**level)) {
            claims.entry(*level).or_insert(slice);
        }
    }
    claims
}

/// The folder, of these, that the process's mount namespace has at the place where containers have it.
fn mounted(pid: u32, boxes: &[SliceBox]) -> Option<usize> {
    let process = procs::telling_thread(pid);
    in_mountinfo(&process, boxes).or_else(|| from_the_top(&process, boxes))
}

/// Read as text: no path of a container is followed.
fn in_mountinfo(process: &str, boxes: &[SliceBox]) -> Option<usize> {
    let mounts = kernel::bytes(process, "mountinfo").ok()?;
    let mounts = String::from_utf8_lossy(&mounts);
    // `36 35 98:0 /slices/ID/box /run/divvy/slice`: the mounted part of its file system, and its mount point.
    let at = format!(" {SLICE} ");
    let sources = mounts.lines().filter_map(|line| Some(line.split_once(&at)?.0));
    sources
        .filter_map(|before| boxes.iter().position(|one| before.ends_with(&one.tail)))
        .next()
}

/// Walks from the process's root up to the top of its mount namespace, and down to the slice's place. No file system's
/// server is asked: a path that the kernel does not have cached has no mount on it.
#[expect(
    clippy::disallowed_methods,
    reason = "the path is the kernel's, and nothing is opened but the place"
)]
fn from_the_top(process: &str, boxes: &[SliceBox]) -> Option<usize> {
    /// Levels of one step: as many as fit in a path.
    const LEVELS: usize = 1300;
    const STEPS: usize = 64;
    let root = PathBuf::from(format!("/proc/{process}/root"));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(&root, flags, Mode::empty()).ok()?;
    let up = vec![".."; LEVELS].join("/");
    let mut before = None;
    for _ in 0..STEPS {
        let here = which(&at)?;
        if before == Some(here) {
            break;
        }
        before = Some(here);
        at = step(&at, &up)?;
    }
    let folder = step(&at, SLICE.trim_start_matches('/'))?;
    let (_, found) = which(&folder)?;
    boxes.iter().position(|one| one.place == Some(found))
}

#[expect(
    clippy::disallowed_methods,
    reason = "from a descriptor, without links, and nothing is opened but the place"
)]
fn step(from: &OwnedFd, path: &str) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // Another process may be renaming or mounting meanwhile.
    for _ in 0..8 {
        match openat2(from, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            opened => return opened.ok(),
        }
    }
    None
}

/// The mount and the file.
fn which(file: &OwnedFd) -> Option<(u64, (u64, u64))> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    let seen: Statx = statx(file, "", flags, mask).ok()?;
    Some((seen.stx_mnt_id, place(&seen)))
}

#[cfg(test)]
mod tests;
