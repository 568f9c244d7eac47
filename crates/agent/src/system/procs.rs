//! The kernel's account of processes: names, owners, children.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::files::kernel;

/// Whether a process lives. Only "no such process" means that it is gone. An agent that is out of descriptors, or may
/// not look, knows nothing, and ends nothing for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It lives.
    Alive,
    /// It has ended, or its number is another process's.
    Gone,
    /// The system does not tell.
    Unknown,
}

/// The kernel's account of a process in one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The letter of its state, as in proc(5).
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// When it began, in the kernel's ticks since boot. With it, a process id names one process for ever.
    pub start_ticks: u64,
}

impl Stat {
    /// Looks at a process.
    ///
    /// The kernel's letter is that of the main thread. A program may end that thread and go on in others, so `Z` is asked
    /// about again: the process has ended when a descriptor of it says so.
    ///
    /// # Errors
    /// The system's reason; [`is_gone`] tells whether it means that there is no such process.
    pub fn of(pid: u32) -> io::Result<Self> {
        let stat = Self::of_main_thread(pid)?;
        if !stat.has_ended() || is_over(pid)? {
            return Ok(stat);
        }
        // The descriptor was of the same process if that still has the number.
        let again = Self::of_main_thread(pid)?;
        if !again.has_ended() || again.start_ticks != stat.start_ticks {
            return Ok(again);
        }
        let others = kernel::numbers(pid, "task").unwrap_or_default().into_iter();
        let states = others.filter_map(|thread| Self::of_main_thread(u32::try_from(thread).ok()?).ok());
        Ok(Self {
            state: of_threads(states.map(|thread| thread.state)),
            ..again
        })
    }

    fn of_main_thread(pid: u32) -> io::Result<Self> {
        let text = kernel::text(pid, "stat")?;
        Self::parse(&text).ok_or_else(|| io::Error::from(ErrorKind::InvalidData))
    }

    fn parse(text: &str) -> Option<Self> {
        // The name stands in parentheses and may hold any character: what follows the last one is regular.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            // The 22nd field, where the parent is the 4th.
            start_ticks: fields.nth(22 - 5)?.parse().ok()?,
        })
    }

    /// Whether it is the process of another look, and has the same parent.
    fn is_child_as(self, other: Self) -> bool {
        (self.parent, self.start_ticks) == (other.parent, other.start_ticks)
    }

    /// Whether a signal or a debugger has stopped it.
    #[must_use]
    pub fn is_stopped(self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Whether it has ended and only waits for its parent to notice. All of its threads have.
    #[must_use]
    pub fn has_ended(self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Whether all threads of the process have ended: its descriptor is readable then.
fn is_over(pid: u32) -> io::Result<bool> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pidfd = match pidfd_open(raw.ok_or(Errno::SRCH)?, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH | Errno::INVAL) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&now))?;
    Ok(ready > 0)
}

/// The state of a process whose main thread has exited, by those of all its threads. It is stopped where each is; a thread
/// that came and went meanwhile runs.
fn of_threads(states: impl Iterator<Item = char>) -> char {
    let living: Vec<char> = states.filter(|state| !matches!(state, 'Z' | 'X')).collect();
    let moves = living.iter().find(|state| !matches!(state, 'T' | 't'));
    moves.or(living.first()).copied().unwrap_or('R')
}

/// Whether the kernel takes the process down by itself: each of its threads is on its way out, or cannot be disturbed. A
/// thread that a tracer holds before its end is not.
#[must_use]
pub(crate) fn is_leaving(pid: u32) -> bool {
    let threads = kernel::numbers(pid, "task").unwrap_or_default().into_iter();
    let mut texts = threads.filter_map(|thread| kernel::text(thread, "stat").ok());
    texts.all(|text| leaves(&text).unwrap_or(true))
}

/// The same of a thread, by its line; none where that is not understood.
fn leaves(stat: &str) -> Option<bool> {
    /// PF_EXITING of the kernel's sched.h, in the 9th field.
    const EXITING: u64 = 4;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // The 9th field, where the state is the 3rd.
    let flags: u64 = fields.nth(9 - 4)?.parse().ok()?;
    Some(matches!(state, 'Z' | 'X' | 'D') || flags & EXITING != 0)
}

