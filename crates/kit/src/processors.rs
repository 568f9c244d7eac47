//! Whether this machine had processors for what was measured.

use std::fs;
use std::time::Duration;

/// How long this process's threads have waited for a processor, in sum, as far as the kernel tells: the second word of
/// /proc/PID/task/TID/schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst). Threads that ended count no more.
#[must_use]
pub fn waited() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let waits = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waits.sum())
}
