//! How a worker ended, where that was not its program's doing.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};

use divvy_privileged::cgroup::ended_for_memory;

/// How many processes of this slice the kernel had ended for want of memory, when that was last said.
static SAID: AtomicU64 = AtomicU64::new(0);

/// So many ends are told, and no more: a tenant whose workers end again and again fills no log.
const MOST: u64 = 20;
static TOLD: AtomicU64 = AtomicU64::new(0);

/// What a log should have of a worker's end; none for one that ended by itself.
pub fn told(program: u32, status: ExitStatus) -> Option<String> {
    let signal = status.signal()?;
    if TOLD.fetch_add(1, Ordering::Relaxed) >= MOST {
        return None;
    }
    let now = ended_for_memory().unwrap_or(0);
    // Two that end at once are both counted by then: the first is told of the memory, and so is the second.
    let is_memory = signal == 9 && now > SAID.load(Ordering::Relaxed);
    if is_memory {
        SAID.fetch_add(1, Ordering::Relaxed);
        return Some(format!(
            "the worker of program {program} was ended: the workers of this slice had more than their memory on the host. \
             The setting `worker_memory` says how much that is"
        ));
    }
    Some(format!(
        "the worker of program {program} was ended by signal {signal}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_by_itself_is_not_told() {
        assert_eq!(told(7, ExitStatus::from_raw(0)), None);
        assert_eq!(told(7, ExitStatus::from_raw(1 << 8)), None);
        let told = told(7, ExitStatus::from_raw(11)).expect("told");
        assert!(told.contains("program 7") && told.contains("signal 11"), "{told}");
    }
}
