//! Estimated duration of a kernel: by function, grid and block, as measured before.
//!
//! A small table without locks. Two kernels that share an entry, or two threads in one entry, can spoil an estimate;
//! the next measurement corrects it.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::admission;
use super::budget::LONGEST_NS;

const PLACES: usize = 4096;
/// The number of neighbouring entries that a kernel may use.
const WAYS: usize = 4;

/// The estimate of a kernel without a measurement.
pub(super) const UNKNOWN_NS: u64 = 100_000;
/// No kernel takes less than starting one takes.
const LEAST_NS: u64 = 500;
/// After so many measurements an estimate serves on the fast path,
const SETTLED: u64 = 3;
/// and after so many launches without a measurement as well, since such a kernel cannot be measured.
const TRIED: u64 = 32;

/// Clocks that differ by less than this part are one clock: a device under load changes its own all the time.
const SAME_CLOCK: u32 = 8;

/// Whether kernels take another time under the second clock than under the first; both in MHz.
pub(super) fn is_other_clock(before: u32, now: u32) -> bool {
    before.abs_diff(now) > before.max(now) / SAME_CLOCK
}

/// How many upper limits are collected before the least of them may raise an estimate.
const LIMITS: u64 = 8;

/// What a launch runs: a value that differs between kernels and shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// A kernel of this grid and block.
    #[inline]
    pub fn kernel(function: usize, grid: [u32; 3], block: [u32; 3]) -> Self {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let shape = pair(grid[0], block[0])
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(pair(grid[1], block[1]).wrapping_mul(0xbf58_476d_1ce4_e5b9))
            .wrapping_add(pair(grid[2], block[2]).wrapping_mul(0x94d0_49bb_1331_11eb));
        Self::mixed(function as u64 ^ shape.rotate_left(29))
    }

    /// An executable graph with unknown contents.
    #[inline]
    pub fn graph(exec: usize) -> Self {
        Self::mixed(exec as u64 ^ GRAPH)
    }

    pub fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    fn mixed(bits: u64) -> Self {
        let bits = (bits ^ bits >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // Zero marks a free entry.
        Self((bits ^ bits >> 29) | 1)
    }
}

/// Tells graphs and kernels apart.
const GRAPH: u64 = 0x6772_6170_6800_0000;

/// A key of many parts, in their order.
#[derive(Debug)]
pub(super) struct Mixed(u64);

impl Mixed {
    pub fn graph() -> Self {
        Self(GRAPH)
    }

    pub fn add(&mut self, part: u64) {
        self.0 = Key::mixed(self.0.rotate_left(7) ^ part).0;
    }

    pub fn key(&self) -> Key {
        Key::mixed(self.0)
    }
}

#[derive(Debug)]
struct Entry {
    key: AtomicU64,
    /// Nanoseconds; from bit 40 on, the number of measurements; from bit 46 on, launches without one. Up to 63 of
    /// each. From bit 52 on, for how many more measurements it counts as long. From bit 56 on, whether the newest
    /// measurement was far longer or far shorter: [`Far`].
    value: AtomicU64,
    /// The least of the newest upper limits, in nanoseconds; from bit 40 on, how many they are.
    limits: AtomicU64,
    /// What was last measured under another clock, in nanoseconds; from bit 40 on, that clock in MHz. Zero where nothing
    /// was.
    basis: AtomicU64,
}

const NANOS: u64 = (1 << 40) - 1;
/// The fastest clock that an entry can note.
const MOST_MHZ: u64 = (1 << 24) - 1;

/// The most measurements, and launches without one, that an entry counts.
const COUNTED: u64 = 0x3f;
/// A launch that was long counts as long until so many others in a row were not. A function of random lengths has some
/// short ones in a row now and then, and the long ones that are then queued behind each other overlap with other slices'.
const REMEMBERED: u64 = 15;

fn measured(value: u64) -> u64 {
    value >> 40 & COUNTED
}

fn tried(value: u64) -> u64 {
    value >> 46 & COUNTED
}

fn remembered(value: u64) -> u64 {
    value >> 52 & REMEMBERED
}

fn pack(ns: u64, measured: u64, tried: u64) -> u64 {
    ns.clamp(LEAST_NS, LONGEST_NS) | measured.min(COUNTED) << 40 | tried.min(COUNTED) << 46
}