/// The processes that hold a thread of this one: they trace it, and it stands still for them. A process may make its parent
/// its tracer, which holds nothing by that.
#[must_use]
pub(crate) fn tracers(pid: u32) -> Vec<u32> {
    let of = |status: &str, name: &str| -> Option<String> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    let threads = kernel::numbers(pid, "task").unwrap_or_default().into_iter();
    let tracing = threads.filter_map(|thread| {
        let status = kernel::text(thread, "status").ok()?;
        let is_held = of(&status, "State:")?.starts_with('t');
        let tracer: u32 = of(&status, "TracerPid:")?.parse().ok()?;
        (is_held && tracer != 0).then_some(tracer)
    });
    // The kernel names the thread that traces.
    let all: HashSet<u32> = tracing
        .filter_map(|tracer| of(&kernel::text(tracer, "status").ok()?, "Tgid:")?.parse().ok())
        .collect();
    all.into_iter().collect()
}

/// The folder of /proc that tells of a process's memory, files and namespaces, as `PID` or `PID/task/THREAD`: a main thread
/// that has exited has none of them any more, and the other threads have.
#[must_use]
pub(crate) fn telling_thread(pid: u32) -> String {
    let whole = pid.to_string();
    if !Stat::of_main_thread(pid).is_ok_and(Stat::has_ended) {
        return whole;
    }
    let mut others = kernel::numbers(pid, "task").unwrap_or_default().into_iter();
    let lives = |thread: &i32| {
        let stat = u32::try_from(*thread).map(Stat::of_main_thread);
        stat.is_ok_and(|stat| stat.is_ok_and(|stat| !stat.has_ended()))
    };
    match others.find(lives) {
        Some(thread) => format!("{pid}/task/{thread}"),
        None => whole,
    }
}

/// Whether an error says that there is no such process. Every other error says nothing about the process.
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// The result of a look at a process; none where the process is gone, or this process may not look at it.
///
/// # Errors
/// The system does not tell, for another reason.
pub fn if_there<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(shown) => Ok(Some(shown)),
        Err(error) if is_gone(&error) || error.kind() == ErrorKind::PermissionDenied => Ok(None),
        Err(error) => Err(error),
    }
}

/// The program's name, as `ps` shows it: the base name of its first argument, else the kernel's short name.
#[must_use]
pub fn command(pid: u32) -> String {
    let line = kernel::bytes(pid, "cmdline").unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(first);
    let name = name.rsplit('/').next().unwrap_or_default().trim();
    if !name.is_empty() {
        return name.to_owned();
    }
    kernel::text(pid, "comm")
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

/// All processes and their parents, from one walk of /proc: processes that start meanwhile are missed.
#[derive(Debug, Default)]
pub(crate) struct Table {
    children: HashMap<u32, Vec<u32>>,
}

impl Table {
    /// Walks /proc.
    #[must_use]
    pub fn read() -> Self {
        let all = kernel::processes().unwrap_or_default();
        Self::of(all.into_iter().filter_map(|pid| {
            let stat = Stat::of_main_thread(pid).ok()?;
            Some((pid, stat.parent))
        }))
    }

    fn of(pairs: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (pid, parent) in pairs {
            children.entry(parent).or_default().push(pid);
        }
        Self { children }
    }

    /// The process and everything below it, parents first, except for `except` and its descendants.
    #[must_use]
    pub fn tree(&self, root: u32, except: u32) -> Vec<u32> {
        let mut tree = vec![root];
        // The walk is of many moments: a number that is used again may stand above itself.
        let mut seen = HashSet::from([root, except]);
        let mut next = 0;
        while let Some(parent) = tree.get(next).copied() {
            let below = self.children.get(&parent).into_iter().flatten();
            tree.extend(below.copied().filter(|pid| seen.insert(*pid)));
            next += 1;
        }
        tree
    }
}

/// The process and everything below it, parents first, except for `except` and its descendants. It comes from one walk
/// of /proc: processes that start meanwhile are missed.
#[must_use]
pub fn tree(root: u32, except: u32) -> Vec<u32> {
    Table::read().tree(root, except)
}

/// The process's user.
#[must_use]
pub fn owner(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|meta| meta.uid())
}

