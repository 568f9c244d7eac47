//! The programs of workers. The slice of an enforced run has workers in its ledger, and users know their programs.
//!
//! The process that makes workers writes a program's number into the worker's arguments, as the kernel told it for the
//! connection. A worker that a tenant took over can write over them. So a number counts only where the kernel says the
//! rest: the worker is a child of that process, and the program is one of the slice's user, with the same start.

use divvy_model::{ProcessRecord, SliceRecord};

use crate::files::kernel;
use crate::system::procs;

/// A process as its user knows it: the program of a worker, or itself.
pub(crate) fn named(slice: &SliceRecord, pid: u32) -> u32 {
    program_of(slice, pid).unwrap_or(pid)
}

/// The processes of a slice, workers as their programs.
pub(crate) fn all_named(slice: &mut SliceRecord) {
    if slice.worker.is_none() {
        return;
    }
    let mut processes = std::mem::take(&mut slice.processes);
    for process in &mut processes {
        if let Some(pid) = program_of(slice, process.pid) {
            *process = ProcessRecord {
                pid,
                command: procs::command(pid),
                ..process.clone()
            };
        }
    }
    slice.processes = processes;
}

fn program_of(slice: &SliceRecord, worker: u32) -> Option<u32> {
    let listener = slice.worker.as_ref()?;
    if procs::parent(worker)? != listener.pid {
        return None;
    }
    let arguments = kernel::bytes(worker, "cmdline").ok()?;
    let (pid, since) = program_in(&arguments)?;
    // A program of a container may be another user's. Nothing vouches for its number here, so its worker is shown.
    let is_its_users = procs::owner(pid) == Some(slice.uid);
    (is_its_users && procs::start_ticks(pid) == Some(since)).then_some(pid)
}

/// `divvy-worker --serve PID:START`, with a zero behind each word.
fn program_in(arguments: &[u8]) -> Option<(u32, u64)> {
    let mut words = arguments.split(|byte| *byte == 0).skip(1);
    if words.next()? != b"--serve" {
        return None;
    }
    let word = std::str::from_utf8(words.next()?).ok()?;
    let (pid, since) = word.split_once(':')?;
    Some((pid.parse().ok()?, since.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workers_arguments_name_its_program() {
        assert_eq!(program_in(b"divvy-worker\0--serve\x0047:11\0"), Some((47, 11)));
        for other in [
            &b""[..],
            b"divvy-worker\0--serve\0",
            b"divvy-worker\0--slice\x0047:11\0",
            b"divvy-worker\0--serve\x0047\0",
            b"divvy-worker\0--serve\x00-1:2\0",
        ] {
            assert_eq!(program_in(other), None);
        }
    }
}
