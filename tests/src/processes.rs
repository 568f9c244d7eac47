//! Processes as /proc shows them, and ending those that a story started.

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

fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}
