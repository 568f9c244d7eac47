//! C = A B, with sides that are no multiple of the tile.

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::{Comparison, numbers, timed, widen};
use crate::gpu::Gpu;

const PTX: &str = include_str!("../../../cuda/matmul.ptx");
/// The side of matmul.cu's tile.
const TILE: u32 = 16;
const ROWS: u32 = 200;
const INNER: u32 = 150;
const COLUMNS: u32 = 170;

pub fn run(gpu: &Gpu) -> anyhow::Result<Comparison> {
    let kernel = gpu.kernel(PTX, "matmul")?;
    let (a, b) = (
        numbers(3, (ROWS * INNER) as usize),
        numbers(4, (INNER * COLUMNS) as usize),
    );

    let (result, seconds) = timed(|| {
        let on_device_a = gpu.stream.clone_htod(&a)?;
        let on_device_b = gpu.stream.clone_htod(&b)?;
        let mut product = gpu.stream.alloc_zeros::<f32>((ROWS * COLUMNS) as usize)?;
        let shape = LaunchConfig {
            grid_dim: (COLUMNS.div_ceil(TILE), ROWS.div_ceil(TILE), 1),
            block_dim: (TILE, TILE, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = gpu.stream.launch_builder(&kernel);
        launch
            .arg(&ROWS)
            .arg(&INNER)
            .arg(&COLUMNS)
            .arg(&on_device_a)
            .arg(&on_device_b)
            .arg(&mut product);
        // SAFETY: the arguments are those of matmul in matmul.cu, and the slices have the shapes passed.
        unsafe { launch.launch(shape) }?;
        Ok(gpu.stream.clone_dtoh(&product)?)
    })?;

    // A sum of INNER products below 1, each rounded once.
    let tolerance = f64::from(INNER) * f64::from(INNER) * f64::from(f32::EPSILON);
    Ok(Comparison {
        device: widen(&result),
        host: on_host(&a, &b),
        tolerance,
        seconds,
    })
}

fn on_host(a: &[f32], b: &[f32]) -> Vec<f64> {
    let mut product = Vec::with_capacity((ROWS * COLUMNS) as usize);
    for row in a.chunks(INNER as usize) {
        for column in 0..COLUMNS as usize {
            let below = b.iter().skip(column).step_by(COLUMNS as usize);
            product.push(
                row.iter()
                    .zip(below)
                    .map(|(&a, &b)| f64::from(a) * f64::from(b))
                    .sum(),
            );
        }
    }
    product
}
