//! The handle to the thread that listens to an account's doorbell.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use divvy_ledger::Ledger;
use divvy_ledger::attach::Pages;

/// The number of an account's processes that are watched at once. The clock finds the others.
pub(super) const MOST: usize = 32;

/// The handle to a doorbell's thread.
#[derive(Debug)]
pub(super) struct ListenerHandle {
    /// The arbiter's number of the slice.
    pub number: u64,
    pages: Arc<Vec<Pages>>,
    place: usize,
    /// The account's device, by UUID.
    pub device: String,
    /// The slice's user.
    pub uid: u32,
    pub ended: AtomicBool,
    pub reaps: AtomicBool,
    newcomers: Mutex<Vec<u32>>,
}

impl ListenerHandle {
    pub fn new(number: u64, uid: u32, pages: Arc<Vec<Pages>>, place: usize, device: String) -> Self {
        Self {
            number,
            pages,
            place,
            device,
            uid,
            newcomers: Mutex::default(),
            ended: AtomicBool::new(false),
            reaps: AtomicBool::new(false),
        }
    }

    /// The account's ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.pages[self.place].ledger
    }

    /// Has the thread look for dead processes, and then at the living. A reaper may have to wait for another that a
    /// hostile process delays, so no thread does it for two slices.
    pub fn reap(&self) {
        self.reaps.store(true, Relaxed);
        self.ledger().ring();
    }

    /// Has the thread watch new processes. The caller may hold the lock, so the only system call here is a wake-up,
    /// because the caller may be another thread.
    pub fn came(&self, pids: &[u32]) {
        if pids.is_empty() {
            return;
        }
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST.saturating_sub(newcomers.len());
        if room > 0 {
            newcomers.extend(pids.iter().take(room));
            drop(newcomers);
            self.ledger().ring();
        }
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.ended.store(true, Relaxed);
        self.ledger().ring();
    }

    /// The processes that came since the last call.
    pub fn newcomers(&self) -> Vec<u32> {
        std::mem::take(&mut *self.newcomers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
