//! y = a x + y, captured once as a graph and launched ten times.

use anyhow::Context;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::{Comparison, numbers, timed, widen};
use crate::gpu::Gpu;

const PTX: &str = include_str!("../../../cuda/saxpy.ptx");
const COUNT: usize = 1 << 16;
const A: f32 = 0.5;
const LAUNCHES: usize = 10;

pub fn run(gpu: &Gpu) -> anyhow::Result<Comparison> {
    let kernel = gpu.kernel(PTX, "saxpy")?;
    let (x, y) = (numbers(1, COUNT), numbers(2, COUNT));

    // SAFETY: one stream does all the work below, so its order is the only one there is. With tracking, cudarc would
    // have the captured stream wait for events from before the capture, which CUDA refuses.
    unsafe { gpu.context.disable_event_tracking() };
    let outcome = timed(|| {
        let on_device_x = gpu.stream.clone_htod(&x)?;
        let mut on_device_y = gpu.stream.clone_htod(&y)?;
        let count = COUNT as u64;
        gpu.stream.synchronize()?;
        gpu.stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        let mut launch = gpu.stream.launch_builder(&kernel);
        launch.arg(&count).arg(&A).arg(&on_device_x).arg(&mut on_device_y);
        // SAFETY: the arguments are those of saxpy in saxpy.cu, and both slices hold COUNT floats.
        unsafe { launch.launch(LaunchConfig::for_num_elems(COUNT as u32)) }?;
        let graph = gpu.stream.end_capture(CUgraphInstantiate_flags(0))?;
        let graph = graph.context("The capture gave no graph")?;
        for _ in 0..LAUNCHES {
            graph.launch()?;
        }
        Ok(gpu.stream.clone_dtoh(&on_device_y)?)
    });
    // SAFETY: what the job allocated is gone, and the stream has been waited for.
    unsafe { gpu.context.enable_event_tracking() };
    let (result, seconds) = outcome?;

    let step = |y: f64, x: f32| f64::from(A).mul_add(f64::from(x), y);
    let host = x
        .iter()
        .zip(&y)
        .map(|(&x, &y)| (0..LAUNCHES).fold(f64::from(y), |sum, _| step(sum, x)))
        .collect();
    // One rounding of a number below 8 per launch.
    Ok(Comparison {
        device: widen(&result),
        host,
        tolerance: LAUNCHES as f64 * 8.0 * f64::from(f32::EPSILON),
        seconds,
    })
}
