//! How often each value occurs among a million bytes.

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::{Comparison, bits, timed};
use crate::gpu::Gpu;

const PTX: &str = include_str!("../../../cuda/histogram.ptx");
const BINS: usize = 256;
const COUNT: usize = 1_000_003;

pub fn run(gpu: &Gpu) -> anyhow::Result<Comparison> {
    let kernel = gpu.kernel(PTX, "histogram")?;
    // The product of two uniform bytes: some bins are crowded, as in real data.
    let data: Vec<u8> = bits(7, COUNT)
        .map(|bits| (((bits & 255) * (bits >> 56)) >> 8) as u8)
        .collect();

    let (counts, seconds) = timed(|| {
        let on_device = gpu.stream.clone_htod(&data)?;
        let mut bins = gpu.stream.alloc_zeros::<u32>(BINS)?;
        let shape = LaunchConfig {
            grid_dim: (32, 1, 1),
            block_dim: (128, 1, 1),
            shared_mem_bytes: 0,
        };
        let count = COUNT as u64;
        let mut launch = gpu.stream.launch_builder(&kernel);
        launch.arg(&count).arg(&on_device).arg(&mut bins);
        // SAFETY: the arguments are those of histogram in histogram.cu; `bins` has 256 counters.
        unsafe { launch.launch(shape) }?;
        Ok(gpu.stream.clone_dtoh(&bins)?)
    })?;

    let mut host = vec![0.0; BINS];
    for &byte in &data {
        host[usize::from(byte)] += 1.0;
    }
    let device = counts.iter().copied().map(f64::from).collect();
    Ok(Comparison {
        device,
        host,
        tolerance: 0.0,
        seconds,
    })
}
