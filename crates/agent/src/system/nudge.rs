//! A wake-up for a thread that sleeps until its next work.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// See the module. Several nudges before the thread wakes are one.
#[derive(Debug, Default)]
pub(crate) struct Nudge {
    given: Mutex<bool>,
    changed: Condvar,
}

impl Nudge {
    /// Wakes the thread, or keeps it from falling asleep.
    pub fn give(&self) {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Sleeps for so long, or until there is a nudge; returns whether there was one.
    pub fn wait(&self, longest: Duration) -> bool {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(given, longest, |given| !*given);
        let (mut given, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nudge_wakes_once() {
        let nudge = Nudge::default();
        assert!(!nudge.wait(Duration::ZERO));
        nudge.give();
        nudge.give();
        assert!(nudge.wait(Duration::from_secs(60)));
        assert!(!nudge.wait(Duration::ZERO));
    }
}
