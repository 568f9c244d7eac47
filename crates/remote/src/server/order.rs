//! The order of submitted calls across the threads of a program.
//!
//! Each thread has a ring of its own. A thread that submits a call and then tells another thread relies on the call coming
//! before what the other one does. So each submitted call has a place, and is made when all before it were. A call that is
//! waited for says how many were submitted before it, and is made after those. Calls that are waited for do not wait for
//! each other: their threads have not told of them yet.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::wire::{Header, Sort};

/// Looks before a wait: the other thread's call is mostly short.
const LOOKS: u32 = 200;
/// The longest sleep between two looks.
const NAP: Duration = Duration::from_millis(100);

/// How many submitted calls were made.
#[derive(Debug, Default)]
pub struct Order {
    made: AtomicU32,
    waiting: AtomicU32,
    lock: Mutex<()>,
    turned: Condvar,
}

impl Order {
    /// Waits for a message's turn, for `limit` at most: a program that was stopped between a place and its message, or one
    /// that says anything, keeps only itself.
    pub fn wait(&self, header: &Header, limit: Duration) {
        let before = match (header.order, header.sort) {
            (0, _) => return,
            // The place before the first is the last one: there is none of number 0.
            (1, Sort::Submit) => u32::MAX,
            (place, Sort::Submit) => place - 1,
            (place, _) => place,
        };
        if self.has(before) || limit.is_zero() {
            return;
        }
        for _ in 0..LOOKS {
            core::hint::spin_loop();
            if self.has(before) {
                return;
            }
        }
        let began = Instant::now();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.has(before) {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            let woken = self.turned.wait_timeout(lock, left.min(NAP));
            lock = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(lock);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// A submitted call was made.
    pub fn made(&self, header: &Header) {
        if header.sort != Sort::Submit || header.order == 0 || self.has(header.order) {
            return;
        }
        self.made.store(header.order, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) != 0 {
            // A thread that has looked and does not sleep yet holds the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.turned.notify_all();
        }
    }

    /// Whether all up to this place were made. Places come round after 2^32.
    fn has(&self, place: u32) -> bool {
        let ahead = self.made.load(Ordering::SeqCst).wrapping_sub(place);
        ahead.cast_signed() >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(sort: Sort, order: u32) -> Header {
        Header {
            length: 0,
            id: 0,
            sequence: 0,
            order,
            sort,
        }
    }

    #[test]
    fn a_call_comes_after_what_was_submitted_before_it() {
        let order = Order::default();
        let limit = Duration::from_secs(60);
        let calls = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for (sort, place) in [
                (Sort::Call, 3),
                (Sort::Submit, 3),
                (Sort::Submit, 2),
                (Sort::Submit, 1),
            ] {
                let (order, calls) = (&order, &calls);
                scope.spawn(move || {
                    let header = header(sort, place);
                    order.wait(&header, limit);
                    calls.lock().expect("no panic").push((place, sort == Sort::Call));
                    order.made(&header);
                });
            }
        });
        let calls = calls.into_inner().expect("no panic");
        assert_eq!(calls, [(1, false), (2, false), (3, false), (3, true)]);
    }

    #[test]
    fn places_come_round_and_a_place_that_never_comes_is_waited_for_until_the_limit() {
        let order = Order::default();
        order.made.store(u32::MAX - 1, Ordering::SeqCst);
        order.made(&header(Sort::Submit, u32::MAX));
        order.wait(&header(Sort::Submit, 1), Duration::from_secs(60));
        order.made(&header(Sort::Submit, 1));
        assert!(order.has(u32::MAX) && order.has(1) && !order.has(2));
        order.wait(&header(Sort::Call, 7), Duration::from_millis(1));
        assert!(!order.has(7));
    }
}
