//! The programs of the slice's workers, as a program that lists processes knows them.
//!
//! The ledger has workers. Their arguments say which programs they serve, as the kernel told it for each connection. A
//! worker that a tenant took over can write over its own, and name another process in the lists of its own slice.

use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use rustix::net::sockopt::socket_peercred;

/// How deep in process id namespaces the program that asks is: 1 on the host.
static DEPTH: OnceLock<usize> = OnceLock::new();

/// Has lists of processes name programs in the place of workers, with the numbers that the program at the other end knows
/// them by.
pub fn name_workers(asks: BorrowedFd<'_>) {
    let depth = socket_peercred(asks)
        .ok()
        .and_then(|peer| numbers(peer.pid.as_raw_nonzero().get().unsigned_abs()))
        .map_or(1, |numbers| numbers.len());
    let _once = DEPTH.set(depth);
    divvy_limiter::nvml::name_processes(named);
}

/// A worker's program. One of another namespace than the program that asks keeps the number of its own: tools show it as a
/// process that they do not know.
fn named(worker: u32) -> u32 {
    let Some(program) = fs::read(format!("/proc/{worker}/cmdline"))
        .ok()
        .and_then(|line| program_in(&line))
    else {
        return worker;
    };
    let depth = DEPTH.get().copied().unwrap_or(1);
    let known = numbers(program).and_then(|numbers| numbers.get(depth - 1).copied());
    known.unwrap_or(program)
}

/// `divvy-worker --serve PID:START`, with a zero behind each word.
fn program_in(arguments: &[u8]) -> Option<u32> {
    let mut words = arguments.split(|byte| *byte == 0).skip(1);
    if words.next()? != b"--serve" {
        return None;
    }
    let word = std::str::from_utf8(words.next()?).ok()?;
    word.split_once(':')?.0.parse().ok()
}

/// A process's numbers, from this process's namespace down to its own.
fn numbers(pid: u32) -> Option<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    numbers_in(&status)
}

fn numbers_in(status: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let numbers: Option<Vec<u32>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    numbers.filter(|numbers| !numbers.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_says_its_program() {
        assert_eq!(program_in(b"divvy-worker\0--serve\x0047:11\0"), Some(47));
        for other in [
            &b"divvy-worker\0--query\x0047:11\0"[..],
            b"divvy-worker\0--serve\0",
            b"x\0--serve\0-1:2\0",
            b"",
        ] {
            assert_eq!(program_in(other), None);
        }
        assert_eq!(named(std::process::id()), std::process::id(), "no worker");
    }

    #[test]
    fn a_process_has_a_number_in_each_namespace() {
        assert_eq!(
            numbers_in("Name:\ta\nNSpid:\t4711\t12\t1\n"),
            Some(vec![4711, 12, 1])
        );
        assert_eq!(numbers_in("Name:\tNSpid: 1\n"), None);
        assert_eq!(numbers_in("NSpid:\n"), None);
        let own = std::process::id();
        assert_eq!(numbers(own).expect("/proc").first(), Some(&own));
    }
}
