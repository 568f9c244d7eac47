//! How long a kernel lasts: a simple model, in the product's figures.
//!
//! A warp's next instruction comes [`CYCLES`] cycles after its last, and a multiprocessor issues [`ISSUE`] in a cycle.
//! A block lasts as long as its longest warp, waits for a time included. Blocks run in waves of as many as are
//! resident. Memory is as fast as arithmetic. The model serves sharing: a kernel's length is a property of the kernel.

use crate::occupancy;
use divvy_device::engine::schedule::WHOLE;
use divvy_device::product::profile::Profile;
use divvy_ptx::{Kernel, Stats};

/// From one instruction of a warp to its next, in cycles.
const CYCLES: u64 = 4;
/// Instructions that a multiprocessor issues in a cycle, one for each of its schedulers.
const ISSUE: u64 = 4;
/// The shortest kernel, in nanoseconds.
pub const SHORTEST: u64 = 1_000;

/// From one instruction of a warp to its next, in picoseconds, on a device that is `dilation` times slower.
pub fn instruction_ps(profile: &Profile, dilation: u64) -> u64 {
    CYCLES * 1_000_000_000 * dilation / u64::from(profile.clock_khz.max(1))
}

/// The length of a launch that was executed, in nanoseconds: the model's, or the time of the CPU it took on so many
/// workers, if that is longer.
pub fn length_ns(
    profile: &Profile,
    kernel: &Kernel,
    shape: Shape,
    stats: &Stats,
    dilation: u64,
    workers: u64,
) -> u64 {
    let per_sm = occupancy::blocks_per_sm(profile, kernel, shape.threads, shape.shared_bytes).max(1);
    let blocks = shape.blocks.max(1);
    let waves = blocks.div_ceil(u64::from(per_sm) * u64::from(shape.sms.max(1)));
    let mean = stats.times.sum_ps / blocks;
    let busy_sms = blocks.min(u64::from(shape.sms.max(1)));
    let issued = stats.warp_instructions / busy_sms / ISSUE;
    let issue_ps = issued.saturating_mul(instruction_ps(profile, dilation) / CYCLES);
    let model_ps = stats
        .times
        .longest_ps
        .max(waves.saturating_mul(mean))
        .max(issue_ps);
    (model_ps / 1000)
        .max(stats.times.cpu_ns / workers.min(blocks).max(1))
        .max(SHORTEST)
}

/// Multiprocessors that a launch can keep busy, of [`WHOLE`].
pub fn width(profile: &Profile, kernel: &Kernel, shape: Shape) -> u32 {
    let per_sm = occupancy::blocks_per_sm(profile, kernel, shape.threads, shape.shared_bytes).max(1);
    let sms = shape.blocks.div_ceil(u64::from(per_sm)).min(u64::from(shape.sms));
    (sms * u64::from(WHOLE) / u64::from(shape.sms.max(1))).max(1) as u32
}

/// The part of a launch's geometry that matters.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Blocks of the grid.
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u64,
    /// Multiprocessors of the device.
    pub sms: u32,
}

/// The length of filling so many bytes of memory, in nanoseconds.
pub fn fill_ns(profile: &Profile, bytes: u64, dilation: u64) -> u64 {
    // Two transfers a cycle of the memory's clock.
    let bytes_per_ms = u64::from(profile.memory_clock_khz) * 2 * u64::from(profile.memory_bus_bits) / 8;
    let ns = u128::from(bytes) * 1_000_000 * u128::from(dilation) / u128::from(bytes_per_ms.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX).max(SHORTEST)
}
