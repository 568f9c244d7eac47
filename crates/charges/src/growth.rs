//! The steps by which a driver lets a pool grow: whole pages, or steps of many pages, as NVIDIA's does (32 MiB).
//!
//! The step is learned from observed growth, since no call reports it. Until then the larger step is assumed if it
//! fits.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The step that is assumed before any observation, in bytes.
const ASSUMED: u64 = 32 << 20;
/// No driver takes larger steps than this, in bytes.
const LARGEST: u64 = 1 << 30;

/// The observed growth of pools.
pub(crate) struct Growth {
    /// Bytes of a step; 0 before any observation; 1 for whole pages and no more.
    step: AtomicU64,
}

impl Growth {
    pub const fn new() -> Self {
        Self {
            step: AtomicU64::new(0),
        }
    }

    /// Whether growth was observed.
    pub fn is_known(&self) -> bool {
        self.step.load(Relaxed) != 0
    }

    /// Whether the observed growth was by more than whole pages.
    pub fn is_coarse(&self) -> bool {
        self.step.load(Relaxed) > 1
    }

    /// The most that a pool will grow by for an allocation that takes `least` bytes of whole pages.
    pub fn most(&self, least: u64, page: u64) -> u64 {
        let step = match self.step.load(Relaxed) {
            0 => ASSUMED,
            step => step,
        };
        least.checked_next_multiple_of(step.max(page)).unwrap_or(least)
    }

    /// A pool has grown by `grown` bytes for an allocation that takes `least`.
    pub fn learn(&self, grown: u64, least: u64, page: u64) {
        if grown == 0 || grown <= least && self.is_known() {
            return;
        }
        if grown > least {
            // The largest power of two that divides it; the smallest of those observed explains all.
            let seen = (1 << grown.trailing_zeros()).clamp(page, LARGEST);
            let known = self.step.load(Relaxed);
            let explains = known > 1 && self.most(least, page) >= grown;
            self.step.store(
                if explains {
                    known.min(seen)
                } else {
                    seen.max(known)
                },
                Relaxed,
            );
        } else if !grown.is_multiple_of(ASSUMED) {
            self.step.store(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 2 << 20;
    const MIB: u64 = 1 << 20;

    #[test]
    fn whole_pages_are_learned_from_growth_that_is_no_large_step() {
        let growth = Growth::new();
        assert_eq!(growth.most(PAGE, PAGE), 32 * MIB, "assumed");
        growth.learn(64 * MIB, 64 * MIB, PAGE);
        assert!(!growth.is_known(), "it may be either");
        growth.learn(0, PAGE, PAGE);
        assert!(!growth.is_known());
        growth.learn(6 * MIB, 6 * MIB, PAGE);
        assert!(growth.is_known() && !growth.is_coarse());
        assert_eq!(growth.most(6 * MIB, PAGE), 6 * MIB);
    }

    #[test]
    fn steps_are_learned_and_refined() {
        let growth = Growth::new();
        growth.learn(64 * MIB, 40 * MIB, PAGE);
        assert!(growth.is_coarse());
        assert_eq!(growth.most(PAGE, PAGE), 64 * MIB);
        growth.learn(32 * MIB, PAGE, PAGE);
        assert_eq!(growth.most(PAGE, PAGE), 32 * MIB);
        assert_eq!(growth.most(33 * MIB, PAGE), 64 * MIB);
        growth.learn(128 * MIB, PAGE, PAGE);
        assert_eq!(growth.most(PAGE, PAGE), 128 * MIB, "more than was known");
        assert_eq!(growth.most(u64::MAX - 511, PAGE), u64::MAX - 511);
    }
}
