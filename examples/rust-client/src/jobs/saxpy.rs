//! y = a x + y over a million floats.

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::{Comparison, numbers, timed, widen};
use crate::gpu::Gpu;

const PTX: &str = include_str!("../../../cuda/saxpy.ptx");
const COUNT: usize = 1 << 20;
const A: f32 = 2.5;

pub fn run(gpu: &Gpu) -> anyhow::Result<Comparison> {
    let kernel = gpu.kernel(PTX, "saxpy")?;
    let (x, y) = (numbers(1, COUNT), numbers(2, COUNT));

    let (result, seconds) = timed(|| {
        let on_device_x = gpu.stream.clone_htod(&x)?;
        let mut on_device_y = gpu.stream.clone_htod(&y)?;
        let count = COUNT as u64;
        let mut launch = gpu.stream.launch_builder(&kernel);
        launch.arg(&count).arg(&A).arg(&on_device_x).arg(&mut on_device_y);
        // SAFETY: the arguments are those of saxpy in saxpy.cu, and both slices hold COUNT floats.
        unsafe { launch.launch(LaunchConfig::for_num_elems(COUNT as u32)) }?;
        Ok(gpu.stream.clone_dtoh(&on_device_y)?)
    })?;

    let host: Vec<f64> = x
        .iter()
        .zip(&y)
        .map(|(&x, &y)| f64::from(A).mul_add(f64::from(x), f64::from(y)))
        .collect();
    // One rounding of a number below 4.
    Ok(Comparison {
        device: widen(&result),
        host,
        tolerance: 4.0 * f64::from(f32::EPSILON),
        seconds,
    })
}
