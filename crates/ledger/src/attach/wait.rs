//! Waiting for memory, in a slice whose terms allow it: for a limited time, without locks, the longest waiting first.

use core::time::Duration;
use std::time::Instant;

use super::tenant::Attached;

/// The first pause of a wait, and the longest. A release in the slice wakes the waiter sooner. Free memory on the
/// device, a raised limit and a lost wake are found by checking again.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How long a process holds back for each process that has waited longer, and how many such processes count at most.
const COURTESY: Duration = Duration::from_millis(2);
const COURTESIES: u32 = 5;

/// One allocation that waits for memory. Its user calls [`Attached::begin_waiting`], tries, calls [`Waiting::pause`],
/// and tries again, until a try succeeds or a pause returns that the time is up.
///
/// It holds no locks and no bytes. A process that is killed while it waits loses nothing and costs the others one
/// needless wake. A request that fits at once never queues. Of the waiters, each one that was woken holds back some
/// milliseconds for those that have waited longer, so that they find the memory first. A request that still does not
/// fit does not block a smaller one: the owner of the smaller one may have to finish before any memory is given back.
#[derive(Debug)]
pub struct Waiting<'a> {
    attached: &'a Attached,
    deadline: Instant,
    since: u64,
    releases: u32,
    pause: Duration,
}

impl Attached {
    /// Begins a wait. Returns `None` if the grant's terms allow none, and in a forked child. A request for `bytes`
    /// beyond the limit does not wait: no release makes space for it.
    #[must_use]
    pub fn begin_waiting(&self, bytes: u64) -> Option<Waiting<'_>> {
        let timeout = self.on_oom_wait();
        if timeout.is_zero() || bytes > self.memory_limit_bytes().max(self.spill_limit_bytes()) {
            return None;
        }
        let page = self.slot().page()?;
        Some(Waiting {
            attached: self,
            deadline: Instant::now() + timeout,
            since: page.begin_waiting(self.slot().index()),
            releases: page.usage.announce(),
            pause: FIRST_PAUSE,
        })
    }
}

impl Waiting<'_> {
    /// Sleeps until there may be memory. Returns whether there is time for another try.
    #[must_use]
    pub fn pause(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let Some(page) = self.attached.slot().page() else {
            return false;
        };
        if left.is_zero() {
            return false;
        }
        page.usage.sleep(self.releases, self.pause.min(left));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let slot = self.attached.slot().index();
        // Another thread of this process may have got its memory, and cleared the note that a thread waits.
        page.begin_waiting(slot);
        let longer = page.waiting_longer(slot, self.since);
        if longer != 0 {
            let longer = u32::try_from(longer).unwrap_or(COURTESIES).min(COURTESIES);
            std::thread::sleep((COURTESY * longer).min(left));
        }
        // Read before the next try: a release after that changes the number, and the next pause does not sleep.
        self.releases = page.usage.announce();
        true
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(page) = self.attached.slot().page() {
            page.end_waiting(self.attached.slot().index());
        }
    }
}
