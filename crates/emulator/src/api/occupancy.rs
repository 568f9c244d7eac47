//! How many blocks fit, and how large they had best be.

use super::args::{Callback, Handle, Out};
use super::current;
use super::find;
use crate::function::Target;
use crate::launch::max_threads;
use crate::{Result, occupancy};
use divvy_abi::*;
use divvy_device::Device;
use divvy_ptx::Kernel;
use std::sync::Arc;

type SharedForBlock = unsafe extern "C" fn(i32) -> usize;

entry! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<i32>,
        function: Handle<CUfunction>,
        threads: i32,
        shared: usize,
    ) {
        active_blocks(&blocks, function.0, threads, shared)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>,
        function: Handle<CUfunction>,
        threads: i32,
        shared: usize,
        flags: u32,
    ) {
        check_flags(flags)?;
        active_blocks(&blocks, function.0, threads, shared)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>,
        block: Out<i32>,
        function: Handle<CUfunction>,
        shared_for: Callback<SharedForBlock>,
        shared: usize,
        limit: i32,
    ) {
        potential(&grid, &block, function.0, shared_for.0, shared, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>,
        block: Out<i32>,
        function: Handle<CUfunction>,
        shared_for: Callback<SharedForBlock>,
        shared: usize,
        limit: i32,
        flags: u32,
    ) {
        check_flags(flags)?;
        potential(&grid, &block, function.0, shared_for.0, shared, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>,
        function: Handle<CUfunction>,
        blocks: i32,
        threads: i32,
    ) {
        let (target, device) = find(function.0)?;
        let (Ok(blocks), Ok(threads)) = (u32::try_from(blocks), u32::try_from(threads)) else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let room = target.describe_on(&device, |kernel| {
            occupancy::dynamic_shared_for(device.facts.profile, kernel, blocks, threads)
        })?;
        bytes.set(room.ok_or(CUDA_ERROR_INVALID_VALUE)? as usize)
    }
}

fn find(function: u64) -> Result<(Target, Arc<Device>)> {
    Ok((find::target(function)?, Arc::clone(&current::usable()?.device)))
}

/// CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE is the only flag.
fn check_flags(flags: u32) -> Result {
    if flags <= CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE.0 {
        Ok(())
    } else {
        Err(CUDA_ERROR_INVALID_VALUE)
    }
}

fn active_blocks(blocks: &Out<i32>, function: u64, threads: i32, shared: usize) -> Result {
    let (target, device) = find(function)?;
    let threads = u32::try_from(threads)
        .ok()
        .filter(|&threads| threads > 0)
        .ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let fitting = target.describe_on(&device, |kernel| fitting(&device, kernel, threads, shared as u64))?;
    blocks.set(fitting as i32)
}

/// Blocks that fit on a multiprocessor; none if the kernel does not allow blocks of that size.
fn fitting(device: &Device, kernel: &Kernel, threads: u32, shared: u64) -> u32 {
    if threads > max_threads(kernel) {
        return 0;
    }
    occupancy::blocks_per_sm(device.facts.profile, kernel, threads, shared)
}

fn potential(
    grid: &Out<i32>,
    block: &Out<i32>,
    function: u64,
    shared_for: Option<SharedForBlock>,
    shared: usize,
    limit: i32,
) -> Result {
    grid.required()?;
    block.required()?;
    let (target, device) = find(function)?;
    let (threads, blocks) = target.describe_on(&device, |kernel| {
        let most = match u32::try_from(limit) {
            Ok(limit) if limit > 0 => limit.min(max_threads(kernel)),
            _ => max_threads(kernel),
        };
        // Whole warps from the largest block down; the first with the most resident threads wins.
        let mut best = (0, 0);
        let mut threads = most;
        while threads > 0 {
            let shared = match shared_for {
                // SAFETY: the program gave a function of this type.
                Some(shared_for) => unsafe { shared_for(threads as i32) },
                None => shared,
            };
            let blocks = fitting(&device, kernel, threads, shared as u64);
            if blocks * threads > best.0 * best.1 {
                best = (threads, blocks);
            }
            threads = (threads - 1) / 32 * 32;
        }
        best
    })?;
    grid.set((blocks * device.facts.sm_count()) as i32)?;
    block.set(threads as i32)
}
