//! Looks that tenants ask for: before a request is refused for what the driver was last found to hold, the agent looks anew.
//! [`divvy_ledger::fresh`] has the words.
//!
//! The bells' threads hear who asks, and may not wait: a driver takes its time. So they note the device, and a thread of its
//! own looks, at each device once in [`BETWEEN_LOOKS`] at most, however many ask and however often. One look answers all who
//! asked before it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use divvy_ledger::fresh::BETWEEN_LOOKS;

use crate::daemon::Daemon;
use crate::lookout::audit::Why;

/// The devices that are to be looked at.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    line: Mutex<Line>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    devices: HashSet<String>,
    /// When each was last looked at for somebody who asked.
    looked_at: HashMap<String, Instant>,
    ended: bool,
}

impl Line {
    /// A device whose turn it is; else how long until the first one's.
    fn next(&mut self, now: Instant) -> Result<String, Option<Duration>> {
        let until = |uuid: &String| {
            let looked_at = self.looked_at.get(uuid);
            looked_at.map_or(Duration::ZERO, |at| {
                BETWEEN_LOOKS.saturating_sub(now.saturating_duration_since(*at))
            })
        };
        let first = self.devices.iter().map(|uuid| (until(uuid), uuid)).min();
        let Some((left, uuid)) = first else {
            return Err(None);
        };
        if !left.is_zero() {
            return Err(Some(left));
        }
        let uuid = uuid.clone();
        self.devices.remove(&uuid);
        self.looked_at.insert(uuid.clone(), now);
        Ok(uuid)
    }
}

impl Wanted {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a device looked at.
    pub fn add(&self, uuid: &str) {
        self.line().devices.insert(uuid.to_owned());
        self.changed.notify_one();
    }

    /// Lets the thread go.
    pub fn end(&self) {
        self.line().ended = true;
        self.changed.notify_one();
    }

    /// Waits for a device whose turn it is; none once it has ended.
    fn next(&self) -> Option<String> {
        let mut line = self.line();
        loop {
            if line.ended {
                return None;
            }
            line = match line.next(Instant::now()) {
                Ok(uuid) => return Some(uuid),
                Err(None) => self.changed.wait(line).unwrap_or_else(PoisonError::into_inner),
                Err(Some(left)) => {
                    let woken = self.changed.wait_timeout(line, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Starts the thread that looks.
///
/// # Errors
/// The system's reason.
pub(crate) fn start(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let (wanted, daemon) = (daemon.leasing.wanted().clone(), Arc::downgrade(daemon));
    let thread = std::thread::Builder::new().name("looks".into());
    thread.spawn(move || serve(&wanted, &daemon)).map(drop)
}

fn serve(wanted: &Wanted, daemon: &Weak<Daemon>) {
    while let Some(uuid) = wanted.next()
        && let Some(daemon) = daemon.upgrade()
    {
        let mut state = daemon.state();
        if let Ok(device) = state.device(&uuid) {
            daemon.audit_device(&mut state, &device, Why::Asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_looked_at_at_its_pace_however_many_ask() {
        let mut line = Line::default();
        let mut now = Instant::now();
        assert_eq!(line.next(now), Err(None));
        let mut looks = 0;
        let end = now + Duration::from_secs(1);
        while now < end {
            // One asks without end, and another once in a while: neither keeps the other waiting.
            line.devices.insert("GPU-0".into());
            while let Ok(uuid) = line.next(now) {
                looks += u32::from(uuid == "GPU-0");
            }
            now += Duration::from_millis(1);
        }
        assert!((45..=50).contains(&looks), "{looks}");
        assert_eq!(line.next(now), Ok("GPU-0".into()), "20 ms later");
        line.devices.insert("GPU-0".into());
        line.devices.insert("GPU-1".into());
        assert_eq!(line.next(now), Ok("GPU-1".into()));
        let left = line.next(now).expect_err("not yet").expect("soon");
        assert!(left <= BETWEEN_LOOKS, "{left:?}");
        assert_eq!(line.next(now + left), Ok("GPU-0".into()));
    }
}
