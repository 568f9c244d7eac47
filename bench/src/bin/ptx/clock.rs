//! The clock of these benches: processor time, which a busy machine does not stretch as it does time on the wall.

use std::time::{Duration, Instant};

/// Time that passed over some work.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Processor time of all threads of this process.
    pub processor: Duration,
    /// Time on the wall.
    pub wall: Duration,
}

/// Runs `work` and says what it cost.
pub fn spent<T>(work: impl FnOnce() -> T) -> (T, Spent) {
    let (began, wall) = (processor_time(), Instant::now());
    let result = work();
    (
        result,
        Spent {
            processor: processor_time() - began,
            wall: wall.elapsed(),
        },
    )
}

/// Processor time this process has used so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call fills the structure we own; this clock exists on every Linux.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "clock_gettime of a clock that always exists");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The middle one of `values`.
pub fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values[values.len() / 2]
}
