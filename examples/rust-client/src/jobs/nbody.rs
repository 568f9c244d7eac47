//! Three steps of gravity among bodies whose number is no multiple of the block.

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::{Comparison, numbers, timed, widen};
use crate::gpu::Gpu;

const PTX: &str = include_str!("../../../cuda/nbody.ptx");
const BODIES: u32 = 700;
const BLOCK: u32 = 128;
const STEPS: usize = 3;
const SOFTENING_SQUARED: f32 = 0.05;
const DT: f32 = 0.001;

pub fn run(gpu: &Gpu) -> anyhow::Result<Comparison> {
    let kernel = gpu.kernel(PTX, "nbody_step")?;
    // x, y, z and mass of each body; a mass is positive.
    let mut positions = numbers(5, BODIES as usize * 4);
    for mass in positions.iter_mut().skip(3).step_by(4) {
        *mass = mass.abs() + 0.1;
    }

    let (result, seconds) = timed(|| {
        let mut now = gpu.stream.clone_htod(&positions)?;
        let mut next = gpu.stream.alloc_zeros::<f32>(positions.len())?;
        let mut velocities = gpu.stream.alloc_zeros::<f32>(positions.len())?;
        let shape = LaunchConfig {
            grid_dim: (BODIES.div_ceil(BLOCK), 1, 1),
            block_dim: (BLOCK, 1, 1),
            shared_mem_bytes: BLOCK * 16,
        };
        for _ in 0..STEPS {
            let mut launch = gpu.stream.launch_builder(&kernel);
            launch
                .arg(&BODIES)
                .arg(&SOFTENING_SQUARED)
                .arg(&DT)
                .arg(&now)
                .arg(&mut next)
                .arg(&mut velocities);
            // SAFETY: the arguments are those of nbody_step in nbody.cu; each slice holds BODIES float4s and the
            // dynamic shared memory one per thread.
            unsafe { launch.launch(shape) }?;
            std::mem::swap(&mut now, &mut next);
        }
        Ok(gpu.stream.clone_dtoh(&now)?)
    })?;

    // Positions stay near 1; rsqrt is approximate, its error enters through a step of DT squared.
    Ok(Comparison {
        device: widen(&result),
        host: on_host(&positions),
        tolerance: 1e-5,
        seconds,
    })
}

fn on_host(start: &[f32]) -> Vec<f64> {
    let mut positions = widen(start);
    let mut velocities = vec![0.0; positions.len()];
    let dt = f64::from(DT);
    for _ in 0..STEPS {
        let before = positions.clone();
        for ((body, velocity), own) in positions
            .chunks_mut(4)
            .zip(velocities.chunks_mut(4))
            .zip(before.chunks(4))
        {
            let mut pull = [0.0; 3];
            for other in before.chunks(4) {
                let d = [other[0] - own[0], other[1] - own[1], other[2] - own[2]];
                let squared = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + f64::from(SOFTENING_SQUARED);
                let strength = other[3] / (squared * squared.sqrt());
                for (pull, d) in pull.iter_mut().zip(d) {
                    *pull += d * strength;
                }
            }
            for axis in 0..3 {
                velocity[axis] += pull[axis] * dt;
                body[axis] += velocity[axis] * dt;
            }
        }
    }
    positions
}