/// The process's first argument, which a daemon may have replaced by a text about itself.
#[must_use]
pub(crate) fn command_line(pid: u32) -> String {
    let line = kernel::bytes(pid, "cmdline").unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(first).into_owned()
}

/// Whether root started the process under this short name: its real user is root, so no set-id program counts.
#[must_use]
pub(crate) fn is_roots(pid: u32, name: &str) -> bool {
    let status = kernel::text(pid, "status").unwrap_or_default();
    let is_root = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let is_root = is_root.and_then(|line| line.split_whitespace().next()) == Some("0");
    is_root && kernel::text(pid, "comm").is_ok_and(|comm| comm.trim() == name)
}

/// The process's parent.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    Stat::of_main_thread(pid).ok().map(|stat| stat.parent)
}

/// When the process began; see [`Stat::start_ticks`].
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    Stat::of_main_thread(pid).ok().map(|stat| stat.start_ticks)
}

/// The reason why a process's ancestors are unknown.
#[derive(Debug)]
pub enum Lost {
    /// The process has ended.
    Ended,
    /// Its ancestors came and went faster than they could be looked at.
    Unsteady,
    /// The system does not tell.
    Unknown(io::Error),
}

/// The ancestors of the process that began at `since`, nearest first, without the first process of all.
///
/// As far as can be seen they are all of one moment. Where one vanishes, is younger than its child, or is no longer its
/// parent, the walk starts over.
///
/// # Errors
/// [`Lost`].
pub fn ancestors(pid: u32, since: u64) -> Result<Vec<u32>, Lost> {
    ancestors_by(pid, since, |_| false, Stat::of)
}

/// The same up to the first for which `stop` says so, that one included. A tenant can make its tree of processes deep, and
/// each level costs two looks.
///
/// # Errors
/// [`Lost`].
pub fn ancestors_until(pid: u32, since: u64, stop: impl Fn(u32) -> bool) -> Result<Vec<u32>, Lost> {
    ancestors_by(pid, since, stop, Stat::of)
}

fn ancestors_by(
    pid: u32,
    since: u64,
    stop: impl Fn(u32) -> bool,
    mut look: impl FnMut(u32) -> io::Result<Stat>,
) -> Result<Vec<u32>, Lost> {
    const TRIES: u32 = 32;
    for _ in 0..TRIES {
        match look(pid) {
            Ok(own) if own.start_ticks == since && !own.has_ended() => {
                if let Some(above) = walk(pid, own, &stop, &mut look).map_err(Lost::Unknown)? {
                    return Ok(above);
                }
            }
            Ok(_) => return Err(Lost::Ended),
            Err(error) if is_gone(&error) => return Err(Lost::Ended),
            Err(error) => return Err(Lost::Unknown(error)),
        }
    }
    Err(Lost::Unsteady)
}

/// One walk; none where it has to start over.
fn walk(
    pid: u32,
    own: Stat,
    stop: &impl Fn(u32) -> bool,
    look: &mut impl FnMut(u32) -> io::Result<Stat>,
) -> io::Result<Option<Vec<u32>>> {
    /// Deeper than any honest tree of processes.
    const DEEPEST: usize = 4096;
    let mut look = |pid| match look(pid) {
        Err(error) if is_gone(&error) => Ok(None),
        looked => looked.map(Some),
    };
    let mut above = Vec::new();
    let mut child = (pid, own);
    while child.1.parent > 1 {
        let parent = child.1.parent;
        let Some(stat) = look(parent)? else {
            return Ok(None);
        };
        // The child is looked at again: it is still a child, so this number meant the parent at that look.
        let still = look(child.0)?.is_some_and(|now| now.is_child_as(child.1));
        if !still || stat.start_ticks > child.1.start_ticks {
            return Ok(None);
        }
        // Another walk would be as long.
        if above.len() == DEEPEST {
            return Err(io::Error::from(ErrorKind::FileTooLarge));
        }
        above.push(parent);
        if stop(parent) {
            break;
        }
        child = (parent, stat);
    }
    Ok(Some(above))
}

