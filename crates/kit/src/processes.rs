//! Ends programs, with all that they started: a part that hangs or is cut off must leave nothing running.

use std::collections::HashMap;
use std::fs;
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// The parent of each process, as /proc has it.
fn parents() -> HashMap<i32, i32> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent: Option<i32> = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parents.extend(parent.map(|parent| (pid, parent)));
    }
    parents
}

/// The processes that descend from one.
fn below(ancestor: i32) -> Vec<Pid> {
    let parents = parents();
    let is_below = |mut pid: i32| {
        // A chain of parents is no longer than there are processes.
        for _ in 0..parents.len() {
            match parents.get(&pid) {
                Some(parent) if *parent == ancestor => return true,
                Some(parent) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    let below = parents.keys().copied().filter(|pid| is_below(*pid));
    below.filter_map(Pid::from_raw).collect()
}

/// Ends all that descends from this process, also what lost its own parent: this process has to be a subreaper for that.
pub(crate) fn end_descendants() {
    for _ in 0..100 {
        let left = below(rustix::process::getpid().as_raw_nonzero().get());
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _gone = kill_process(pid, Signal::KILL);
            // What was not ours by birth is by now: the kernel gives orphans to the subreaper.
            let _not_ours = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        sleep(Duration::from_millis(10));
    }
}

/// Ends a child with all that it started, and reaps it.
pub(crate) fn end_tree(child: &mut Child) {
    // Itself first: a shell that outlives its program says so.
    let mut all: Vec<Pid> = Pid::from_raw(child.id().cast_signed()).into_iter().collect();
    all.extend(below(child.id().cast_signed()));
    if !matches!(child.try_wait(), Ok(None)) {
        // Its number may be another process's by now.
        return;
    }
    for pid in all {
        let _gone = kill_process(pid, Signal::KILL);
    }
    let _reaped = child.wait();
}

/// Ends the processes of this user that have these words in their environment or on their command line. A former run that was
/// killed left them.
pub(crate) fn end_those_with(words: &[u8]) {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    for pid in parents().into_keys().filter(|pid| *pid != own) {
        let has = |file: &str| {
            let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            text.windows(words.len()).any(|window| window == words)
        };
        if let Some(pid) = Pid::from_raw(pid).filter(|_| has("environ") || has("cmdline")) {
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_child_ends_with_its_own_children() {
        let mut shell = Command::new("sh");
        let script = "sleep 61 & sleep 62 & wait";
        let mut child = shell.args(["-c", script]).process_group(0).spawn().expect("sh");
        let mut children = Vec::new();
        for _ in 0..100 {
            children = below(child.id().cast_signed());
            if children.len() == 2 {
                break;
            }
            sleep(Duration::from_millis(20));
        }
        assert_eq!(children.len(), 2);
        end_tree(&mut child);
        let alive = |pid: &Pid| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        for _ in 0..100 {
            if !children.iter().any(alive) {
                return;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("a child's child lives");
    }

    #[test]
    fn what_a_killed_run_left_is_found_by_its_place() {
        let place = format!("/nowhere/dvk-of-a-test-{}", std::process::id());
        let mut left = Command::new("sleep");
        left.arg("60").env("KIT_PLACE", &place).stdout(Stdio::null());
        let mut left = left.spawn().expect("sleep");
        end_those_with(place.as_bytes());
        let status = left.wait().expect("reaped");
        assert!(!status.success());
    }
}
