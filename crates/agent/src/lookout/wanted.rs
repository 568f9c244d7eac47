//! The devices that tenants want looked at, each at its pace.

use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use divvy_ledger::fresh::BETWEEN_LOOKS;

/// The devices with a pending look.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    line: Mutex<Line>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    devices: HashSet<String>,
    /// The time of each device's last look at a tenant's request.
    looked_at: HashMap<String, Instant>,
    ended: bool,
}

impl Line {
    /// A device that is due; else how long until the first one is.
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

    /// Ends the thread.
    pub fn end(&self) {
        self.line().ended = true;
        self.changed.notify_one();
    }

    /// Waits for a device that is due; none once this has ended.
    pub fn next(&self) -> Option<String> {
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
            // One device is asked for without end, and another once in a while: neither delays the other.
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
