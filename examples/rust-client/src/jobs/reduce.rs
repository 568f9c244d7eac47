//! The sum of a million floats.

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::{Comparison, numbers, timed};
use crate::gpu::Gpu;

const PTX: &str = include_str!("../../../cuda/reduce.ptx");
const COUNT: usize = 1_000_003;

pub fn run(gpu: &Gpu) -> anyhow::Result<Comparison> {
    let kernel = gpu.kernel(PTX, "reduce_sum")?;
    let x = numbers(6, COUNT);

    let (total, seconds) = timed(|| {
        let on_device = gpu.stream.clone_htod(&x)?;
        let mut total = gpu.stream.alloc_zeros::<f64>(1)?;
        let shape = LaunchConfig {
            grid_dim: (64, 1, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: 0,
        };
        let count = COUNT as u64;
        let mut launch = gpu.stream.launch_builder(&kernel);
        launch.arg(&count).arg(&on_device).arg(&mut total);
        // SAFETY: the arguments are those of reduce_sum in reduce.cu, and the slice holds COUNT floats.
        unsafe { launch.launch(shape) }?;
        Ok(gpu.stream.clone_dtoh(&total)?)
    })?;

    // Both sums are exact to about 1e-16 of each of a million terms below 1; only their order differs.
    let host = vec![x.iter().copied().map(f64::from).sum()];
    Ok(Comparison {
        device: total,
        host,
        tolerance: 1e-8,
        seconds,
    })
}
