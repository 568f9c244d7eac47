//! How a side sleeps, and how the other side wakes it, over any atomics.
//!
//! A doorbell costs a system call, so it rings only for a side that sleeps. The side that goes to sleep says so in
//! `asleep` and looks at the ring once more. The other side writes to the ring and then looks at `asleep`. Between the
//! two steps each side has a sequentially consistent fence. So at least one of them sees what the other one wrote:
//!
//! ```text
//!   sleeper                          waker
//!   1  n := signal                   1  publish an index
//!   2  asleep := what it waits for   2  fence
//!   3  fence                         3  asleep is that? then asleep := 0,
//!   4  look at the ring                 signal += 1, wake
//!   5  nothing? sleep while signal = n
//!   6  asleep := 0
//! ```
//!
//! A wake between the sleeper's steps 4 and 5 is not lost, for it has changed `signal`. The waker clears `asleep`, so
//! that messages which follow ring no second time.

use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::time::Duration;

use crate::error::RingError;
use crate::index::Word;
use crate::layout::Line;

/// What a side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Waiting {
    /// For a message to read.
    Message = 1,
    /// For room to write.
    Room = 2,
}

/// The words by which one side of a channel sleeps and is woken.
#[repr(C)]
#[derive(Debug, Default)]
pub struct SideWords<W> {
    /// What the side waits for, as [`Waiting`]; 0 while it is awake. Lines of its own: the other side reads it for
    /// each message, and finds it unchanged in its cache.
    pub asleep: Line<W>,
    /// Counts the doorbell's rings: a futex word.
    pub signal: Line<W>,
}

/// Wakes the other side's thread, and is waited for by a thread. Both may be called for no reason.
pub trait Doorbell<W> {
    /// Sleeps until it rings, while `signal` is still `seen`, and for `limit` at most.
    fn wait(&self, signal: &W, seen: u32, limit: Duration);
    /// The same, after earlier waits that lasted for `waited` and in which nothing came.
    fn wait_on(&self, signal: &W, seen: u32, limit: Duration, waited: Duration) {
        let _no_matter = waited;
        self.wait(signal, seen, limit);
    }
    /// Wakes the thread that waits at the other side. `signal` has been changed before.
    fn ring(&self, signal: &W);
}

/// A doorbell for a side that has waited for so long already.
pub(crate) struct After<'a, D> {
    pub doorbell: &'a D,
    pub waited: Duration,
}

impl<W, D: Doorbell<W>> Doorbell<W> for After<'_, D> {
    fn wait(&self, signal: &W, seen: u32, limit: Duration) {
        self.doorbell.wait_on(signal, seen, limit, self.waited);
    }

    fn ring(&self, signal: &W) {
        self.doorbell.ring(signal);
    }
}

impl<W: Word> SideWords<W> {
    /// No side sleeps.
    pub fn reset(&self) {
        self.asleep.0.store(0, Relaxed);
    }

    /// Wakes this side if it waits for `what`. The caller has published `what` before. Whether the doorbell rang.
    #[inline]
    pub fn notify(&self, what: Waiting, doorbell: &impl Doorbell<W>) -> bool {
        W::fence();
        self.asleep.0.load(Relaxed) == what as u32 && self.wake(what, doorbell)
    }

    #[cold]
    fn wake(&self, what: Waiting, doorbell: &impl Doorbell<W>) -> bool {
        // Not a plain store: by now the side may wait for something else, and has to be found there.
        let rings = self.asleep.0.replace(what as u32, 0);
        if rings {
            self.call(doorbell);
        }
        rings
    }

    /// Wakes this side, whatever it waits for.
    pub fn call(&self, doorbell: &impl Doorbell<W>) {
        self.signal.0.raise();
        doorbell.ring(&self.signal.0);
    }

    /// This side sleeps until it is woken, for `limit` at most. `nothing` looks at what it waits for: if it is there,
    /// the side does not sleep.
    ///
    /// # Errors
    /// Those of `nothing`.
    pub fn sleep(
        &self,
        what: Waiting,
        doorbell: &impl Doorbell<W>,
        limit: Duration,
        nothing: impl FnOnce() -> Result<bool, RingError>,
    ) -> Result<(), RingError> {
        // Acquire, so that the steps below stay behind it.
        let seen = self.signal.0.load(Acquire);
        self.asleep.0.store(what as u32, Relaxed);
        W::fence();
        let nothing = nothing();
        if nothing == Ok(true) {
            doorbell.wait(&self.signal.0, seen, limit);
        }
        self.asleep.0.store(0, Relaxed);
        nothing.map(|_| ())
    }
}
