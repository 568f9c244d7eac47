//! Ends programs, with all that they started: a part that hangs or is cut off must leave nothing running.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};

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

/// Ends the processes of this user whose environment has this variable, as `NAME=value`: a former run that was killed left
/// them. Each is held by a descriptor from before it is looked at, so its number cannot pass to another one.
pub(crate) fn end_those_with(variable: &[u8]) {
    let own = rustix::process::getpid();
    let user = rustix::process::geteuid().as_raw();
    for pid in parents()
        .into_keys()
        .filter_map(Pid::from_raw)
        .filter(|pid| *pid != own)
    {
        let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let folder = format!("/proc/{}", pid.as_raw_nonzero());
        let is_ours = fs::metadata(&folder).is_ok_and(|meta| meta.uid() == user);
        let environment = fs::read(format!("{folder}/environ")).unwrap_or_default();
        if is_ours
            && environment
                .split(|byte| *byte == 0)
                .any(|known| known == variable)
        {
            let _gone = pidfd_send_signal(&held, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_ended_by_its_whole_variable_and_not_by_its_words() {
        let with = |value: &str, argument: &str| {
            let mut command = Command::new("sleep");
            command.arg(argument).env("KIT_TEST_RUN", value);
            command.stdin(Stdio::null()).spawn().expect("it starts")
        };
        let name = format!("/tmp/dvk-{}", std::process::id());
        let mut left = with(&name, "600");
        let mut longer = with(&format!("{name}1"), "600");
        end_those_with(format!("KIT_TEST_RUN={name}").as_bytes());
        assert!(!left.wait().expect("a child").success());
        assert!(longer.try_wait().expect("a child").is_none());
        end_tree(&mut longer);
    }
}
