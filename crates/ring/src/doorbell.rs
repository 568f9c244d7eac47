//! Doorbells: a futex in the shared memory, an eventfd, or none: then a side looks again and again.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

pub use crate::sleep::Doorbell;

/// Sleeps on the word itself: between processes of one kernel. The other side could move a sleeper to another futex,
/// or change the word without a wake: then it sleeps for the limit that it gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Futex;

impl Doorbell<AtomicU32> for Futex {
    fn wait(&self, signal: &AtomicU32, seen: u32, limit: Duration) {
        // Woken, changed before, timed out, interrupted: the caller looks in each case.
        let _why = futex::wait(signal, futex::Flags::empty(), seen, Some(&timespec(limit)));
    }

    fn ring(&self, signal: &AtomicU32) {
        // It is not an error that no thread waits.
        let _woken = futex::wake(signal, futex::Flags::empty(), 1);
    }
}

/// Sleeps on an eventfd: across the border of a virtual machine, where it is an interrupt (ivshmem-doorbell).
#[derive(Debug)]
pub struct EventFd {
    mine: OwnedFd,
    theirs: OwnedFd,
}

impl EventFd {
    /// `mine` wakes this side, and `theirs` the other one. Reading `mine` must not block.
    #[must_use]
    pub fn new(mine: OwnedFd, theirs: OwnedFd) -> Self {
        Self { mine, theirs }
    }

    /// The doorbells of both sides of a channel.
    ///
    /// # Errors
    /// The system's reason.
    pub fn pair() -> Result<[Self; 2], Errno> {
        let new = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (one, other) = (new()?, new()?);
        let copies = (
            rustix::io::fcntl_dupfd_cloexec(&other, 0)?,
            rustix::io::fcntl_dupfd_cloexec(&one, 0)?,
        );
        Ok([Self::new(one, copies.0), Self::new(other, copies.1)])
    }
}

impl Doorbell<AtomicU32> for EventFd {
    fn wait(&self, signal: &AtomicU32, seen: u32, limit: Duration) {
        if signal.load(Relaxed) == seen {
            let mut fds = [PollFd::new(&self.mine, PollFlags::IN)];
            let _why = poll(&mut fds, Some(&timespec(limit)));
        }
        // Taken back, or the next wait would end at once. A ring that came meanwhile loses nothing: what it tells of is in
        // the shared memory already, and the caller looks there.
        let _count = rustix::io::read(&self.mine, &mut [0_u8; 8]);
    }

    fn ring(&self, _signal: &AtomicU32) {
        // A full counter wakes as well.
        let _written = rustix::io::write(self.theirs.as_fd(), &1_u64.to_ne_bytes());
    }
}

/// Looks again and again: where there is no doorbell, as with ivshmem-plain. A wake takes up to the interval.
#[derive(Clone, Copy, Debug)]
pub struct Polling {
    /// The time between two looks.
    pub interval: Duration,
}

impl Doorbell<AtomicU32> for Polling {
    fn wait(&self, _signal: &AtomicU32, _seen: u32, limit: Duration) {
        // Waking early does no harm.
        let _slept = rustix::thread::nanosleep(&timespec(limit.min(self.interval)));
    }

    fn ring(&self, _signal: &AtomicU32) {}
}

/// Naps until the word changes, and each nap is a quarter of the wait so far. So a wake is late by a quarter of the wait at
/// most, and a side that waits for long takes little of a processor. From half a second on a nap is a hundredth of the wait,
/// and after ten seconds 100 ms. For memory of a virtual machine (ivshmem-plain),
/// across whose border no futex wakes. The other side rings by changing the word, as it does for each doorbell.
#[derive(Clone, Copy, Debug)]
pub struct Naps {
    /// No nap is shorter than this.
    pub shortest: Duration,
    /// No nap of the first half second is longer than this.
    pub longest: Duration,
}

impl Naps {
    /// No nap is longer than this, however long the wait is.
    const LONGEST: Duration = Duration::from_millis(100);

    /// The next nap of a side that has waited for so long.
    fn next(&self, waited: Duration) -> Duration {
        let longest = self.longest.max((waited / 100).min(Self::LONGEST));
        (waited / 4).clamp(self.shortest, longest)
    }
}

impl Default for Naps {
    fn default() -> Self {
        Self {
            shortest: Duration::from_micros(20),
            longest: Duration::from_millis(5),
        }
    }
}

impl Doorbell<AtomicU32> for Naps {
    fn wait(&self, signal: &AtomicU32, seen: u32, limit: Duration) {
        self.wait_on(signal, seen, limit, Duration::ZERO);
    }

    fn wait_on(&self, signal: &AtomicU32, seen: u32, limit: Duration, waited: Duration) {
        let began = Instant::now();
        while signal.load(Relaxed) == seen {
            let now = began.elapsed();
            let left = limit.saturating_sub(now);
            if left.is_zero() {
                return;
            }
            let nap = self.next(waited.saturating_add(now)).min(left);
            let _slept = rustix::thread::nanosleep(&timespec(nap));
        }
    }

    fn ring(&self, _signal: &AtomicU32) {}
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()) as _,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_grow_with_the_wait() {
        let next = |millis| Naps::default().next(Duration::from_millis(millis)).as_micros();
        let waits = [0, 4, 20, 500, 1000, 10_000, 3_600_000];
        assert_eq!(waits.map(next), [20, 1000, 5000, 5000, 10_000, 100_000, 100_000]);
    }
}
