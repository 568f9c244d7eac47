//! A run that is told to end: it ends its part, leaves nothing behind, and writes the report first.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signal that told this process to end; see the module.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    told: Arc<AtomicUsize>,
}

impl Signals {
    /// From now on, SIGHUP, SIGINT and SIGTERM do not end this process but are kept here. One that is ignored stays ignored:
    /// `nohup` has it so.
    ///
    /// # Errors
    /// The system's reason.
    pub fn take() -> io::Result<Self> {
        let signals = Self::default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            if !is_ignored(&status, signal) {
                let number = usize::try_from(signal).unwrap_or_default();
                signal_hook::flag::register_usize(signal, signals.told.clone(), number)?;
            }
        }
        Ok(signals)
    }

    /// The signal's number, once there was one.
    #[must_use]
    pub fn told(&self) -> Option<u8> {
        let number = self.told.load(Ordering::Relaxed);
        u8::try_from(number).ok().filter(|number| *number > 0)
    }

    /// The exit status of a program that a signal ended, as shells have it; none without a signal.
    #[must_use]
    pub fn status(&self) -> Option<u8> {
        self.told().map(|signal| 128 + signal)
    }
}

/// Whether /proc/PID/status says that a signal is ignored.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_ignored_stays_so() {
        let status = "Name:\tdivvy-kit\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert!(is_ignored(status, SIGHUP));
        assert!(!is_ignored(status, SIGINT) && !is_ignored(status, SIGTERM));
        assert!(!is_ignored("", SIGHUP));
        let signals = Signals::default();
        assert_eq!(signals.status(), None);
        signals.told.store(15, Ordering::Relaxed);
        assert_eq!(signals.status(), Some(143));
    }
}
