//! What a gate has learnt of the lengths of its program's launches, by their kinds. It follows the limiter's estimates.

use std::collections::HashMap;

use crate::{MICROSECOND, MILLISECOND, Nanos};

/// The estimate of a launch without a measurement.
pub(super) const UNKNOWN: Nanos = 100 * MICROSECOND;
/// A measurement so many times as long as the estimate, or as short, is far from it. Two in a row that agree replace it.
const FAR: u64 = 4;
/// How many measurements the mean covers.
const COVERED: u64 = 8;
/// Behind a launch no other one of this length is queued before it is over: if the estimate were a tenth too short, a
/// latency-critical tenant would wait for both.
pub(super) const LONG: Nanos = 32 * MILLISECOND;
/// A launch that was long counts as long until so many others in a row were not.
const REMEMBERED: u32 = 15;
/// No estimate is longer.
const LONGEST: Nanos = u32::MAX as Nanos;

#[derive(Clone, Copy, Debug)]
struct Entry {
    estimate: Nanos,
    measured: u64,
    /// The newest measurement, if it was far longer or far shorter.
    far: Option<(bool, Nanos)>,
    /// For how many more measurements it counts as long.
    long: u32,
}

impl Entry {
    fn remember(&mut self, took: Nanos) {
        self.long = match took >= LONG {
            true => REMEMBERED,
            false => self.long.saturating_sub(1),
        };
    }
}

/// The estimates of one program.
#[derive(Debug, Default)]
pub(super) struct Learnt(HashMap<usize, Entry>);

impl Learnt {
    pub fn knows(&self, kind: usize) -> bool {
        self.0.contains_key(&kind)
    }

    pub fn estimate(&self, kind: usize) -> Nanos {
        self.0.get(&kind).map_or(UNKNOWN, |entry| entry.estimate)
    }

    /// Whether one was long of late: the next may be as well.
    pub fn was_long(&self, kind: usize) -> bool {
        self.0.get(&kind).is_some_and(|entry| entry.long > 0)
    }

    /// A launch took this long.
    pub fn learn(&mut self, kind: usize, took: Nanos) {
        let took = took.min(LONGEST);
        let Some(entry) = self.0.get_mut(&kind) else {
            let mut first = Entry {
                estimate: took,
                measured: 1,
                far: None,
                long: 0,
            };
            first.remember(took);
            self.0.insert(kind, first);
            return;
        };
        entry.remember(took);
        let far = if took > entry.estimate.saturating_mul(FAR) {
            Some((true, took))
        } else if took < entry.estimate / FAR {
            Some((false, took))
        } else {
            None
        };
        let agree = match (far, entry.far) {
            (Some((true, _)), Some((true, _))) => true,
            // Short ones have to agree on how short.
            (Some((false, one)), Some((false, other))) => {
                one.max(1).ilog2().abs_diff(other.max(1).ilog2()) <= 1
            }
            _ => false,
        };
        entry.measured = (entry.measured + 1).min(COVERED);
        if agree {
            (entry.estimate, entry.far) = (took, None);
        } else {
            let took = took.min(entry.estimate.saturating_mul(FAR));
            entry.estimate = (entry.estimate * (entry.measured - 1) + took) / entry.measured;
            entry.far = far;
        }
    }
}
