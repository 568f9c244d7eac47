//! Host memory a device can reach: allocated here, or the program's own and registered.

use super::args::{Handle, Out};
use super::capture::unsafe_call;
use super::current;
use crate::Result;
use crate::driver::driver;
use crate::memory::allocation::{Allocation, Backing, Kind};
use divvy_abi::*;
use divvy_device::memory::charge::GRANULE;
use divvy_device::memory::mapping::Mapping;
use std::sync::Arc;

const PAGE: usize = 4096;

entry! {
    fn cuMemHostAlloc(pointer: Out<*mut c_void>, bytes: usize, flags: u32) {
        let known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
        if flags & !known != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        pointer.required()?;
        pointer.set(allocate(bytes, Kind::Host { flags })? as *mut c_void)
    }

    fn cuMemAllocHost_v2(pointer: Out<*mut c_void>, bytes: usize) {
        pointer.required()?;
        pointer.set(allocate(bytes, Kind::Host { flags: 0 })? as *mut c_void)
    }

    fn cuMemFreeHost(pointer: Handle<*mut c_void>) {
        let driver = driver()?;
        if pointer.0 == 0 {
            return Ok(());
        }
        let host = |kind| matches!(kind, Kind::Host { .. });
        let found = driver.addresses.live.find(pointer.0).filter(|found| found.base == pointer.0 && host(found.kind));
        unsafe_call()?;
        finish_work(&*found.ok_or(CUDA_ERROR_INVALID_VALUE)?);
        driver
            .addresses.live
            .remove(pointer.0, |found| host(found.kind))
            .map(drop)
            .ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMemHostRegister | cuMemHostRegister_v2(pointer: Handle<*mut c_void>, bytes: usize, flags: u32) {
        register(pointer.0, bytes, flags)
    }

    fn cuMemHostUnregister(pointer: Handle<*mut c_void>) {
        current::context()?;
        let driver = driver()?;
        let registered = |kind| matches!(kind, Kind::Registered { .. });
        let found =
            driver.addresses.live.find(pointer.0).filter(|found| found.base == pointer.0 && registered(found.kind));
        unsafe_call()?;
        finish_work(&*found.ok_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)?);
        driver
            .addresses.live
            .remove(pointer.0, |found| registered(found.kind))
            .map(drop)
            .ok_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<CUdeviceptr>, pointer: Handle<*mut c_void>, flags: u32) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        host_flags(pointer.0)?;
        device.set(pointer.0)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, pointer: Handle<*mut c_void>) {
        flags.set(host_flags(pointer.0)?)
    }
}

fn allocate(bytes: usize, kind: Kind) -> Result<u64> {
    let context = current::usable()?;
    unsafe_call()?;
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let size = bytes
        .checked_next_multiple_of(PAGE.max(GRANULE as usize))
        .ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    let mapping = Mapping::new(size, PAGE, false).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    let address = mapping.address();
    let (device, backing) = (context.device.ordinal, Backing::Host(mapping));
    let allocation = Allocation::new(address, bytes as u64, kind, context.handle, device, backing);
    driver()?
        .addresses
        .live
        .insert(Arc::new(allocation))
        .map_err(|_| CUDA_ERROR_UNKNOWN)?;
    Ok(address)
}

fn register(address: u64, bytes: usize, flags: u32) -> Result {
    let context = current::usable()?;
    unsafe_call()?;
    let known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    let end = address.checked_add(bytes as u64);
    if flags & !known != 0 || address == 0 || bytes == 0 || end.is_none() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (kind, device) = (Kind::Registered { flags }, context.device.ordinal);
    let allocation = Allocation::new(
        address,
        bytes as u64,
        kind,
        context.handle,
        device,
        Backing::Program,
    );
    driver()?
        .addresses
        .live
        .insert(Arc::new(allocation))
        .map_err(|_| CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
}

/// The flags of the host memory that holds an address.
fn host_flags(address: u64) -> Result<u32> {
    match driver()?.addresses.live.find(address).map(|found| found.kind) {
        // The device can always reach it: every allocation is mapped and portable, as with unified addressing.
        Some(Kind::Host { flags } | Kind::Registered { flags }) => Ok(flags | CU_MEMHOSTALLOC_DEVICEMAP),
        Some(Kind::Managed) => Ok(CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Waits for the work that may use an allocation about to go.
fn finish_work(allocation: &Allocation) {
    if let Ok(driver) = driver()
        && let Some(owner) = driver.contexts.get(allocation.context)
    {
        owner.drain();
    }
}
