//! Waiting for something to become true, never for ever.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a scenario waits before it says that something will never happen. Generous: it guards against hanging and
/// measures nothing.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Looks again and again until `look` finds something, and returns it. Panics, naming `what`, at the time limit.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            start.elapsed() < TIMEOUT,
            "waited {TIMEOUT:?} in vain until {what}"
        );
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
