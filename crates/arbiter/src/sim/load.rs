//! What programs do.

use super::random::Random;
use crate::{MICROSECOND, MILLISECOND, Nanos};

/// How long kernels last.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// All the same.
    Fixed(Nanos),
    /// Any length between these.
    Uniform(Nanos, Nanos),
    /// One of these, each as often.
    OneOf(Vec<Nanos>),
    /// The same of one function: only its arguments tell them apart.
    OfOne(Vec<Nanos>),
}

impl Lengths {
    /// 50 µs, 1 ms and 20 ms, each as often.
    pub fn mixed() -> Self {
        Self::OneOf(vec![50 * MICROSECOND, MILLISECOND, 20 * MILLISECOND])
    }

    /// A length, and the kind of launch by which a gate knows it again. Lengths of any value are of one function, and
    /// only its arguments tell them apart.
    pub(super) fn draw(&self, random: &mut Random) -> (Nanos, usize) {
        match self {
            Self::Fixed(length) => (*length, 0),
            Self::Uniform(low, high) => (random.between(*low, *high), 0),
            Self::OneOf(all) | Self::OfOne(all) => {
                let one = random.between(0, all.len() as u64 - 1) as usize;
                let kind = if matches!(self, Self::OneOf(_)) { one } else { 0 };
                (all[one], kind)
            }
        }
    }

    /// The longest of them.
    pub fn longest(&self) -> Nanos {
        match self {
            Self::Fixed(length) | Self::Uniform(_, length) => *length,
            Self::OneOf(all) | Self::OfOne(all) => all.iter().copied().max().unwrap_or(0),
        }
    }
}

/// A program.
#[derive(Clone, Debug)]
pub enum Load {
    /// Always has another kernel.
    Greedy(Lengths),
    /// Serves requests that come by a Poisson process.
    Requests {
        /// Mean time between requests.
        every: Nanos,
        /// Kernels of a request, launched one after the other without waiting.
        kernels: u32,
        /// Their lengths.
        lengths: Lengths,
    },
    /// Launches some kernels, waits for them, thinks, and starts again.
    Bursts {
        /// Kernels of a burst.
        kernels: u32,
        /// Their lengths.
        lengths: Lengths,
        /// Mean time on the CPU between bursts, exponentially distributed.
        think: Nanos,
    },
    /// Launches one kernel that never ends.
    Endless,
}

impl Load {
    /// Requests of 10 kernels of 0.5 ms that keep the device busy for this many parts in a hundred.
    pub fn inference(load_percent: u64) -> Self {
        Self::Requests {
            every: 5 * MILLISECOND * 100 / load_percent.max(1),
            kernels: 10,
            lengths: Lengths::Fixed(MILLISECOND / 2),
        }
    }
}
