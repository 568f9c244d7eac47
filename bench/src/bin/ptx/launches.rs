//! What an empty launch costs, through the emulated driver as a program meets it.

use std::path::Path;
use std::time::{Duration, Instant};

use divvy_bench::cuda::{Cuda, Empty};

/// Launches that each mean is of.
const LAUNCHES: u32 = 20_000;
/// Launches that are queued before the program waits for them.
const QUEUED: u32 = 500;

/// Mean times on the wall.
pub struct Launches {
    /// `cuLaunchKernel` and `cuCtxSynchronize`.
    pub synchronised: Duration,
    /// `cuLaunchKernel` alone, of a row of them.
    pub queued: Duration,
}

/// Measures both over the driver in `library`.
///
/// # Errors
/// The driver cannot be loaded, or a call fails.
pub fn measure(library: &Path) -> anyhow::Result<Launches> {
    let cuda = Cuda::load_from(library)?;
    cuda.begin()?;
    let empty: Empty = cuda.empty()?;
    for _ in 0..QUEUED {
        empty.launch()?;
    }
    cuda.synchronize()?;
    let begun = Instant::now();
    for _ in 0..LAUNCHES {
        empty.launch()?;
        cuda.synchronize()?;
    }
    let synchronised = begun.elapsed() / LAUNCHES;
    let mut queued = Duration::ZERO;
    for _ in 0..LAUNCHES / QUEUED {
        let begun = Instant::now();
        for _ in 0..QUEUED {
            empty.launch()?;
        }
        queued += begun.elapsed();
        cuda.synchronize()?;
    }
    Ok(Launches {
        synchronised,
        queued: queued / LAUNCHES,
    })
}
