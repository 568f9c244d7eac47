//! Waiting for room, in a slice whose terms allow it: for a time, with no lock held, the longest waiting first.

use core::time::Duration;
use std::time::Instant;

use super::tenant::Attached;

/// The first pause of a wait, and the longest. Room in the slice wakes sooner; room in the device, a limit that is
/// raised and a wake that got lost are found by looking again.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How long a process holds back for each one that has been waiting for longer, and for how many of them at most.
const COURTESY: Duration = Duration::from_millis(2);
const COURTESIES: u32 = 5;

/// One allocation that waits for room. Used thus: [`Attached::begin_waiting`], try, [`Waiting::pause`], try, and so on
/// until a try succeeds or a pause answers that the time is up.
///
/// It holds no lock and no bytes; a process that is killed while it waits loses nothing and costs the others one
/// needless wake. A request that fits at once never queues. Among those that wait, each that was woken holds back some
/// milliseconds for those that have waited longer, so that they find the room first; a request that still does not fit
/// keeps no smaller one from it, since the smaller one's owner may be the one who has to finish before anything is
/// given back.
#[derive(Debug)]
pub struct Waiting<'a> {
    attached: &'a Attached,
    deadline: Instant,
    since: u64,
    releases: u32,
    pause: Duration,
}

impl Attached {
    /// Begins a wait, or `None` where the grant's terms allow none, and in a forked child. `bytes` beyond the limit are
    /// not waited for: no release makes room for them.
    #[must_use]
    pub fn begin_waiting(&self, bytes: u64) -> Option<Waiting<'_>> {
        let patience = self.on_oom_wait();
        if patience.is_zero() || bytes > self.memory_limit_bytes().max(self.spill_limit_bytes()) {
            return None;
        }
        let page = self.slot().page()?;
        Some(Waiting {
            attached: self,
            deadline: Instant::now() + patience,
            since: page.begin_waiting(self.slot().index()),
            releases: page.book.announce(),
            pause: FIRST_PAUSE,
        })
    }
}

impl Waiting<'_> {
    /// Sleeps until there may be room; answers whether there is time for another try.
    #[must_use]
    pub fn pause(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let Some(page) = self.attached.slot().page() else {
            return false;
        };
        if left.is_zero() {
            return false;
        }
        page.book.sleep(self.releases, self.pause.min(left));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let slot = self.attached.slot().index();
        // Another thread of this process may have had its room, and said that none waits.
        page.begin_waiting(slot);
        let longer = page.waiting_longer(slot, self.since);
        if longer != 0 {
            let longer = u32::try_from(longer).unwrap_or(COURTESIES).min(COURTESIES);
            std::thread::sleep((COURTESY * longer).min(left));
        }
        // Before the next try: a release after it changes the number, and the next pause does not sleep.
        self.releases = page.book.announce();
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
