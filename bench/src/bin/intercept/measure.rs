//! Alternating rounds over two drivers.

use std::time::{Duration, Instant};

use divvy_bench::statistics::median;

use crate::driver::Driver;

/// Median nanoseconds per call, without and with the limiter.
#[derive(Clone, Copy)]
pub struct Cost {
    pub bare_ns: f64,
    pub limited_ns: f64,
}

/// Calls `body` `batch` times on each driver in turn, `rounds` times over.
pub fn alternate(
    rounds: usize,
    batch: usize,
    bare: &Driver,
    limited: &Driver,
    body: impl FnMut(&Driver, Side),
) -> Cost {
    alternate_together(rounds, batch, bare, limited, || {}, body)
}

/// As [`alternate`], and calls `meet` before each batch: where that is a barrier, all who measure are at the same
/// driver at the same time.
pub fn alternate_together(
    rounds: usize,
    batch: usize,
    bare: &Driver,
    limited: &Driver,
    meet: impl Fn(),
    mut body: impl FnMut(&Driver, Side),
) -> Cost {
    let mut times = [Vec::with_capacity(rounds), Vec::with_capacity(rounds)];
    for round in 0..=rounds {
        for (side, driver) in [(Side::Bare, bare), (Side::Limited, limited)] {
            meet();
            let start = Instant::now();
            for _ in 0..batch {
                body(driver, side);
            }
            // The first round warms caches and first-call stubs.
            if round > 0 {
                times[side as usize].push(start.elapsed().as_nanos() as f64 / batch as f64);
            }
        }
    }
    let [mut bare, mut limited] = times;
    Cost {
        bare_ns: median(&mut bare),
        limited_ns: median(&mut limited),
    }
}

/// As [`alternate`], in processor time of the calling thread, and the mean instead of the median. It counts what the
/// calls spend, spinning included, and not the wait while others have the processor.
pub fn alternate_in_processor_time(
    rounds: usize,
    batch: usize,
    bare: &Driver,
    limited: &Driver,
    mut body: impl FnMut(&Driver, Side),
) -> Cost {
    let mut spent = [Duration::ZERO; 2];
    for round in 0..=rounds {
        for (side, driver) in [(Side::Bare, bare), (Side::Limited, limited)] {
            let start = processor_time();
            for _ in 0..batch {
                body(driver, side);
            }
            if round > 0 {
                spent[side as usize] += processor_time().saturating_sub(start);
            }
        }
    }
    let [bare_ns, limited_ns] = spent.map(|spent| spent.as_nanos() as f64 / (rounds.max(1) * batch) as f64);
    Cost { bare_ns, limited_ns }
}

/// What the calling thread has had of the processor.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Which of the two drivers a call goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Bare = 0,
    Limited = 1,
}

/// Live allocations on each side, to work among.
pub struct Churn {
    live: [Vec<u64>; 2],
    random: u64,
}

/// Bytes of each allocation.
const BYTES: usize = 4096;

impl Churn {
    /// Allocates `live` pointers on each side.
    pub fn new(live: usize, bare: &Driver, limited: &Driver) -> Self {
        let fill = |driver: &Driver| (0..live).map(|_| driver.allocate(BYTES)).collect();
        Self {
            live: [fill(bare), fill(limited)],
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// One allocation and its free, above those that live.
    #[inline]
    pub fn pair(driver: &Driver) {
        driver.free(driver.allocate(BYTES));
    }

    /// One free of a live allocation at random, and a new one in its place.
    #[inline]
    pub fn replace(&mut self, driver: &Driver, side: Side) {
        let live = &mut self.live[side as usize];
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let at = (self.random >> 20) as usize % live.len();
        driver.free(live[at]);
        live[at] = driver.allocate(BYTES);
    }

    /// Frees everything.
    pub fn end(self, bare: &Driver, limited: &Driver) {
        for (pointers, driver) in self.live.into_iter().zip([bare, limited]) {
            for pointer in pointers {
                driver.free(pointer);
            }
        }
    }
}