/// For how many more measurements an entry counts as long once a launch took `ns`, in its place in the value.
fn long_from(value: u64, ns: u64) -> u64 {
    let more = match admission::is_long(ns) {
        true => REMEMBERED,
        false => remembered(value).saturating_sub(1),
    };
    more << 52
}

/// How a measurement stands to the estimate before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Far {
    Near,
    Longer,
    /// By its binary logarithm.
    Shorter(u32),
}

impl Far {
    fn of(ns: u64, estimate: u64) -> Self {
        if ns > estimate.saturating_mul(FAR) {
            Self::Longer
        } else if ns < estimate / FAR {
            Self::Shorter(ns.max(1).ilog2())
        } else {
            Self::Near
        }
    }

    /// Whether this measurement and the one before it say the same. Short ones have to agree on how short: a function of
    /// random lengths has two in a row now and then, and what is queued by too short an estimate is in the device.
    fn agrees(self, before: Self) -> bool {
        match (self, before) {
            (Self::Longer, Self::Longer) => true,
            (Self::Shorter(one), Self::Shorter(other)) => one.abs_diff(other) <= 1,
            _ => false,
        }
    }

    fn last(value: u64) -> Self {
        match value >> 56 {
            0 => Self::Near,
            1 => Self::Longer,
            shorter => Self::Shorter(shorter as u32 - 2),
        }
    }

    fn bits(self) -> u64 {
        match self {
            Self::Near => 0,
            Self::Longer => 1 << 56,
            Self::Shorter(log) => (u64::from(log) + 2) << 56,
        }
    }
}

/// A measurement so many times as long as the estimate, or so many times shorter, is far from it.
const FAR: u64 = 4;

#[derive(Debug)]
pub(super) struct Estimates {
    entries: Box<[Entry]>,
}

impl Estimates {
    pub fn new() -> Self {
        let entry = || Entry {
            key: AtomicU64::new(0),
            value: AtomicU64::new(0),
            limits: AtomicU64::new(NANOS),
            basis: AtomicU64::new(0),
        };
        Self {
            entries: (0..PLACES).map(|_| entry()).collect(),
        }
    }

    #[inline]
    fn line(&self, key: Key) -> &[Entry] {
        let first = (key.0 >> 40) as usize % (PLACES / WAYS) * WAYS;
        &self.entries[first..first + WAYS]
    }

    #[inline]
    fn entry(&self, key: Key) -> Option<&Entry> {
        self.line(key)
            .iter()
            .find(|entry| entry.key.load(Relaxed) == key.0)
    }

    /// Nanoseconds, once the estimate is reliable.
    #[inline]
    pub fn settled(&self, key: Key) -> Option<u64> {
        let value = self.entry(key)?.value.load(Relaxed);
        (measured(value) >= SETTLED || tried(value) >= TRIED).then_some(value & NANOS)
    }

    /// The same of a launch that may be queued: nothing if a launch of it was long of late.
    #[inline]
    pub fn quick(&self, key: Key) -> Option<u64> {
        let value = self.entry(key)?.value.load(Relaxed);
        let known = measured(value) >= SETTLED || tried(value) >= TRIED;
        (known && remembered(value) == 0).then_some(value & NANOS)
    }

    /// Whether a launch of it was long of late, so that the next one may be as well, whatever the estimate is.
    pub fn was_long(&self, key: Key) -> bool {
        self.entry(key)
            .is_some_and(|entry| remembered(entry.value.load(Relaxed)) > 0)
    }

    /// Whether it has no measurement yet.
    pub fn is_new(&self, key: Key) -> bool {
        self.entry(key)
            .is_none_or(|entry| measured(entry.value.load(Relaxed)) == 0)
    }

    /// The best estimate in nanoseconds, and whether a measurement is wanted. Counts the launch as a try.
    pub fn guess(&self, key: Key) -> (u64, bool) {
        let entry = self.entry(key).unwrap_or_else(|| self.begin(key));
        let value = entry.value.load(Relaxed);
        let wanted = measured(value) < SETTLED;
        if wanted {
            let tried = pack(value & NANOS, measured(value), tried(value) + 1);
            entry.value.store(tried | remembered(value) << 52, Relaxed);
        }
        (value & NANOS, wanted)
    }

