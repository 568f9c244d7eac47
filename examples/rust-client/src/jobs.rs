//! The jobs: each loads one kernel of examples/cuda, runs it, and compares the result with the CPU's.

mod graph;
mod histogram;
mod mandelbrot;
mod matmul;
mod nbody;
mod reduce;
mod saxpy;

use std::time::Instant;

use serde::Serialize;

use crate::gpu::Gpu;

/// Names of the jobs, in the order they run.
pub const NAMES: [&str; 7] = [
    "saxpy",
    "matmul",
    "nbody",
    "reduce",
    "histogram",
    "mandelbrot",
    "graph",
];

/// How one job went.
#[derive(Serialize)]
pub struct Outcome {
    pub name: &'static str,
    /// Whether the largest error is within what the arithmetic allows.
    pub correct: bool,
    /// Numbers compared with the CPU's.
    pub results: usize,
    /// The largest difference from the CPU's result; relative or absolute as the job says.
    pub largest_error: f64,
    /// Wall-clock seconds of copying in, computing and copying out; the CPU's own computation is not counted.
    pub seconds: f64,
}

/// What a job hands back: both results, and the error it allows.
struct Comparison {
    device: Vec<f64>,
    host: Vec<f64>,
    /// Allowed difference of each pair, absolute.
    tolerance: f64,
    seconds: f64,
}

/// Runs the job called `name`, one of [`NAMES`].
pub fn run(name: &str, gpu: &Gpu) -> anyhow::Result<Outcome> {
    let (name, comparison) = match name {
        "saxpy" => ("saxpy", saxpy::run(gpu)?),
        "matmul" => ("matmul", matmul::run(gpu)?),
        "nbody" => ("nbody", nbody::run(gpu)?),
        "reduce" => ("reduce", reduce::run(gpu)?),
        "histogram" => ("histogram", histogram::run(gpu)?),
        "mandelbrot" => ("mandelbrot", mandelbrot::run(gpu)?),
        "graph" => ("graph", graph::run(gpu)?),
        other => anyhow::bail!("No job is called {other}"),
    };
    Ok(comparison.judge(name))
}

impl Comparison {
    fn judge(&self, name: &'static str) -> Outcome {
        let largest_error = self
            .device
            .iter()
            .zip(&self.host)
            .map(|(device, host)| (device - host).abs())
            // A NaN must not vanish in a maximum.
            .fold(
                0.0,
                |largest, error| if error <= largest { largest } else { error },
            );
        Outcome {
            name,
            correct: self.device.len() == self.host.len() && largest_error <= self.tolerance,
            results: self.device.len(),
            largest_error,
            seconds: self.seconds,
        }
    }
}

/// Numbers in [-1, 1) that are the same in every run.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    bits(seed, count)
        .map(|bits| (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
        .collect()
}

/// Well-mixed 64-bit words that are the same in every run: SplitMix64.
fn bits(seed: u64, count: usize) -> impl Iterator<Item = u64> {
    (1..=count as u64).map(move |i| {
        let mut z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Runs `work` and tells how many seconds it took.
fn timed<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, f64)> {
    let start = Instant::now();
    let result = work()?;
    Ok((result, start.elapsed().as_secs_f64()))
}

/// The same numbers in double precision, to compare in.
fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}
