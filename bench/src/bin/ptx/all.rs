//! All workloads.

use super::buffers;
use super::workload::{Mandelbrot, Matmul, Nbody, Saxpy, Workload};

/// All of them, at the sizes we publish divided by `shrink`.
///
/// # Errors
/// A kernel that is not understood.
pub fn all(shrink: usize) -> anyhow::Result<Vec<Box<dyn Workload>>> {
    let mut workloads: Vec<Box<dyn Workload>> = vec![
        Box::new(Saxpy::new((1 << 20) / shrink)?),
        Box::new(Matmul::new(256 / shrink)?),
        Box::new(Nbody::new(2048 / shrink)?),
        Box::new(Mandelbrot::new(512 / shrink)?),
    ];
    for workload in buffers::all(shrink)? {
        workloads.push(Box::new(workload));
    }
    Ok(workloads)
}
