//! A small picture of the Mandelbrot set.

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::{Comparison, timed};
use crate::gpu::Gpu;

const PTX: &str = include_str!("../../../cuda/mandelbrot.ptx");
const WIDTH: u32 = 300;
const HEIGHT: u32 = 200;
const LEFT: f32 = -2.0;
const TOP: f32 = 1.0;
const PIXEL: f32 = 0.01;
const LIMIT: u32 = 200;

pub fn run(gpu: &Gpu) -> anyhow::Result<Comparison> {
    let kernel = gpu.kernel(PTX, "mandelbrot")?;

    let (steps, seconds) = timed(|| {
        let mut steps = gpu.stream.alloc_zeros::<u32>((WIDTH * HEIGHT) as usize)?;
        let shape = LaunchConfig {
            grid_dim: (WIDTH.div_ceil(16), HEIGHT.div_ceil(8), 1),
            block_dim: (16, 8, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = gpu.stream.launch_builder(&kernel);
        launch
            .arg(&WIDTH)
            .arg(&HEIGHT)
            .arg(&LEFT)
            .arg(&TOP)
            .arg(&PIXEL)
            .arg(&LIMIT)
            .arg(&mut steps);
        // SAFETY: the arguments are those of mandelbrot in mandelbrot.cu; `steps` holds WIDTH x HEIGHT counters.
        unsafe { launch.launch(shape) }?;
        Ok(gpu.stream.clone_dtoh(&steps)?)
    })?;

    let device = steps.iter().copied().map(f64::from).collect();
    Ok(Comparison {
        device,
        host: on_host(),
        tolerance: 0.0,
        seconds,
    })
}

/// The same picture, operation by operation as mandelbrot.cu writes them, so that not one count differs.
fn on_host() -> Vec<f64> {
    let mut picture = Vec::with_capacity((WIDTH * HEIGHT) as usize);
    for row in 0..HEIGHT {
        for column in 0..WIDTH {
            let c_re = PIXEL.mul_add(column as f32, LEFT);
            let c_im = (-PIXEL).mul_add(row as f32, TOP);
            let (mut re, mut im, mut re_squared, mut im_squared) = (0.0f32, 0.0f32, 0.0f32, 0.0f32);
            let mut step = 0;
            while step < LIMIT && re_squared + im_squared <= 4.0 {
                im = (re + re).mul_add(im, c_im);
                re = re_squared - im_squared + c_re;
                re_squared = re * re;
                im_squared = im * im;
                step += 1;
            }
            picture.push(f64::from(step));
        }
    }
    picture
}
