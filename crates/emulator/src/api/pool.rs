//! Stream-ordered allocation and memory pools.

use super::args::{Handle, In, InMut, Out};
use super::stream_name::StreamName;
use super::vmm::check_handle_types;
use crate::check;
use crate::driver::{Driver, driver};
use crate::graph::capture::Target;
use crate::memory::allocation::{Allocation, Backing, Kind};
use crate::pool::{self, MemoryPool, PoolName};
use crate::stream::Queue;
use crate::{Result, handle};
use divvy_abi::*;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

entry! {
    fn cuMemAllocAsync | cuMemAllocAsync_ptsz(pointer: Out<CUdeviceptr>, bytes: usize ; stream) {
        pointer.required()?;
        match stream.target()? {
            Target::Queue(queue) => {
                let defaults = &driver()?.defaults[queue.context.device.ordinal];
                let pool = *defaults.current_pool.lock().unwrap_or_else(PoisonError::into_inner);
                pointer.set(allocate(&queue, pool, bytes)?)
            }
            Target::Capture(recorder) => {
                let device = recorder.queue.context.device.ordinal as CUdevice;
                pointer.set(recorder.allocate(&driver()?.graphs.memory, device, &[], bytes)?)
            }
        }
    }

    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz(
        pointer: Out<CUdeviceptr>, bytes: usize, pool: Handle<CUmemoryPool> ; stream
    ) {
        pointer.required()?;
        match stream.target()? {
            Target::Queue(queue) => pointer.set(allocate(&queue, pool.0, bytes)?),
            // The graph allocates on the pool's device, from graph memory, with the pool's accesses.
            Target::Capture(recorder) => {
                let pool = known(driver()?, pool.0)?;
                let access = pool.access.lock().unwrap_or_else(PoisonError::into_inner);
                let access: Vec<(i32, u32)> = access.iter().map(|(&device, &flags)| (device as i32, flags)).collect();
                pointer.set(recorder.allocate(&driver()?.graphs.memory, pool.device as CUdevice, &access, bytes)?)
            }
        }
    }

    fn cuMemFreeAsync | cuMemFreeAsync_ptsz(pointer: u64 ; stream) {
        free(pointer, stream)
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: CUdevice) {
        pool.set(driver()?.defaults(device)?.default_pool as CUmemoryPool)
    }

    fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, device: CUdevice) {
        let defaults = driver()?.defaults(device)?;
        pool.set(*defaults.current_pool.lock().unwrap_or_else(PoisonError::into_inner) as CUmemoryPool)
    }

    fn cuDeviceSetMemPool(device: CUdevice, pool: Handle<CUmemoryPool>) {
        set_current(device, pool.0)
    }

    fn cuMemGetDefaultMemPool(pool: Out<CUmemoryPool>, location: InMut<CUmemLocation>, kind: CUmemAllocationType) {
        pool.set(driver()?.defaults(pinned_on(&location, kind)?)?.default_pool as CUmemoryPool)
    }

    fn cuMemGetMemPool(pool: Out<CUmemoryPool>, location: InMut<CUmemLocation>, kind: CUmemAllocationType) {
        let defaults = driver()?.defaults(pinned_on(&location, kind)?)?;
        pool.set(*defaults.current_pool.lock().unwrap_or_else(PoisonError::into_inner) as CUmemoryPool)
    }

    fn cuMemSetMemPool(location: InMut<CUmemLocation>, kind: CUmemAllocationType, pool: Handle<CUmemoryPool>) {
        set_current(pinned_on(&location, kind)?, pool.0)
    }

    fn cuMemPoolCreate(pool: Out<CUmemoryPool>, properties: In<CUmemPoolProps>) {
        pool.required()?;
        let properties = properties.get()?;
        if properties.allocType != CU_MEM_ALLOCATION_TYPE_PINNED
            || properties.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        check_handle_types(properties.handleTypes)?;
        let driver = driver()?;
        // SAFETY: every bit pattern is an i32.
        let device = driver.device(unsafe { properties.location.anonymous1.id })?;
        let handle = handle::fresh();
        let heap = Arc::clone(&device.heap);
        let limit = properties.maxSize as u64;
        let made = if properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE {
            MemoryPool::new(handle, device.ordinal, heap, limit)
        } else {
            let name = PoolName::new().map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
            MemoryPool::shareable(handle, device.ordinal, heap, limit, name)
        };
        driver.pools.insert(handle, made);
        pool.set(handle as CUmemoryPool)
    }

    fn cuMemPoolDestroy(pool: Handle<CUmemoryPool>) {
        let driver = driver()?;
        let found = known(driver, pool.0)?;
        let defaults = &driver.defaults[found.device];
        if defaults.default_pool == pool.0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut current = defaults.current_pool.lock().unwrap_or_else(PoisonError::into_inner);
        if *current == pool.0 {
            *current = defaults.default_pool;
        }
        found.destroy();
        driver.pools.remove(pool.0);
        Ok(())
    }

    fn cuMemPoolTrimTo(pool: Handle<CUmemoryPool>, keep: usize) {
        known(driver()?, pool.0)?.trim(keep as u64);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: Handle<CUmemoryPool>, attribute: CUmemPool_attribute, value: Out<c_void>) {
        let pool = known(driver()?, pool.0)?;
        let figures = pool.figures();
        match attribute {
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => value.set_as(pool.release_threshold.load(Ordering::Relaxed)),
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => value.set_as(figures.reserved),
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => value.set_as(figures.reserved_high),
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => value.set_as(figures.used),
            CU_MEMPOOL_ATTR_USED_MEM_HIGH => value.set_as(figures.used_high),
            _ => match reuse_index(attribute) {
                Some(index) => value.set_as(pool.reuse[index].load(Ordering::Relaxed)),
                None => Err(CUDA_ERROR_INVALID_VALUE),
            },
        }
    }

    fn cuMemPoolSetAttribute(pool: Handle<CUmemoryPool>, attribute: CUmemPool_attribute, value: Out<c_void>) {
        let pool = known(driver()?, pool.0)?;
        match attribute {
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
                pool.release_threshold.store(value.before_as()?, Ordering::Relaxed);
                Ok(())
            }
            // The high-water marks can only be reset.
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
                if value.before_as::<u64>()? != 0 {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                pool.reset_high(attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
                Ok(())
            }
            _ => {
                let index = reuse_index(attribute).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                pool.reuse[index].store(value.before_as()?, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn cuMemPoolSetAccess(pool: Handle<CUmemoryPool>, list: In<CUmemAccessDesc>, count: usize) {
        let driver = driver()?;
        let pool = known(driver, pool.0)?;
        let list = list.list(count)?;
        for entry in &list {
            let device = on_device(&entry.location)?;
            driver.device(device)?;
            if device as usize == pool.device && entry.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE {
                return Err(CUDA_ERROR_INVALID_DEVICE);
            }
        }
        let mut access = pool.access.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in &list {
            access.insert(on_device(&entry.location)? as usize, entry.flags.0);
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<CUmemAccess_flags>, pool: Handle<CUmemoryPool>, location: InMut<CUmemLocation>) {
        let driver = driver()?;
        let pool = known(driver, pool.0)?;
        let device = on_device(&location.read().get()?)?;
        driver.device(device)?;
        if device as usize == pool.device {
            return flags.set(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        }
        let access = pool.access.lock().unwrap_or_else(PoisonError::into_inner);
        let given = access.get(&(device as usize)).copied().unwrap_or(0);
        flags.set(CUmemAccess_flags(given as _))
    }
}

/// A live pool.
pub fn known(driver: &Driver, pool: u64) -> Result<Arc<MemoryPool>> {
    driver.pools.get(pool).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// CU_MEMPOOL_ATTR_REUSE_* by position.
fn reuse_index(attribute: CUmemPool_attribute) -> Option<usize> {
    match attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => Some(0),
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => Some(1),
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Some(2),
        _ => None,
    }
}

fn on_device(location: &CUmemLocation) -> Result<CUdevice> {
    if location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: every bit pattern is an i32.
    Ok(unsafe { location.anonymous1.id })
}

/// The device of a location, for pools of pinned memory, the only kind there is.
fn pinned_on(location: &InMut<CUmemLocation>, kind: CUmemAllocationType) -> Result<CUdevice> {
    if kind != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    on_device(&location.read().get()?)
}

fn set_current(device: CUdevice, pool: u64) -> Result {
    let driver = driver()?;
    let device = driver.device(device)?;
    let found = known(driver, pool)?;
    if found.device != device.ordinal || found.source.is_some() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let current = &driver.defaults[device.ordinal].current_pool;
    *current.lock().unwrap_or_else(PoisonError::into_inner) = pool;
    Ok(())
}

/// Memory from a pool. It is taken at the call. If the stream has not come so far yet, the memory is merely there
/// early.
fn allocate(queue: &Queue, pool: u64, bytes: usize) -> Result<u64> {
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let driver = driver()?;
    let pool = known(driver, pool)?;
    // "Imported memory pools do not support creating new allocations."
    if pool.source.is_some() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let bytes = bytes as u64;
    let with_margin = bytes.saturating_add(check::margin());
    let extent = pool.take(with_margin).or_else(|full| {
        if bytes > driver.devices[pool.device].facts.memory_bytes() {
            return Err(full);
        }
        // Memory whose freeing is still queued comes back after a wait, and kept memory can be released.
        queue.context.drain();
        pool::trim_all(&driver.pools, pool.device);
        if let Some(checker) = check::on() {
            checker.let_all_go();
        }
        pool.take(with_margin)
    });
    let extent = extent.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    let (address, kind) = (extent.address(), Kind::Pooled { pool: pool.handle });
    // A pool's memory outlives contexts: it belongs to the device.
    let allocation = Allocation::new(address, bytes, kind, 0, pool.device, Backing::Device(extent));
    driver
        .addresses
        .live
        .insert(Arc::new(allocation))
        .map_err(|_| CUDA_ERROR_UNKNOWN)?;
    Ok(address)
}

/// Frees memory of a pool, or of cuMemAlloc, when the stream has come so far.
fn free(pointer: u64, stream: StreamName) -> Result {
    if pointer == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let queue = match stream.target()? {
        Target::Queue(queue) => queue,
        Target::Capture(recorder) => return recorder.free(&driver()?.graphs.memory, pointer),
    };
    if let Some(outcome) = driver()?.graphs.memory.free_later(pointer, &queue) {
        return outcome;
    }
    let driver = driver()?;
    let freeable = |kind| {
        matches!(
            kind,
            Kind::Device | Kind::Pooled { .. } | Kind::Imported { pool: 1.. }
        )
    };
    let inside = driver.addresses.live.find(pointer);
    let found = inside
        .clone()
        .filter(|found| found.base == pointer && freeable(found.kind));
    if let (Some(checker), None) = (check::on(), &found) {
        checker.bad_free(pointer, inside.as_deref());
    }
    let id = found.ok_or(CUDA_ERROR_INVALID_VALUE)?.buffer_id;
    queue.run_later(move || {
        if let Some(freed) = driver
            .addresses
            .live
            .remove(pointer, |found| found.buffer_id == id)
        {
            pool::give_back(&driver.pools, &freed);
        }
    });
    Ok(())
}
