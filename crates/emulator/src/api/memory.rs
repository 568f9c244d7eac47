//! Device memory: cuMemAlloc and its kin, cuMemFree, and how much there is.

use super::args::Out;
use super::capture::unsafe_call;
use super::current;
use crate::context::Context;
use crate::driver::driver;
use crate::memory::allocation::{Allocation, Backing, Kind};
use crate::{Result, check, pool};
use divvy_abi::*;
use divvy_device::memory::heap::{Extent, Heap};
use std::sync::Arc;

/// Rows of a pitched allocation start at multiples of this many bytes.
const PITCH_ALIGNMENT: usize = 512;

entry! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let device = &current::usable()?.device;
        free.set(device.hardware.free_bytes() as usize)?;
        total.set(device.facts.memory_bytes() as usize)
    }

    fn cuMemAlloc_v2(pointer: Out<CUdeviceptr>, bytes: usize) {
        pointer.required()?;
        let context = current::usable()?;
        pointer.set(allocate(&context, bytes)?)
    }

    fn cuMemAllocPitch_v2(
        pointer: Out<CUdeviceptr>,
        pitch: Out<usize>,
        width: usize,
        height: usize,
        element_bytes: u32,
    ) {
        pointer.required()?;
        pitch.required()?;
        if !matches!(element_bytes, 4 | 8 | 16) || width == 0 || height == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH_ALIGNMENT).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let context = current::usable()?;
        pointer.set(allocate(&context, bytes)?)?;
        pitch.set(row)
    }

    fn cuMemFree_v2(pointer: u64) {
        // An address says which context it is of: programs free memory without a current one, as numba-cuda does when it
        // resets a device.
        let context = match current::usable() {
            Err(CUDA_ERROR_INVALID_CONTEXT) => owner(pointer).ok_or(CUDA_ERROR_INVALID_CONTEXT),
            found => found,
        }?;
        if pointer == 0 {
            return Ok(());
        }
        free(&context, pointer)
    }

    fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, bytes: Out<usize>, pointer: u64) {
        let driver = driver()?;
        current::usable()?;
        let allocation = driver.addresses.live.find(pointer).ok_or(CUDA_ERROR_NOT_FOUND)?;
        base.set_if_wanted(allocation.base);
        bytes.set_if_wanted(allocation.bytes as usize);
        Ok(())
    }
}

/// New device memory of a context.
fn allocate(context: &Arc<Context>, bytes: usize) -> Result<u64> {
    unsafe_call()?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let with_margin = (bytes as u64)
        .checked_add(check::margin())
        .ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let extent = take(context, &context.device.heap, with_margin)?;
    let address = extent.address();
    let backing = Backing::Device(Arc::new(extent));
    let device = context.device.ordinal;
    let allocation = Allocation::new(
        address,
        bytes as u64,
        Kind::Device,
        context.handle,
        device,
        backing,
    );
    driver()?
        .addresses
        .live
        .insert(Arc::new(allocation))
        .map_err(|_| CUDA_ERROR_UNKNOWN)?;
    Ok(address)
}

/// Memory of a heap of the context's device. Memory that its pools keep without use is released if need be.
pub fn take(context: &Context, heap: &Arc<Heap>, bytes: u64) -> Result<Extent> {
    heap.take(bytes)
        .or_else(|full| {
            if bytes > context.device.facts.memory_bytes() {
                return Err(full);
            }
            pool::trim_all(&driver().map_err(|_| full)?.pools, context.device.ordinal);
            if let Some(checker) = check::on() {
                checker.let_all_go();
            }
            heap.take(bytes)
        })
        .map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
}

/// The context of the memory at this address.
fn owner(pointer: u64) -> Option<Arc<Context>> {
    let driver = driver().ok()?;
    let found = driver.addresses.live.find(pointer)?;
    driver.contexts.get(found.context)
}

/// Frees any device memory, once the work that may use it is done.
fn free(context: &Arc<Context>, pointer: u64) -> Result {
    unsafe_call()?;
    let driver = driver()?;
    let freeable = |kind| {
        matches!(
            kind,
            Kind::Device
                | Kind::Managed
                | Kind::Pooled { .. }
                | Kind::Graph
                | Kind::Imported { pool: 1.. }
                | Kind::External { .. }
        )
    };
    let inside = driver.addresses.live.find(pointer);
    let found = inside
        .clone()
        .filter(|found| found.base == pointer && freeable(found.kind));
    if let (Some(checker), None) = (check::on(), &found) {
        checker.bad_free(pointer, inside.as_deref());
    }
    let allocation = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    // Work in the owner's streams may use it, and that of the caller's.
    context.drain();
    if allocation.context != context.handle
        && let Some(owner) = driver.contexts.get(allocation.context)
    {
        owner.drain();
    }
    if allocation.kind == Kind::Graph {
        return driver.graphs.memory.free_now(pointer);
    }
    let freed = driver
        .addresses
        .live
        .remove(pointer, |found| found.buffer_id == allocation.buffer_id);
    let freed = freed.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    pool::give_back(&driver.pools, &freed);
    super::managed::forget(&freed);
    Ok(())
}