    /// An entry for a kernel: a free one, or the one with the fewest measurements.
    fn begin(&self, key: Key) -> &Entry {
        let line = self.line(key);
        let least = line.iter().min_by_key(|entry| match entry.key.load(Relaxed) {
            0 => 0,
            _ => 1 + measured(entry.value.load(Relaxed)),
        });
        let entry = least.unwrap_or(&line[0]);
        entry.value.store(pack(UNKNOWN_NS, 0, 0), Relaxed);
        entry.limits.store(NANOS, Relaxed);
        entry.basis.store(0, Relaxed);
        entry.key.store(key.0, Relaxed);
        entry
    }

    /// A launch took `ns`. The first measurements count most. Later ones count an eighth, and at most four times the
    /// present estimate. So one moment in which the machine was busy elsewhere does not spoil it. Two in a row that
    /// are far from it in the same direction are no such moment: other arguments have changed the length.
    pub fn learn(&self, key: Key, ns: u64) {
        let Some(entry) = self.entry(key) else { return };
        let value = entry.value.load(Relaxed);
        let (old, count) = (value & NANOS, measured(value));
        let weight = (count + 1).min(8);
        let took = ns.min(LONGEST_NS);
        let ns = took;
        let far = Far::of(ns, old);
        let changed = far.agrees(Far::last(value));
        let new = if count == 0 || changed {
            ns
        } else {
            let ns = if count < SETTLED { ns } else { ns.min(old * FAR) };
            (old * (weight - 1) + ns) / weight
        };
        let far = if count == 0 || changed { Far::Near } else { far };
        let long = long_from(value, took);
        entry
            .value
            .store(pack(new, count + 1, 0) | long | far.bits(), Relaxed);
    }

    /// The device's clock has changed, in MHz. What was measured is a guess from now on, and the next measurement replaces
    /// it. A slower clock makes the guess longer. A faster one leaves it as it is: kernels that wait for memory take no
    /// less time. A guess is made from the last measurement and its clock, so a clock that falls and rises again
    /// changes none. What was never measured stays as it is.
    pub fn doubt(&self, before: u32, now: u32) {
        for entry in &self.entries {
            if entry.key.load(Relaxed) == 0 {
                continue;
            }
            let value = entry.value.load(Relaxed);
            if measured(value) > 0 {
                let clock = u64::from(before).min(MOST_MHZ);
                entry.basis.store(value & NANOS | clock << 40, Relaxed);
            }
            let basis = entry.basis.load(Relaxed);
            if basis == 0 {
                continue;
            }
            let ns = basis & NANOS;
            let slower = u128::from(ns) * u128::from(basis >> 40) / u128::from(now.max(1));
            let guess = u64::try_from(slower).unwrap_or(LONGEST_NS).max(ns);
            entry.value.store(pack(guess, 0, 0), Relaxed);
            entry.limits.store(NANOS, Relaxed);
        }
    }

