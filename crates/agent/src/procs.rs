//! What the kernel tells about processes: names, owners, children. And a way to signal one that cannot hit another.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use divvy_privileged::request::Owner;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::privilege;
use crate::watched::Watched;

/// What the kernel calls a mapped ledger.
const LEDGER: &[u8] = b"/memfd:divvy-ledger";

/// The program's name, as `ps` shows it: the base name of its first argument, else the kernel's short name.
#[must_use]
pub fn command(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(first);
    let name = name.rsplit('/').next().unwrap_or_default().trim();
    if !name.is_empty() {
        return name.to_owned();
    }
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

/// The process and everything below it, parents first, but for `except` and what is below that. Taken from one walk
/// of /proc: what is born meanwhile is missed.
#[must_use]
pub fn tree(root: u32, except: u32) -> Vec<u32> {
    let pairs: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != except)
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(parent) = tree.get(next).copied() {
        tree.extend(pairs.iter().filter(|pair| pair.1 == parent).map(|pair| pair.0));
        next += 1;
    }
    tree
}

/// Whether a process of user `uid` uses slice `id`: it was started there, by the `DIVVY_SLICE` of its environment, and
/// has a slice's ledger mapped. One that has none mapped holds nothing, and where the keeper is dead never will. Only
/// the end of the path is compared: the run directory may have another spelling, in a container or through a link.
fn is_in_slice(pid: u32, uid: u32, id: &str) -> bool {
    if fs::metadata(format!("/proc/{pid}")).map_or(true, |meta| meta.uid() != uid) {
        return false;
    }
    let Ok(environment) = privilege::environment(pid, uid) else {
        return false;
    };
    let tail = format!("/{id}/attach.sock");
    environment
        .split(|byte| *byte == 0)
        .any(|entry| entry.starts_with(b"DIVVY_SLICE=") && entry.ends_with(tail.as_bytes()))
        && privilege::maps(pid, uid)
            .is_ok_and(|maps| maps.windows(LEDGER.len()).any(|window| window == LEDGER))
}

/// The living processes of user `uid` that use slice `id`, each watched.
#[must_use]
pub fn in_slice(uid: u32, id: &str) -> Vec<Watched> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| is_in_slice(*pid, uid, id))
        .map(Watched::new)
        // Looked at again, now that its number cannot come to mean another.
        .filter(|watched| is_in_slice(watched.pid(), uid, id) && watched.is_alive())
        .collect()
}

/// The process's parent.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    u32::try_from(stat_field(pid, 4)?).ok()
}

/// When the process began, in the kernel's ticks since boot. With it, a process id names one process for ever.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    stat_field(pid, 22)
}

/// A field of /proc/PID/stat by its number in proc(5), from 4.
fn stat_field(pid: u32, number: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold any character: what follows the last one is regular.
    let rest = stat.rsplit_once(')')?.1;
    rest.split_whitespace().nth(number - 3)?.parse().ok()
}

/// Sends a signal to `pid` if it belongs to user `uid`. The process is pinned first, so that a number reused in
/// between is never hit.
///
/// # Errors
/// `NotFound` when there is no such process of that user.
pub fn signal(pid: u32, uid: u32, signal: Signal) -> io::Result<()> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let pinned = pidfd_open(raw, PidfdFlags::empty()).map_err(|_| gone())?;
    let owner = fs::metadata(format!("/proc/{pid}")).map_err(|_| gone())?.uid();
    if owner != uid {
        return Err(gone());
    }
    match pidfd_send_signal(&pinned, signal) {
        // It is pinned until the helper, which looks again, has answered.
        Err(Errno::PERM) => privilege::signal(pid, Owner::User(uid), signal),
        sent => Ok(sent?),
    }
}

/// Whether a process of this number lives (a zombie does not).
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(')')
            .and_then(|(_, rest)| rest.trim_start().chars().next())
            .is_some_and(|state| !matches!(state, 'Z' | 'X'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_seen_and_signalled_and_gone() {
        // Ends with this test however that ends: its standard input closes.
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("cat runs");
        let uid = rustix::process::getuid().as_raw();
        // Until it has become `cat`, it is a copy of this test.
        while command(child.id()) != "cat" {
            assert!(is_alive(child.id()));
            std::thread::yield_now();
        }
        assert!(tree(std::process::id(), 0).contains(&child.id()));
        assert_eq!(parent(child.id()), Some(std::process::id()));
        assert!(start_ticks(child.id()) >= start_ticks(std::process::id()));
        assert!(is_alive(child.id()));
        assert!(
            signal(child.id(), uid + 1, Signal::KILL).is_err(),
            "another user's"
        );
        signal(child.id(), uid, Signal::KILL).expect("ours");
        child.wait().expect("reaped");
        assert!(!is_alive(child.id()));
        assert!(signal(child.id(), uid, Signal::KILL).is_err());
    }
}