/// Whether a process of this number lives (a zombie does not).
#[must_use]
pub fn life(pid: u32) -> Life {
    match Stat::of(pid) {
        Ok(stat) if stat.has_ended() => Life::Gone,
        Ok(_) => Life::Alive,
        Err(error) if is_gone(&error) => Life::Gone,
        Err(_) => Life::Unknown,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_seen_and_signalled_and_gone() {
        // The process ends with this test, however that ends: its standard input closes.
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat runs");
        // Until it has become `cat`, it is a copy of this test.
        while command(child.id()) != "cat" {
            assert_eq!(life(child.id()), Life::Alive);
            std::thread::yield_now();
        }
        assert!(tree(std::process::id(), 0).contains(&child.id()));
        assert_eq!(parent(child.id()), Some(std::process::id()));
        assert!(start_ticks(child.id()) >= start_ticks(std::process::id()));
        assert_eq!(life(child.id()), Life::Alive);
        assert_eq!(owner(child.id()), Some(rustix::process::getuid().as_raw()));
        child.kill().expect("ours");
        child.wait().expect("reaped");
        assert_eq!(life(child.id()), Life::Gone);
    }

    /// Its main thread exits, and another goes on until the standard input ends.
    pub(crate) const WITHOUT_MAIN_THREAD: &str = "
import ctypes, os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
ctypes.CDLL(None).pthread_exit(None)
";

    #[test]
    fn a_process_whose_main_thread_has_exited_lives_until_its_last_thread_ends() {
        let program = Command::new("python3")
            .args(["-c", WITHOUT_MAIN_THREAD])
            .stdin(Stdio::piped())
            .spawn();
        let Ok(mut child) = program else {
            eprintln!("skipped: there is no python3");
            return;
        };
        let pid = child.id();
        while !Stat::of_main_thread(pid).expect("it is there").has_ended() {
            std::thread::yield_now();
        }
        let stat = Stat::of(pid).expect("it is there");
        assert!(!stat.has_ended() && !stat.is_stopped(), "{stat:?}");
        assert_eq!(life(pid), Life::Alive);
        let above = ancestors(pid, stat.start_ticks).expect("it lives");
        assert_eq!(above.first(), Some(&std::process::id()));
        let maps = kernel::text(telling_thread(pid), "maps").expect("its memory");
        assert!(maps.contains("python"), "{maps}");
        let namespace = |pid| divvy_privileged::mount_namespace(pid).expect("its mounts");
        assert_eq!(namespace(pid), namespace(std::process::id()));
        drop(child.stdin.take());
        while life(pid) == Life::Alive {
            std::thread::yield_now();
        }
        assert_eq!(life(pid), Life::Gone);
        assert!(Stat::of(pid).expect("it is not reaped").has_ended());
        child.wait().expect("reaped");
    }

    #[test]
    fn threads_without_their_main_thread_stand_still_where_each_does() {
        let of = |states: &str| of_threads(states.chars());
        assert_eq!([of("ZT"), of("ZTt"), of("ZTS"), of("ZX")], ['T', 'T', 'S', 'R']);
    }

    #[test]
    fn a_thread_leaves_by_the_kernels_flag_and_not_where_a_tracer_holds_it() {
        let line = |state: char, flags: u64| {
            format!("7 (a) {state} 5 7 7 0 -1 {flags} 1 0 0 0 3 4 0 0 20 0 1 0 991")
        };
        let of = |state, flags| leaves(&line(state, flags)).expect("understood");
        assert!(of('R', 4) && of('Z', 0) && of('D', 0) && of('S', 0x40_0044));
        assert!(!of('t', 0) && !of('R', 0x40_0040));
        assert_eq!(leaves("7 (a) S"), None);
        assert!(!is_leaving(std::process::id()) && tracers(std::process::id()).is_empty());
    }

    #[test]
    fn a_tree_has_all_below_and_none_twice() {
        let pairs = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 2), (7, 6)];
        let table = Table::of(pairs.into_iter());
        assert_eq!(table.tree(2, 0), [2, 3, 6, 4, 7]);
        assert_eq!(table.tree(2, 6), [2, 3, 4]);
        let used_again = Table::of([(2, 3), (3, 2)].into_iter());
        assert_eq!(used_again.tree(2, 0), [2, 3]);
    }

    #[test]
    fn a_name_may_hold_anything() {
        let stat = Stat::parse("7 (a) Z 1 (b) S 5 7 7 0 -1 4 1 0 0 0 3 4 0 0 20 0 1 0 991 2 3\n");
        let expected = Stat {
            state: 'S',
            parent: 5,
            start_ticks: 991,
        };
        assert_eq!(stat, Some(expected));
        assert_eq!(Stat::parse("7 (a) S 5"), None);
    }

    fn stat(parent: u32, start_ticks: u64) -> Stat {
        Stat {
            state: 'S',
            parent,
            start_ticks,
        }
    }

    #[test]
    fn a_walk_over_ancestors_is_of_one_moment() {
        let tree = |pid: u32| match pid {
            9 => Ok(stat(7, 90)),
            7 => Ok(stat(3, 70)),
            3 => Ok(stat(1, 30)),
            _ => Err(io::Error::from(ErrorKind::NotFound)),
        };
        assert_eq!(ancestors_by(9, 90, |_| false, tree).expect("steady"), [7, 3]);
        assert!(
            matches!(ancestors_by(9, 91, |_| false, tree), Err(Lost::Ended)),
            "another"
        );
        assert!(matches!(ancestors_by(8, 80, |_| false, tree), Err(Lost::Ended)));
        // Its parent ends while it is looked at, and 3 takes it over.
        let mut looks = 0;
        let orphaned = |pid: u32| {
            looks += 1;
            match pid {
                9 if looks > 1 => Ok(stat(3, 90)),
                7 if looks > 1 => Err(io::Error::from(ErrorKind::NotFound)),
                _ => tree(pid),
            }
        };
        assert_eq!(
            ancestors_by(9, 90, |_| false, orphaned).expect("steady at last"),
            [3]
        );
        // Its parent's number means a younger process.
        let younger = |pid: u32| match pid {
            7 => Ok(stat(1, 95)),
            _ => tree(pid),
        };
        assert!(matches!(
            ancestors_by(9, 90, |_| false, younger),
            Err(Lost::Unsteady)
        ));
        // It has another parent whenever it is looked at again.
        let mut turn = 0;
        let restless = |pid: u32| {
            turn += 1;
            match pid {
                9 => Ok(stat(if turn % 3 == 1 { 7 } else { 3 }, 90)),
                _ => tree(pid),
            }
        };
        assert!(matches!(
            ancestors_by(9, 90, |_| false, restless),
            Err(Lost::Unsteady)
        ));
        let blind = |pid: u32| match pid {
            7 => Err(io::Error::from_raw_os_error(Errno::MFILE.raw_os_error())),
            _ => tree(pid),
        };
        assert!(matches!(
            ancestors_by(9, 90, |_| false, blind),
            Err(Lost::Unknown(_))
        ));
        let own = std::process::id();
        let began = start_ticks(own).expect("we live");
        let parent = std::os::unix::process::parent_id();
        assert_eq!(ancestors(own, began).expect("steady").first(), Some(&parent));
    }

    #[test]
    fn only_no_such_process_means_gone() {
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        assert!(is_gone(&error(Errno::NOENT)) && is_gone(&error(Errno::SRCH)));
        for errno in [
            Errno::MFILE,
            Errno::NFILE,
            Errno::ACCESS,
            Errno::PERM,
            Errno::NOMEM,
            Errno::IO,
        ] {
            assert!(!is_gone(&error(errno)), "{errno}");
            let looked = if_there::<()>(Err(error(errno)));
            assert_eq!(
                looked.is_ok(),
                matches!(errno, Errno::ACCESS | Errno::PERM),
                "{errno}"
            );
        }
    }
}
