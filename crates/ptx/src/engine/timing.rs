//! How time passes in a kernel under a model: each warp has a clock, which its instructions and its waits move.

/// A model of time for one launch. `%globaltimer`, `%clock64` and `nanosleep` follow it. Each warp's clock moves by
/// what its instructions cost. Over a wait for a time it moves at once, to the nanosecond, without using the CPU.
#[derive(Clone, Copy)]
pub struct Timing<'a> {
    /// `%globaltimer` when the kernel begins, in nanoseconds.
    pub start_ns: u64,
    /// From one instruction of a warp to its next, in picoseconds.
    pub instruction_ps: u64,
    /// Time of the CPU that the calling thread has used, in nanoseconds.
    pub cpu_ns: &'a (dyn Fn() -> u64 + Sync),
    /// Told several times a millisecond while the launch runs, by any worker.
    pub progress: &'a (dyn Fn(Progress) + Sync),
}

/// How far a launch has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Time of the CPU that its workers used, in nanoseconds.
    pub cpu_ns: u64,
    /// Every block in it polls: what it waits for comes from outside.
    pub polling: bool,
}

/// How long a launch's blocks took, each by its own clock; all 0 without a [`Timing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The longest block, in picoseconds.
    pub longest_ps: u64,
    /// All blocks together, in picoseconds.
    pub sum_ps: u64,
    /// Time of the CPU that the workers used, in nanoseconds.
    pub cpu_ns: u64,
    /// It waited for something from outside.
    pub polled: bool,
}

const PS: u64 = 1000;

/// Ticks of a clock of `khz` after so many picoseconds.
pub(crate) fn ticks(ps: u128, khz: u32) -> u64 {
    (ps * u128::from(khz) / 1_000_000_000) as u64
}

/// The least number of picoseconds after which a clock of `khz` shows at least so many ticks.
pub(crate) fn ps_of(ticks: u128, khz: u32) -> u128 {
    (ticks * 1_000_000_000).div_ceil(u128::from(khz))
}

/// Nanoseconds as picoseconds.
pub(crate) fn ps_of_ns(ns: u64) -> u64 {
    ns.saturating_mul(PS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_and_picoseconds_agree() {
        for khz in [1, 999, 1_000_000, 1_980_000, 2_520_001] {
            for n in [0u128, 1, 2, 1_979_999, 1 << 40] {
                let ps = ps_of(n, khz);
                assert_eq!(u128::from(ticks(ps, khz)), n, "{n} at {khz}");
                assert!(ps == 0 || u128::from(ticks(ps - 1, khz)) < n);
            }
        }
    }
}
