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

/// Whether a process holds the slice's devices for its programs: the process that the agent started, or a child of it.
/// Such a one is on a device before it is in the ledger, or after; and in lists it goes by its program's number. A tenant
/// cannot become one: the kernel says who its parent is, and a worker starts no process.
pub(crate) fn is_worker(slice: &SliceRecord, pid: u32) -> bool {
    let Some(listener) = slice.worker.as_ref().filter(|listener| listener.pid != 0) else {
        return false;
    };
    let known = |pid| pid == listener.pid || procs::parent(pid) == Some(listener.pid);
    // It has the number of the listener that the agent started after its child was found, so the child was that one's.
    known(pid) && procs::start_ticks(listener.pid) == Some(listener.start_ticks)
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
    fn a_worker_is_what_the_agents_process_started_and_nothing_that_says_so() {
        use divvy_model::WorkerRecord;
        // The shell has another name than a worker, and its child is no worker.
        let script = "sleep 60 & echo $!; wait";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("a line");
        let grandchild: u32 = line.trim().parse().expect("a number");
        let listener = |pid, start_ticks| WorkerRecord {
            pid,
            start_ticks,
            ..WorkerRecord::default()
        };
        let own = std::process::id();
        let since = procs::start_ticks(own).expect("we live");
        let slice = |worker| SliceRecord {
            worker,
            ..SliceRecord::default()
        };
        let ours = slice(Some(listener(own, since)));
        assert!(is_worker(&ours, own) && is_worker(&ours, child.id()));
        assert!(!is_worker(&ours, grandchild), "a worker starts nothing");
        assert!(!is_worker(&ours, 1));
        let another = slice(Some(listener(own, since + 1)));
        assert!(!is_worker(&another, child.id()), "another process had the number");
        assert!(!is_worker(&slice(None), child.id()));
        assert!(
            !is_worker(&slice(Some(listener(0, 0))), child.id()),
            "it is not started yet"
        );
        child.kill().expect("ours");
        child.wait().expect("ended");
        let grandchild = rustix::process::Pid::from_raw(grandchild.cast_signed()).expect("a number");
        rustix::process::kill_process(grandchild, rustix::process::Signal::KILL).expect("ours");
    }

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
