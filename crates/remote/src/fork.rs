//! What belongs to one process and to none of its forked children.
//!
//! A child has a copy of its parent's memory. What lies in it may be in use by a thread that the child does not have: a
//! lock that was held is held for ever. And the child's number may be its parent's, in another pid namespace. So each
//! process has values of its own here, and knows itself by a page that the kernel wipes on fork.

use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use divvy_ledger::fork::ForkGuard;
use rustix::process::getpid;

/// A process as its children know it.
struct Mark {
    /// None where the kernel cannot wipe a page. The process's number tells it then.
    guard: Option<ForkGuard>,
    pid: i32,
    /// Of a child, one more than its parent's.
    generation: u64,
}

impl Mark {
    fn is_ours(&self) -> bool {
        match &self.guard {
            Some(guard) => guard.is_ours(),
            None => self.pid == getpid().as_raw_nonzero().get(),
        }
    }
}

static MARK: AtomicPtr<Mark> = AtomicPtr::new(ptr::null_mut());

/// The number of this process among its forebears since the library was loaded: never 0, and another one in each child.
#[inline]
pub fn generation() -> u64 {
    let known = MARK.load(Ordering::Acquire);
    // SAFETY: a mark that was published is never freed.
    match unsafe { known.as_ref() } {
        Some(mark) if mark.is_ours() => mark.generation,
        _ => next(known),
    }
}

/// The first look in a process. No lock is taken: its owner could be a thread of the parent.
#[cold]
fn next(mut known: *mut Mark) -> u64 {
    // SAFETY: as above.
    let before = unsafe { known.as_ref() }.map_or(0, |mark| mark.generation);
    let made = Box::into_raw(Box::new(Mark {
        guard: ForkGuard::new().ok(),
        pid: getpid().as_raw_nonzero().get(),
        generation: before + 1,
    }));
    while let Err(now) = MARK.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        if unsafe { now.as_ref() }.is_some_and(Mark::is_ours) {
            // Another thread of this process was quicker.
            // SAFETY: this one was not published.
            drop(unsafe { Box::from_raw(made) });
            break;
        }
        known = now;
    }
    // A child numbers itself one higher than its parent: both were here before the fork, or neither.
    before + 1
}

/// A value of this process. A forked child begins with a new one, and its copy of its parent's is left alone.
#[derive(Debug)]
pub struct OfProcess<T> {
    own: AtomicPtr<(u64, T)>,
}

impl<T> OfProcess<T> {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            own: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// This process's value to begin with.
    #[must_use]
    pub fn with(value: T) -> Self {
        Self {
            own: AtomicPtr::new(Box::into_raw(Box::new((generation(), value)))),
        }
    }
}

impl<T> Default for OfProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default> Deref for OfProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let us = generation();
        let known = self.own.load(Ordering::Acquire);
        // SAFETY: what was published is freed with `self` alone.
        match unsafe { known.as_ref() } {
            Some((of, value)) if *of == us => value,
            _ => self.begin(us, known),
        }
    }
}

impl<T: Default> OfProcess<T> {
    #[cold]
    fn begin(&self, us: u64, mut known: *mut (u64, T)) -> &T {
        let made = Box::into_raw(Box::new((us, T::default())));
        while let Err(now) = self
            .own
            .compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire)
        {
            // SAFETY: as above.
            if let Some((of, value)) = unsafe { now.as_ref() }
                && *of == us
            {
                // Another thread of this process was quicker.
                // SAFETY: this one was not published.
                drop(unsafe { Box::from_raw(made) });
                return value;
            }
            known = now;
        }
        // SAFETY: as above.
        unsafe { &(*made).1 }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        let own = *self.own.get_mut();
        // SAFETY: as above, and no reference outlives `self`.
        let is_ours = unsafe { own.as_ref() }.is_some_and(|(of, _)| *of == generation());
        if is_ours {
            // SAFETY: it was made by `Box`, and is freed once.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Runs `body` in a forked child, which the kernel ends if it hangs. Gives what the child's `body` gave.
    fn in_child(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls what takes no lock of another thread, and ends itself.
        unsafe {
            match libc::fork() {
                0 => {
                    libc::alarm(30);
                    libc::_exit(i32::from(!body()));
                }
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    status == 0
                }
            }
        }
    }

    #[test]
    fn a_child_has_a_value_of_its_own_though_its_parents_is_locked() {
        static VALUE: OfProcess<Mutex<u32>> = OfProcess::new();
        let held = VALUE.lock().expect("ours");
        let us = generation();
        assert_eq!(generation(), us);
        let has_own = in_child(|| {
            let of_child = generation();
            let is_new = VALUE
                .lock()
                .is_ok_and(|mut value| std::mem::replace(&mut *value, 7) == 0);
            let stays = VALUE.lock().is_ok_and(|value| *value == 7);
            let of_grandchild = in_child(|| generation() == of_child + 1 && *VALUE.lock().unwrap() == 0);
            of_child == us + 1 && is_new && stays && of_grandchild
        });
        assert!(has_own);
        assert_eq!(*held, 0, "the parent's is as before");
    }

    #[test]
    fn a_value_goes_with_its_owner_in_the_process_that_made_it() {
        let counted = std::sync::Arc::new(());
        let value = OfProcess::with(Some(std::sync::Arc::clone(&counted)));
        assert!(value.is_some());
        assert!(in_child(|| value.is_none()), "a child begins with its own");
        drop(value);
        assert_eq!(std::sync::Arc::strong_count(&counted), 1);
    }
}
