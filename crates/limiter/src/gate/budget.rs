//! The budget of one stream. It says what the stream may launch before the next slow path, and how many
//! launches are inside the driver.
//!
//! One word holds the credit (nanoseconds of work) and a count of launches, so that a launch takes one atomic addition.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

use super::stream::Name;

/// Streams that one gate tells apart. Streams beyond that share the last budget.
pub(super) const STREAMS: usize = 64;
/// The position of streams without one of their own.
pub(super) const COMMON: usize = STREAMS - 1;
/// How far from its home position a budget is searched.
const PROBES: usize = 4;

/// Launches are counted from this bit on.
const ONE: u64 = 1 << 40;
const CREDIT: u64 = ONE - 1;
/// No credit. The value is above zero, so that several threads that spend at once never borrow from the count.
const EMPTY: u64 = 1 << 39;
const COUNT: u64 = (1 << 24) - 1;

/// Longest estimate of a kernel: nanoseconds, some 4 s. The credit field holds 128 of them.
pub(super) const LONGEST_NS: u64 = u32::MAX as u64;

/// One stream's budget.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct StreamBudget {
    /// The stream, or 0 if the budget is free.
    stream: AtomicUsize,
    owner: AtomicUsize,
    word: AtomicU64,
    returned: AtomicU64,
}

impl StreamBudget {
    pub const fn new() -> Self {
        Self {
            stream: AtomicUsize::new(0),
            owner: AtomicUsize::new(0),
            word: AtomicU64::new(EMPTY),
            returned: AtomicU64::new(0),
        }
    }

    #[inline]
    fn is_of(&self, name: Name) -> bool {
        self.stream.load(Relaxed) == name.stream && self.owner.load(Relaxed) == name.owner
    }

    /// Takes `ns` of credit for a launch, if the budget has that much.
    #[inline]
    pub fn spend(&self, ns: u64) -> bool {
        let change = ONE - ns;
        let before = self.word.fetch_add(change, Relaxed);
        if before & CREDIT >= EMPTY + ns {
            return true;
        }
        self.word.fetch_sub(change, Relaxed);
        false
    }

    /// Takes `ns` for a launch that took the slow path.
    pub fn charge(&self, ns: u64) {
        self.word.fetch_add(ONE - ns, Relaxed);
    }

    /// A launch has come back from the driver.
    #[inline]
    pub fn came_back(&self) {
        self.returned.fetch_add(1, Release);
    }

    /// Adds `ns` of credit.
    pub fn give(&self, ns: u64) {
        self.word.fetch_add(ns, Relaxed);
    }

    /// The present credit; below zero if threads launched before it was withdrawn.
    pub fn left(&self) -> i64 {
        (self.word.load(Relaxed) & CREDIT) as i64 - EMPTY as i64
    }

    /// Withdraws all credit, and returns how much there was.
    pub fn empty(&self) -> u64 {
        let left = self.left().max(0) as u64;
        self.word.fetch_sub(left, Relaxed);
        left
    }

    /// How many launches have passed the gate so far, and how many of them are still inside the driver. The counts wrap
    /// at 2^24.
    pub fn launches(&self) -> (u64, u64) {
        let returned = self.returned.load(Acquire);
        let passed = self.word.load(Acquire) >> 40;
        (passed, passed.wrapping_sub(returned) & COUNT)
    }

    /// How many launches lie between two counts.
    pub fn between(from: u64, to: u64) -> u64 {
        to.wrapping_sub(from) & COUNT
    }

    /// Assigns the budget to a stream; only with the state locked.
    pub fn assign(&self, name: Name) {
        self.stream.store(0, Relaxed);
        self.owner.store(name.owner, Relaxed);
        self.stream.store(name.stream, Release);
    }

    /// Frees the budget; only with the state locked.
    pub fn vacate(&self) {
        self.stream.store(0, Relaxed);
        self.empty();
    }

    /// Its stream is destroyed: a new stream with the same handle is another stream.
    pub fn disown(&self) {
        self.stream.store(usize::MAX, Relaxed);
    }

    pub fn is_free(&self) -> bool {
        self.stream.load(Relaxed) == 0
    }

    pub fn name(&self) -> Name {
        Name {
            stream: self.stream.load(Relaxed),
            owner: self.owner.load(Relaxed),
        }
    }
}

/// The positions where a stream's budget may be.
#[inline]
fn positions(name: Name) -> impl Iterator<Item = usize> {
    let hash = (name.stream ^ name.owner.rotate_left(21)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = hash >> 48;
    (0..PROBES).map(move |step| (first + step) % COMMON)
}

/// The position of a stream's budget, if it has one.
#[inline]
pub(super) fn find(budgets: &[StreamBudget; STREAMS], name: Name) -> Option<usize> {
    positions(name).find(|index| budgets[*index].is_of(name))
}

/// A free position for a stream's budget, or one whose budget `may_go`.
pub(super) fn room(
    budgets: &[StreamBudget; STREAMS],
    name: Name,
    may_go: impl Fn(usize) -> bool,
) -> Option<usize> {
    positions(name)
        .find(|index| budgets[*index].is_free())
        .or_else(|| positions(name).find(|index| may_go(*index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credit_gives_what_it_holds_and_counts() {
        let budget = StreamBudget::new();
        assert!(!budget.spend(1));
        assert_eq!(budget.launches(), (0, 0));
        budget.give(100);
        assert!(budget.spend(60));
        assert!(!budget.spend(60));
        assert_eq!((budget.left(), budget.launches()), (40, (1, 1)));
        budget.came_back();
        budget.charge(50);
        assert_eq!((budget.left(), budget.launches()), (-10, (2, 1)));
        assert_eq!(budget.empty(), 0);
        budget.give(30);
        assert_eq!((budget.empty(), budget.left()), (20, 0));
    }

    #[test]
    fn threads_never_spend_more_than_there_is() {
        let budget = StreamBudget::new();
        budget.give(100_000);
        let spent: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| (0..50_000).filter(|_| budget.spend(3)).count() as u64))
                .collect();
            threads.into_iter().map(|t| t.join().expect("it ends")).sum()
        });
        assert!(spent <= 33_333, "{spent}");
        assert_eq!(budget.left(), 100_000 - spent as i64 * 3);
        assert_eq!(budget.launches().0, spent);
    }

    #[test]
    fn counts_wrap() {
        let budget = StreamBudget::new();
        for _ in 0..(1 << 24) + 5 {
            budget.charge(0);
            budget.came_back();
        }
        assert_eq!(budget.launches(), (5, 0));
        assert_eq!(budget.left(), 0);
        assert_eq!(StreamBudget::between(COUNT, 5), 6);
    }
}
