//! Processes: pinned by a descriptor, compared with what the request says of them, then signalled or looked at.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, makedev, open as open_file, statx};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::answer::{Answer, Refusal};
use crate::as_user;
use crate::request::{Owner, Process, View};
use crate::rules::Rules;
use crate::stopped::STOPS;
use crate::subordinate;

/// A thread of the kernel's own, among a process's flags in /proc/PID/stat.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Where containers have the folder of their slice's socket.
const SLICE: &[u8] = b" /run/divvy/slice ";
/// The most that is read of what the kernel says of a process, in bytes.
const LONGEST: u64 = 4 << 20;
/// As many of a process's descriptors and mapped files are looked at.
const MOST_OPEN: usize = 16 << 10;
/// How many processes of a mount namespace are asked what is mounted there: one that has changed its root sees less.
const ASKED: usize = 64;

/// When the process began, in the kernel's ticks since boot.
///
/// # Errors
/// `NotFound` where there is none; what the kernel refuses.
pub fn start_ticks(pid: u32) -> io::Result<u64> {
    field(&stat(pid)?, 22)
}

/// The user whose rights the process has.
///
/// # Errors
/// `NotFound` where there is none; what the kernel refuses.
pub fn effective_user(pid: u32) -> io::Result<u32> {
    user(pid, 1)
}