    /// A launch took `ns` at most: its end was noticed late, or the device was idle in between. The least of several
    /// such limits counts, so that other load on the machine does not matter.
    pub fn learn_limit(&self, key: Key, ns: u64) {
        let Some(entry) = self.entry(key) else { return };
        let value = entry.value.load(Relaxed);
        let (old, count) = (value & NANOS, measured(value));
        let limits = entry.limits.load(Relaxed);
        let least = ns.min(limits & NANOS);
        let new = if count == 0 || ns < old { ns } else { old };
        if (limits >> 40) + 1 < LIMITS {
            entry.limits.store(least | ((limits >> 40) + 1) << 40, Relaxed);
            entry
                .value
                .store(pack(new, count + 1, 0) | long_from(value, new), Relaxed);
        } else {
            // All limits are longer than the estimate: the kernel has become longer.
            entry.limits.store(NANOS, Relaxed);
            let new = new.max(least);
            entry
                .value
                .store(pack(new, count + 1, 0) | long_from(value, new), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn shapes_and_functions_are_told_apart() {
        let mut all = std::collections::HashSet::new();
        for function in [0x1000, 0x1008, 0x7f00_0000_0000] {
            for x in 1..20 {
                for y in 1..5 {
                    for block in [32, 64, 1024] {
                        all.insert(Key::kernel(function, [x, y, 1], [block, 1, 1]).0);
                        all.insert(Key::kernel(function, [y, 1, x], [1, block, 1]).0);
                    }
                }
            }
            all.insert(Key::graph(function).0);
        }
        assert_eq!(all.len(), 3 * (19 * 4 * 3 * 2 + 1));
    }

    #[test]
    fn an_estimate_settles_and_follows() {
        let estimates = Estimates::new();
        let key = Key::kernel(7, [1; 3], [32, 1, 1]);
        assert_eq!(estimates.settled(key), None);
        assert_eq!(estimates.guess(key), (UNKNOWN_NS, true));
        for _ in 0..3 {
            estimates.learn(key, 20 * MS);
        }
        assert_eq!(estimates.settled(key), Some(20 * MS));
        assert!(!estimates.guess(key).1);
        estimates.learn(key, 1_000 * MS);
        assert!(estimates.settled(key) < Some(50 * MS), "one outlier");
        for _ in 0..60 {
            estimates.learn(key, MS);
        }
        let now = estimates.settled(key).expect("settled");
        assert!((MS..MS + MS / 10).contains(&now), "{now}");
        estimates.learn_limit(key, 2 * MS);
        assert_eq!(estimates.settled(key), Some(now), "a limit above tells nothing");
    }

    #[test]
    fn a_tenfold_change_of_length_is_followed_at_the_second_launch() {
        let estimates = Estimates::new();
        let key = Key::kernel(7, [1; 3], [32, 1, 1]);
        estimates.guess(key);
        (0..20).for_each(|_| estimates.learn(key, 10 * MS));
        estimates.learn(key, 100 * MS);
        assert!(
            estimates.settled(key) < Some(20 * MS),
            "it may have been a moment"
        );
        estimates.learn(key, 100 * MS);
        assert_eq!(estimates.settled(key), Some(100 * MS));
        estimates.learn(key, 2 * MS);
        assert!(estimates.settled(key) > Some(80 * MS));
        estimates.learn(key, 2 * MS);
        assert_eq!(estimates.settled(key), Some(2 * MS));
        // In turns, far in both directions: the mean stands between.
        (0..50).for_each(|_| {
            estimates.learn(key, MS / 1000);
            estimates.learn(key, 1000 * MS);
        });
        let mean = estimates.settled(key).expect("settled");
        assert!((MS..1000 * MS).contains(&mean), "{mean}");
    }

    #[test]
    fn a_function_that_was_long_of_late_is_not_queued() {
        let estimates = Estimates::new();
        let key = Key::kernel(7, [1; 3], [32, 1, 1]);
        estimates.guess(key);
        (0..20).for_each(|_| estimates.learn(key, MS));
        assert_eq!((estimates.quick(key), estimates.was_long(key)), (Some(MS), false));
        estimates.learn(key, 500 * MS);
        for _ in 1..REMEMBERED {
            estimates.learn(key, MS);
            assert_eq!((estimates.quick(key), estimates.was_long(key)), (None, true));
        }
        estimates.learn(key, MS);
        assert!(estimates.quick(key).is_some() && !estimates.was_long(key));
        // One limit alone says that the machine stood still, or that another slice's kernel ran.
        estimates.learn_limit(key, 500 * MS);
        assert!(!estimates.was_long(key));
    }

    #[test]
    fn under_another_clock_each_estimate_is_measured_again() {
        for (before, now) in [(1980, 1755), (1755, 1980), (1000, 1000)] {
            assert!(!is_other_clock(before, now), "{before} {now}");
        }
        let keys = [1, 2].map(|function| Key::kernel(function, [1; 3], [32, 1, 1]));
        let estimates = Estimates::new();
        for key in keys {
            estimates.guess(key);
            (0..20).for_each(|_| estimates.learn(key, 10 * MS));
        }
        assert!(is_other_clock(1980, 990) && is_other_clock(990, 1980));
        estimates.doubt(1980, 990);
        for key in keys {
            assert_eq!(estimates.settled(key), None);
            assert_eq!(estimates.guess(key), (20 * MS, true), "half as fast");
        }
        // It waits for memory, so it takes hardly more. One measurement says so.
        estimates.learn(keys[0], 11 * MS);
        assert_eq!(estimates.guess(keys[0]).0, 11 * MS);
        estimates.doubt(990, 1980);
        assert_eq!(
            estimates.guess(keys[0]),
            (11 * MS, true),
            "no shorter than it was"
        );
        estimates.learn(keys[1], 5 * MS);
        assert_eq!(estimates.guess(keys[1]).0, 5 * MS);
    }

    #[test]
    fn a_clock_that_falls_and_rises_again_changes_no_estimate() {
        let estimates = Estimates::new();
        let keys = [1, 2, 3].map(|function| Key::kernel(function, [1; 3], [32, 1, 1]));
        for key in keys {
            estimates.guess(key);
        }
        estimates.learn(keys[0], 10 * MS);
        for _ in 0..TRIED {
            estimates.guess(keys[2]);
        }
        for _ in 0..31 {
            estimates.doubt(1980, 990);
            estimates.doubt(990, 1980);
        }
        assert_eq!(estimates.guess(keys[0]), (10 * MS, true));
        assert_eq!(estimates.guess(keys[1]), (UNKNOWN_NS, true), "never measured");
        assert_eq!(
            estimates.settled(keys[2]),
            Some(UNKNOWN_NS),
            "it cannot be measured"
        );
        // In steps it is as slow as at once.
        estimates.doubt(1980, 1500);
        estimates.doubt(1500, 990);
        assert_eq!(estimates.guess(keys[0]), (20 * MS, true));
        // Measured under the slow clock: the faster one and back is no change again.
        estimates.learn(keys[0], 20 * MS);
        estimates.doubt(990, 1980);
        estimates.doubt(1980, 990);
        assert_eq!(estimates.guess(keys[0]), (20 * MS, true));
    }

    #[test]
    fn two_short_launches_among_long_ones_are_no_change_unless_they_agree() {
        let estimates = Estimates::new();
        let key = Key::kernel(7, [1; 3], [32, 1, 1]);
        estimates.guess(key);
        (0..20).for_each(|_| estimates.learn(key, 500 * MS));
        // Random lengths up to a second.
        for ns in [100 * MS, MS, 60 * MS, MS / 10, 10 * MS] {
            estimates.learn(key, ns);
        }
        assert!(estimates.settled(key) > Some(200 * MS));
        estimates.learn(key, MS);
        estimates.learn(key, MS + MS / 2);
        assert!(estimates.settled(key) < Some(2 * MS), "other arguments");
    }

    /// A laptop slept while launches of two streams were in flight: both seem to have taken all night.
    #[test]
    fn a_machine_that_slept_spoils_an_estimate_for_two_launches_and_no_more() {
        const NIGHT: u64 = 8 * 3600 * 1000 * MS;
        let estimates = Estimates::new();
        let keys = [Key::kernel(7, [1; 3], [32, 1, 1]), Key::graph(3)];
        for key in keys {
            estimates.guess(key);
            (0..20).for_each(|_| estimates.learn(key, 10 * MS));
            (0..2).for_each(|_| estimates.learn(key, NIGHT));
            assert_eq!(
                estimates.settled(key),
                Some(LONGEST_NS),
                "no longer than any launch"
            );
            (0..2).for_each(|_| estimates.learn(key, 10 * MS));
            assert_eq!(estimates.settled(key), Some(10 * MS));
        }
    }

    #[test]
    fn limits_are_as_good_as_the_least_of_them() {
        let estimates = Estimates::new();
        let key = Key::graph(3);
        estimates.guess(key);
        for late in [30, 2, 9, 1, 5] {
            estimates.learn_limit(key, MS + late * 100_000);
        }
        assert_eq!(estimates.settled(key), Some(MS + 100_000));
        for late in [4, 2, 9, 1, 5].repeat(4) {
            estimates.learn_limit(key, 7 * MS + late * 100_000);
        }
        let now = estimates.settled(key).expect("settled");
        assert!((7 * MS..8 * MS).contains(&now), "it has become longer: {now}");
    }

    #[test]
    fn what_cannot_be_measured_is_not_looked_at_for_ever() {
        let estimates = Estimates::new();
        let key = Key::graph(7);
        for _ in 0..TRIED {
            assert_eq!(estimates.settled(key), None);
            estimates.guess(key);
        }
        assert_eq!(estimates.settled(key), Some(UNKNOWN_NS));
    }

    #[test]
    fn a_full_table_forgets_what_it_knows_least_of() {
        let estimates = Estimates::new();
        let known = Key::kernel(1, [1; 3], [1; 3]);
        estimates.guess(known);
        for _ in 0..8 {
            estimates.learn(known, MS);
        }
        for function in 2..50_000 {
            estimates.guess(Key::kernel(function, [1; 3], [1; 3]));
        }
        assert_eq!(estimates.settled(known), Some(MS));
    }
}
