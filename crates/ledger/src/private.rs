//! A lock and memory of one process, for tables that are used inside other programs' calls.
//!
//! Such a table must not call the program's allocator, which may itself be inside an allocation that the table notes.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::FromZeros;

/// A lock that is held for tens of nanoseconds. Its holder must neither panic nor wait.
#[derive(Debug)]
pub struct SpinLock<T> {
    locked: AtomicBool,
    contents: UnsafeCell<T>,
}

// SAFETY: the contents are touched only through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An unlocked lock on `contents`.
    pub const fn new(contents: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            contents: UnsafeCell::new(contents),
        }
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        while self
            .locked
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.wait();
        }
        SpinGuard(self)
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..64 {
            if !self.locked.load(Ordering::Relaxed) {
                return;
            }
            core::hint::spin_loop();
        }
        // The holder is not scheduled: it needs our processor.
        rustix::thread::sched_yield();
    }
}

/// Holds the lock while it lives.
#[derive(Debug)]
pub struct SpinGuard<'a, T>(&'a SpinLock<T>);

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.contents.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.0.contents.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}

/// Values in memory that comes straight from the system, zeroed at first.
// Packed, so that a table with this and one more number takes 16 bytes.
#[repr(C, packed(4))]
#[derive(Debug)]
pub struct Zeroed<T: Copy> {
    /// Dangling while `count` is 0.
    first: NonNull<T>,
    count: u32,
}

// SAFETY: the memory belongs to this value alone, and any thread may unmap it.
unsafe impl<T: Copy + Send> Send for Zeroed<T> {}

/// The system has no memory to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

impl<T: Copy> Zeroed<T> {
    /// No values. Takes no memory.
    pub const fn empty() -> Self {
        Self {
            first: NonNull::dangling(),
            count: 0,
        }
    }
}

impl<T: Copy + FromZeros> Zeroed<T> {
    /// `count` values, at least 1.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn new(count: u32) -> Result<Self, Exhausted> {
        // SAFETY: a fresh anonymous mapping overlaps nothing.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                count as usize * size_of::<T>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let first = NonNull::new(mapped.map_err(|_| Exhausted)?.cast()).ok_or(Exhausted)?;
        Ok(Self { first, count })
    }
}

impl<T: Copy> Deref for Zeroed<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        let (first, count) = (self.first, self.count as usize);
        // SAFETY: `first` is a page's address or dangling with a count of 0. The mapping has `count` values, which were
        // zero, a valid value by `FromZeros`, or written since; it lives as long as `self`.
        unsafe { core::slice::from_raw_parts(first.as_ptr(), count) }
    }
}

impl<T: Copy> DerefMut for Zeroed<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        let (first, count) = (self.first, self.count as usize);
        // SAFETY: as in `deref`; `self` is borrowed mutably, and has the memory alone.
        unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), count) }
    }
}

impl<T: Copy> Drop for Zeroed<T> {
    fn drop(&mut self) {
        if self.count != 0 {
            let (first, count) = (self.first, self.count as usize);
            // SAFETY: the range is what `new` mapped for this count, and no other value refers to it.
            let _unmapped = unsafe { rustix::mm::munmap(first.as_ptr().cast(), count * size_of::<T>()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_zero_at_first_and_keep_what_is_written() {
        assert!(Zeroed::<u64>::empty().is_empty());
        let mut values = Zeroed::<u64>::new(1000).expect("memory is there");
        assert!(values.iter().all(|value| *value == 0));
        values[999] = 7;
        assert_eq!((values.len(), values[999]), (1000, 7));
        assert_eq!(size_of::<(Zeroed<u64>, u32)>(), 16);
    }

    #[test]
    fn one_thread_at_a_time_has_the_lock() {
        let lock = SpinLock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    /// Pages of address space of this process.
    fn address_space() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc");
        let pages = statm.split(' ').next().and_then(|pages| pages.parse().ok());
        pages.expect("a number of pages")
    }

    #[test]
    fn values_that_are_dropped_give_their_memory_back() {
        let before = address_space();
        for _ in 0..64 {
            // A gibibyte each.
            assert_eq!(Zeroed::<u64>::new(1 << 27).expect("address space").len(), 1 << 27);
        }
        let more = address_space().saturating_sub(before) * 4096;
        assert!(more < 32 << 30, "{more} bytes more");
    }
}