/// A user of the process: 0 is its real one, 1 its effective one.
fn user(pid: u32, which: usize) -> io::Result<u32> {
    let status = read(pid, "status")?;
    let status = String::from_utf8_lossy(&status);
    // Real, effective, saved, of the file system. A line of the name's cannot look so: the kernel writes it on one.
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = line.and_then(|line| line.split_whitespace().nth(which)?.parse().ok());
    user.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The number of a process's mount namespace.
///
/// # Errors
/// `NotFound` where there is no process; what the kernel refuses.
pub fn mount_namespace(pid: u32) -> io::Result<u64> {
    let of = |process: &str| {
        let namespace = fs::metadata(format!("/proc/{process}/ns/mnt"));
        namespace.map(|namespace| namespace.ino()).map_err(gone)
    };
    match of(&pid.to_string()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => of(&telling_thread(pid)),
        namespace => namespace,
    }
}

/// The folder of /proc that tells of a process's memory, files and namespaces, as `PID` or `PID/task/THREAD`: a main thread
/// that has exited has none of them any more, and the other threads have.
fn telling_thread(pid: u32) -> String {
    let whole = pid.to_string();
    let has_exited = |folder: &str| {
        let stat = fs::read(format!("/proc/{folder}/stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let state = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.trim_start().chars().next());
        matches!(state, None | Some('Z' | 'X'))
    };
    if !has_exited(&whole) {
        return whole;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let mut threads = threads.filter_map(|entry| entry.file_name().into_string().ok());
    let living =
        threads.find_map(|thread| Some(format!("{pid}/task/{thread}")).filter(|one| !has_exited(one)));
    living.unwrap_or(whole)
}

fn stat(pid: u32) -> io::Result<String> {
    read(pid, "stat").map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A field by its number in proc(5), from 4. The name stands in parentheses and may hold any character.
fn field(stat: &str, number: usize) -> io::Result<u64> {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = rest.split_whitespace().nth(number - 3);
    let field = field.and_then(|field| field.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read(process: impl Display, name: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(format!("/proc/{process}/{name}")).map_err(gone)?;
    file.take(LONGEST).read_to_end(&mut bytes).map_err(gone)?;
    Ok(bytes)
}

/// Of a process that ended while it was looked at the kernel says "no such process".
fn gone(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::SRCH) => io::ErrorKind::NotFound.into(),
        _ => error,
    }
}

/// An answer of an error: only "there is none" means gone.
fn failed(error: &io::Error) -> Answer {
    if error.kind() == io::ErrorKind::NotFound {
        return Answer::Gone;
    }
    Answer::Failed(Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// The process, pinned, if it matches the request and may be looked at.
fn pin(process: &Process, rules: &Rules) -> Result<OwnedFd, Answer> {
    let (pinned, _) = pin_unchecked(process, rules)?;
    // From here on the facts are the pinned process's for as long as it has not been reaped: its start time shows that.
    check_identity(process, rules)?;
    check_start(process)?;
    Ok(pinned)
}

/// The process, pinned, if it may be signalled: as the user of the request, where one is returned, and else as root. It
/// is then root's own or a container's.
fn pin_to_signal(process: &Process, rules: &Rules) -> Result<(OwnedFd, Pid, Option<u32>), Answer> {
    let (pinned, pid) = pin_unchecked(process, rules)?;
    let user = match process.owner {
        // Whose it is, the kernel says at the signal. It lets each process signal itself, as whatever user.
        Owner::User(uid) if uid != 0 && process.pid != std::process::id() => {
            check_kernel(process.pid)?;
            Some(uid)
        }
        Owner::User(_) | Owner::Container => {
            check_identity(process, rules)?;
            None
        }
    };
    check_start(process)?;
    Ok((pinned, pid, user))
}

fn pin_unchecked(process: &Process, rules: &Rules) -> Result<(OwnedFd, Pid), Answer> {
    let protected = [0, 1, std::process::id(), rules.agent_pid];
    if rules.separate && protected.contains(&process.pid) {
        return Err(Answer::Refused(Refusal::Protected));
    }
    let raw = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let pid = raw.ok_or(Answer::Gone)?;
    let pinned = pidfd_open(pid, PidfdFlags::empty());
    let pinned = pinned.map_err(|error| match error {
        // No process at all, or a thread of one.
        Errno::SRCH | Errno::INVAL => Answer::Gone,
        error => Answer::Failed(error),
    })?;
    Ok((pinned, pid))
}

fn check_start(process: &Process) -> Result<(), Answer> {
    match start_ticks(process.pid) {
        Ok(began) if began == process.start_ticks => Ok(()),
        Ok(_) => Err(Answer::Gone),
        Err(error) => Err(failed(&error)),
    }
}

fn check_kernel(pid: u32) -> Result<(), Answer> {
    let stat = stat(pid).map_err(|error| failed(&error))?;
    match field(&stat, 9).map_err(|error| failed(&error))? & KERNEL_THREAD {
        0 => Ok(()),
        _ => Err(Answer::Refused(Refusal::Protected)),
    }
}

fn check_identity(process: &Process, rules: &Rules) -> Result<(), Answer> {
    let pid = process.pid;
    check_kernel(pid)?;
    match process.owner {
        Owner::User(uid) => {
            let owner = effective_user(pid).map_err(|error| failed(&error))?;
            if owner != uid {
                return Err(Answer::Refused(Refusal::Owner));
            }
            // Of root's processes only those that root itself put into a slice of this agent.
            if uid == 0 && rules.separate && !(is_told_of(pid, rules) && is_roots_alone(pid)) {
                return Err(Answer::Refused(Refusal::Root));
            }
        }
        Owner::Container => {
            let namespace = mount_namespace(pid).map_err(|error| failed(&error))?;
            if rules.host.contains(&namespace) || (rules.separate && !has_slice(pid, namespace)) {
                return Err(Answer::Refused(Refusal::NoContainer));
            }
        }
    }
    Ok(())
}

/// Whether root alone made the process: a set-user-id program has its caller's environment. All of its users are root, its
/// session is no other user's, and neither is any process above it.
fn is_roots_alone(pid: u32) -> bool {
    /// More than any chain of parents.
    const DEPTH: usize = 1024;
    const UNSET: &[u8] = b"4294967295";
    let users_are_root = |pid: u32| {
        let status = read(pid, "status").unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        line.is_some_and(|line| line.split_whitespace().all(|user| user == "0"))
    };
    let session = read(pid, "loginuid");
    if !users_are_root(pid) || session.is_ok_and(|user| ![&b"0"[..], UNSET].contains(&user.as_slice())) {
        return false;
    }
    let mut above = pid;
    for _ in 0..DEPTH {
        let parent = stat(above).and_then(|stat| field(&stat, 4));
        above = match parent.map(u32::try_from) {
            // The first process of the machine, or of a namespace of processes.
            Ok(Ok(0)) => return true,
            Ok(Ok(parent)) if effective_user(parent).is_ok_and(|user| user == 0) => parent,
            _ => return false,
        };
    }
    false
}

/// Whether the environment that a process was started with names the agent's run directory, as every program of a slice
/// has it. Of a process that root alone made the environment is root's too.
fn is_told_of(pid: u32, rules: &Rules) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let environment = read(telling_thread(pid), "environ").unwrap_or_default();
    let run = rules.run.as_os_str().as_bytes();
    environment.split(|byte| *byte == 0).any(|variable| {
        let slice = variable.strip_prefix(b"DIVVY_SLICE=");
        variable.strip_prefix(b"DIVVY_RUN_DIR=") == Some(run)
            || slice.is_some_and(|socket| {
                socket
                    .strip_prefix(run)
                    .is_some_and(|rest| rest.starts_with(b"/"))
            })
    })
}

/// Whether a process of this mount namespace sees a slice mounted. The text is searched, no path in it is followed.
fn has_slice(pid: u32, namespace: u64) -> bool {
    let sees = |pid: u32| {
        let mounts = read(telling_thread(pid), "mountinfo").unwrap_or_default();
        mounts.windows(SLICE.len()).any(|window| window == SLICE)
    };
    sees(pid)
        || fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|other| mount_namespace(*other).is_ok_and(|its| its == namespace))
            .take(ASKED)
            .any(sees)
}

pub(crate) fn signal(process: &Process, signal: Signal, rules: &Rules) -> Result<Answer, Answer> {
    STOPS.send(rules.agent_pid, process, signal, |is_stopped| match is_stopped {
        true => go_on(process, rules),
        false => send(process, signal, rules),
    })
}

/// Lets a process go on that this helper has stopped. Root sends it: the process may have become root's since, which its
/// user may not signal, and it must not stay stopped.
pub(crate) fn go_on(process: &Process, rules: &Rules) -> Result<Answer, Answer> {
    let (pinned, _) = pin_unchecked(process, rules)?;
    check_kernel(process.pid)?;
    check_start(process)?;
    send_as_root(&pinned, Signal::CONT)
}

fn send_as_root(pinned: &OwnedFd, signal: Signal) -> Result<Answer, Answer> {
    match pidfd_send_signal(pinned, signal) {
        Ok(()) => Ok(Answer::Yes),
        Err(Errno::SRCH) => Err(Answer::Gone),
        Err(error) => Err(Answer::Failed(error)),
    }
}

fn send(process: &Process, signal: Signal, rules: &Rules) -> Result<Answer, Answer> {
    let (pinned, _, user) = pin_to_signal(process, rules)?;
    match user {
        Some(uid) => match as_user::signal(pinned.as_fd(), uid, signal) {
            Err(Answer::Refused(Refusal::Owner)) => {
                let real = subordinate_of(process, uid, rules)?;
                as_user::signal(
                    pinned.as_fd(),
                    real.ok_or(Answer::Refused(Refusal::Owner))?,
                    signal,
                )?;
            }
            sent => sent?,
        },
        None => return send_as_root(&pinned, signal),
    }
    Ok(Answer::Yes)
}

/// The real user of a pinned process, if root gave this number to the user as a subordinate one. The kernel then judges
/// whether that number may signal it.
fn subordinate_of(process: &Process, uid: u32, rules: &Rules) -> Result<Option<u32>, Answer> {
    let real = user(process.pid, 0).map_err(|error| failed(&error))?;
    check_start(process)?;
    Ok(subordinate::has(&rules.subordinates, uid, real).then_some(real))
}

/// Whether [`signal`] would send one.
pub(crate) fn may_signal(process: &Process, rules: &Rules) -> Result<Answer, Answer> {
    let (_pinned, pid, user) = pin_to_signal(process, rules)?;
    let may = match user {
        Some(uid) if as_user::may_signal(pid, uid)? => true,
        Some(uid) => match subordinate_of(process, uid, rules)? {
            Some(real) => as_user::may_signal(pid, real)?,
            None => false,
        },
        None => true,
    };
    check_start(process)?;
    Ok(if may { Answer::Yes } else { Answer::No })
}

pub(crate) fn open(process: &Process, view: View, rules: &Rules) -> Result<OwnedFd, Answer> {
    let _pinned = pin(process, rules)?;
    let name = match view {
        View::Maps => "maps",
        View::Environment => "environ",
    };
    let path = format!("/proc/{}/{name}", telling_thread(process.pid));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open_file(path, flags, Mode::empty()).map_err(|error| failed(&error.into()))?;
    // Its number may have passed to another before it was opened.
    check_start(process)?;
    Ok(file)
}

pub(crate) fn mount_namespaces(pids: &[u32]) -> Answer {
    let of = |pid: &u32| mount_namespace(*pid).unwrap_or(0);
    Answer::Numbers(pids.iter().map(of).collect())
}

pub(crate) fn has_open(
    process: &Process,
    nodes: &[u64],
    files: &[(u64, u64)],
    rules: &Rules,
) -> Result<Answer, Answer> {
    let _pinned = pin(process, rules)?;
    // A thread has no folder of mapped files of its own; that of a main thread which has exited is empty.
    let folders = [
        format!("/proc/{}/fd", telling_thread(process.pid)),
        format!("/proc/{}/map_files", process.pid),
    ]
    .map(PathBuf::from);
    let mut looked = 0;
    for folder in folders {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return Err(failed(&error)),
        };
        for entry in entries.flatten() {
            looked += 1;
            if looked > MOST_OPEN {
                return Err(Answer::Refused(Refusal::TooMuch));
            }
            // No server of a file system is asked: a container's file systems may have servers that never answer.
            let seen = statx(
                CWD,
                entry.path(),
                AtFlags::STATX_DONT_SYNC,
                StatxFlags::BASIC_STATS,
            );
            let Ok(seen) = seen else { continue };
            let found = match FileType::from_raw_mode(seen.stx_mode.into()) {
                FileType::CharacterDevice => {
                    nodes.contains(&makedev(seen.stx_rdev_major, seen.stx_rdev_minor))
                }
                _ => files.contains(&(makedev(seen.stx_dev_major, seen.stx_dev_minor), seen.stx_ino)),
            };
            if found {
                check_start(process)?;
                return Ok(Answer::Yes);
            }
        }
    }
    check_start(process)?;
    Ok(Answer::No)
}
