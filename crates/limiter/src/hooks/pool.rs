//! Stream-ordered allocation, and calls that make pools take memory or release it.
#![allow(non_snake_case)]

use divvy_abi::{
    CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_NOT_INITIALIZED, CUdevice, CUdeviceptr, CUmemAllocationType,
    CUmemLocation, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUresult, CUstream, c_void, guard,
};
use divvy_charges::environment::Stream;

use crate::account;
use crate::below::{ask, forward};
use crate::charges::CHARGES;
use crate::driver;

macro_rules! stream_ordered {
    ($($name:ident($($pool:ident: $of:ty)?), $per_thread:literal, $named:expr;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(
            out: *mut CUdeviceptr,
            bytes: usize,
            $($pool: $of,)?
            stream: CUstream,
        ) -> CUresult {
            guard(|| {
                let name = driver::stream(stream, $per_thread);
                let named: Option<CUmemoryPool> = $named;
                // SAFETY: the arguments are handed on as they came; the driver has just filled `out` in.
                unsafe { allocate(name, named, out, bytes, || forward::$name(out, bytes, $($pool,)? stream)) }
            })
        })*
    };
}

stream_ordered! {
    cuMemAllocAsync(), false, None;
    cuMemAllocAsync_ptsz(), true, None;
    cuMemAllocFromPoolAsync(pool: CUmemoryPool), false, Some(pool);
    cuMemAllocFromPoolAsync_ptsz(pool: CUmemoryPool), true, Some(pool);
}

/// Allocates in stream order, from `named` or the device's current pool.
///
/// # Safety
/// `out` is valid for reading once `call` says success.
unsafe fn allocate(
    stream: Stream,
    named: Option<CUmemoryPool>,
    out: *mut CUdeviceptr,
    bytes: usize,
    mut call: impl FnMut() -> CUresult,
) -> CUresult {
    let account = match account::current() {
        Ok(Some(account)) => account,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    if !account::keeps_charges() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    // While captured, it becomes a node of a graph, and takes memory when the graph is launched. The driver refuses 0
    // bytes.
    if bytes == 0 || ask::is_capturing(stream.handle as CUstream, stream.per_thread) {
        return call();
    }
    // SAFETY: the caller's promise.
    let pointer = || unsafe { out.read() };
    match named.or_else(current_pool) {
        Some(pool) => {
            CHARGES.allocate_from_pool(account, (pool as usize, stream), bytes as u64, call, pointer)
        }
        None => CHARGES.allocate(account, bytes as u64, call, pointer),
    }
}

/// The pool that the current device allocates from.
fn current_pool() -> Option<CUmemoryPool> {
    let device = ask::current_device()?;
    let mut pool: CUmemoryPool = core::ptr::null_mut();
    // SAFETY: a valid out-parameter.
    let result = unsafe { forward::cuDeviceGetMemPool(&raw mut pool, device) };
    (result.is_success() && !pool.is_null()).then_some(pool)
}

pub(super) unsafe extern "C-unwind" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    guard(|| {
        // SAFETY: the argument is handed on as it came.
        CHARGES.destroy_pool(pool as usize, || unsafe { forward::cuMemPoolDestroy(pool) })
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let result = unsafe { forward::cuMemPoolTrimTo(pool, keep) };
        followed(pool, result)
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let result = unsafe { forward::cuMemPoolSetAttribute(pool, attribute, value) };
        followed(pool, result)
    })
}

fn followed(pool: CUmemoryPool, result: CUresult) -> CUresult {
    if result.is_success() {
        CHARGES.pool_changed(pool as usize);
    }
    result
}

/// Records the account of a pool that the program has just received.
///
/// # Safety
/// `out` is valid for reading if `result` says success.
unsafe fn noted(result: CUresult, out: *mut CUmemoryPool, device: Option<CUdevice>) -> CUresult {
    if result.is_success()
        && !out.is_null()
        && account::keeps_charges()
        && let Some(device) = device
        && let Ok(Some(account)) = account::of_device(device)
    {
        // SAFETY: the caller's promise.
        CHARGES.pool_known(unsafe { out.read() } as usize, account);
    }
    result
}

/// The device of a location, if it is one.
fn device_at(location: &CUmemLocation) -> Option<CUdevice> {
    // SAFETY: every bit pattern is an i32.
    (location.type_ == CU_MEM_LOCATION_TYPE_DEVICE).then_some(unsafe { location.anonymous1.id })
}

macro_rules! tells_of_a_pool {
    ($($name:ident($($argument:ident: $of:ty),*) on $device:expr;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(out: *mut CUmemoryPool, $($argument: $of),*) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came, and read after the driver has taken them as valid.
                unsafe {
                    let result = forward::$name(out, $($argument),*);
                    let device = if result.is_success() { $device } else { None };
                    noted(result, out, device)
                }
            })
        })*
    };
}

tells_of_a_pool! {
    cuMemPoolCreate(properties: *const CUmemPoolProps) on properties.as_ref().and_then(|found| device_at(&found.location));
    cuDeviceGetDefaultMemPool(device: CUdevice) on Some(device);
    cuDeviceGetMemPool(device: CUdevice) on Some(device);
    cuMemGetDefaultMemPool(location: *mut CUmemLocation, kind: CUmemAllocationType) on location.as_ref().and_then(device_at);
    cuMemGetMemPool(location: *mut CUmemLocation, kind: CUmemAllocationType) on location.as_ref().and_then(device_at);
}
