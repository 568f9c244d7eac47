//! Signals that root sends as a user would: the kernel itself judges whether that user may.
//!
//! A user may signal its own processes, programs with another effective user that it has started, and each process of a
//! user namespace that it owns: those run as subordinate users (`/etc/subuid`). kill(2) has these rules. They are not
//! written down here a second time. A thread takes the user in the place of root and sends the signal, and then it ends.

use std::io;

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, Uid, pidfd_send_signal, test_kill_process};
use rustix::thread::{CapabilitySet, capabilities};

use crate::answer::{Answer, Refusal};

/// Signals a pinned process as this user.
pub(crate) fn signal(pinned: BorrowedFd<'_>, uid: u32, signal: Signal) -> Result<(), Answer> {
    judged(as_user(uid, || pidfd_send_signal(pinned, signal)))
}

/// Whether this user may signal the process that has this number. The caller has pinned it, and looks behind this
/// whether it still is the same.
pub(crate) fn may_signal(pid: Pid, uid: u32) -> Result<bool, Answer> {
    match judged(as_user(uid, || test_kill_process(pid))) {
        Ok(()) => Ok(true),
        Err(Answer::Refused(_)) => Ok(false),
        Err(answer) => Err(answer),
    }
}

fn judged(result: io::Result<Result<(), Errno>>) -> Result<(), Answer> {
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Errno::PERM)) => Err(Answer::Refused(Refusal::Owner)),
        Ok(Err(Errno::SRCH)) => Err(Answer::Gone),
        Ok(Err(error)) => Err(Answer::Failed(error)),
        Err(error) => Err(Answer::Failed(
            Errno::from_io_error(&error).unwrap_or(Errno::PERM),
        )),
    }
}

/// Does something on a thread whose effective user is this one, and which has no right of root's.
fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> io::Result<T> {
    // To the kernel this number means "leave it as it is".
    if uid == u32::MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            become_user(Uid::from_raw(uid))?;
            Ok(what())
        })?;
        thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
}

/// The kernel compares a sender's effective and real user with a receiver's real and saved user. So the thread's real user
/// becomes one that no process has: root's would reach root's processes, and by its own the user could end this process.
/// The saved user stays root.
fn become_user(uid: Uid) -> io::Result<()> {
    if uid != rustix::process::geteuid() {
        let unused = unused_user()?;
        if uid.is_root() || uid == unused {
            return Err(Errno::PERM.into());
        }
        rustix::thread::set_thread_res_uid(unused, uid, None::<Uid>)?;
    }
    // The kernel takes the rights away with the user, unless this process was told to keep them.
    if !uid.is_root() && capabilities(None)?.effective.contains(CapabilitySet::KILL) {
        return Err(Errno::PERM.into());
    }
    Ok(())
}

/// The last user that there may be in this namespace of users. No login and no range of subordinate users has it.
fn unused_user() -> io::Result<Uid> {
    let map = std::fs::read_to_string("/proc/thread-self/uid_map")?;
    let last = map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (first, _, count) = (numbers.next()?.ok()?, numbers.next()?, numbers.next()?.ok()?);
        first.checked_add(count.checked_sub(1)?)
    });
    match last.max() {
        Some(last) if last != 0 && last != u32::MAX => Ok(Uid::from_raw(last)),
        _ => Err(Errno::PERM.into()),
    }
}
