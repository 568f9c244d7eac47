//! Processes as /proc shows them, and ending those that a scenario started.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// Sends `signal` to process `pid`; a process that is gone already is no error.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Whether process `pid` exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // The state follows the command's name, which may itself hold a parenthesis.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z') && !rest.starts_with('X'))
}

/// Processes that were started with the variable `name` set to `value`.
pub fn with_environment(name: &str, value: &Path) -> Vec<u32> {
    let wanted = [name.as_bytes(), b"=", value.as_os_str().as_encoded_bytes()].concat();
    let own = std::process::id();
    all()
        .filter(|&pid| pid != own)
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.split(|&byte| byte == 0).any(|entry| entry == wanted))
        })
        .collect()
}

/// The command line of `pid`; nothing when it is gone.
pub fn arguments(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|&byte| byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// The worker that makes the CUDA calls of `pid`.
pub fn worker_of(pid: u32) -> Option<u32> {
    let program = format!("{pid}:");
    all().find(|&worker| {
        let words = arguments(worker);
        let serves = words.get(1).is_some_and(|word| word == "--serve");
        serves && words.get(2).is_some_and(|word| word.starts_with(&program))
    })
}

fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Process `pid` and all that it started and those did, as far as they are still below it.
pub fn tree(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = all().filter_map(|child| Some((child, parent(child)?))).collect();
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&above) = found.get(at) {
        found.extend(
            parents
                .iter()
                .filter(|(_, parent)| *parent == above)
                .map(|(child, _)| *child),
        );
        at += 1;
    }
    found
}

/// The processes of these users.
pub fn of_users(users: &[u32]) -> Vec<u32> {
    all()
        .filter(|&pid| user(pid).is_some_and(|user| users.contains(&user)))
        .collect()
}

/// The effective user of process `pid`.
pub fn user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The parent of process `pid`.
pub fn parent(pid: u32) -> Option<u32> {
    field(pid, 4)?.try_into().ok()
}

/// The processor time that process `pid` has used, in clock ticks of which a second has 100.
pub fn ticks(pid: u32) -> u64 {
    field(pid, 14).unwrap_or(0) + field(pid, 15).unwrap_or(0)
}

/// Memory of process `pid` that is in use, in bytes.
pub fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}

/// How many descriptors process `pid` has open.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// A field of /proc/PID/stat by its number in proc(5), from 4.
fn field(pid: u32, number: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(number - 3)?
        .parse()
        .ok()
}

/// The processes whose program is called so.
pub fn named(name: &str) -> impl Iterator<Item = u32> {
    all().filter(move |pid| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|own| own.trim_end() == name)
    })
}

/// Whether each thread of a process is watched by a tracer.
pub fn is_traced(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    tasks.into_iter().flatten().flatten().all(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    })
}
