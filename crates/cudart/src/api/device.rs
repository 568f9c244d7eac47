//! Devices: choosing one, and what holds for all of it.

use core::ffi::c_char;
use core::ptr::null_mut;

use crate::context;
use crate::context::device;
use crate::prelude::*;

/// The flags of a device that a program may set.
const FLAGS: u32 =
    cudaDeviceScheduleMask | cudaDeviceMapHost | cudaDeviceLmemResizeToMax | cudaDeviceSyncMemops;

/// # Errors
/// `cudaErrorInvalidValue` for flags that there are not.
fn set_flags(ordinal: i32, flags: u32) -> Result<()> {
    refuse(flags & !FLAGS != 0, cudaErrorInvalidValue)?;
    let schedule = flags & cudaDeviceScheduleMask;
    refuse(schedule.count_ones() > 1, cudaErrorInvalidValue)?;
    let device = device(ordinal)?;
    // SAFETY: a number and flags. Contexts of the driver map host memory in any case.
    unsafe {
        cu!(cuDevicePrimaryCtxSetFlags_v2(device, flags & !cudaDeviceMapHost));
    }
    Ok(())
}

entry! {
    cudaGetDeviceCount(count: *mut i32) {
        refuse(count.is_null(), cudaErrorInvalidValue)?;
        *count = 0;
        *count = device_count()?;
        Ok(())
    }

    cudaSetDevice(ordinal: i32) {
        context::choose(ordinal)?;
        crate::registry::load_managed();
        Ok(())
    }

    cudaGetDevice(ordinal: *mut i32) {
        refuse(ordinal.is_null(), cudaErrorInvalidValue)?;
        *ordinal = context::current_device()?;
        Ok(())
    }

    cudaInitDevice(ordinal: i32, deviceFlags: u32, flags: u32) {
        refuse(flags & !cudaInitDeviceFlagsAreValid != 0, cudaErrorInvalidValue)?;
        if flags & cudaInitDeviceFlagsAreValid != 0 {
            set_flags(ordinal, deviceFlags)?;
        }
        context::primary(ordinal)?;
        Ok(())
    }

    cudaSetDeviceFlags(flags: u32) {
        set_flags(context::current_device()?, flags)
    }

    cudaGetDeviceFlags(flags: *mut u32) {
        refuse(flags.is_null(), cudaErrorInvalidValue)?;
        let device = device(context::current_device()?)?;
        let (mut of_context, mut active) = (0, 0);
        cu!(cuDevicePrimaryCtxGetState(device, &mut of_context, &mut active));
        *flags = of_context | cudaDeviceMapHost;
        Ok(())
    }

    cudaSetValidDevices(device_arr: *mut i32, len: i32) {
        let count = device_count()?;
        if len == 0 {
            return Ok(());
        }
        refuse(device_arr.is_null() || !(0..=count).contains(&len), cudaErrorInvalidValue)?;
        for at in 0..len as usize {
            device(*device_arr.add(at))?;
        }
        // The first one is where a thread begins that chose none.
        let mut current: CUcontext = null_mut();
        cu!(cuCtxGetCurrent(&mut current));
        if current.is_null() { context::choose(*device_arr) } else { Ok(()) }
    }

    cudaDeviceSynchronize() {
        context()?;
        cu!(cuCtxSynchronize());
        Ok(())
    }

    cudaDeviceReset() {
        context::reset()?;
        crate::error::forget();
        Ok(())
    }

    cudaDeviceGetAttribute(value: *mut i32, attr: cudaDeviceAttr, ordinal: i32) {
        refuse(value.is_null(), cudaErrorInvalidValue)?;
        let device = device(ordinal)?;
        cu!(cuDeviceGetAttribute(value, CUdevice_attribute(attr.0), device));
        Ok(())
    }

    cudaDeviceGetByPCIBusId(ordinal: *mut i32, pciBusId: *const c_char) {
        refuse(ordinal.is_null() || pciBusId.is_null(), cudaErrorInvalidValue)?;
        cu!(cuDeviceGetByPCIBusId(ordinal, pciBusId));
        Ok(())
    }

    cudaDeviceGetPCIBusId(pciBusId: *mut c_char, len: i32, ordinal: i32) {
        let device = device(ordinal)?;
        cu!(cuDeviceGetPCIBusId(pciBusId, len, device));
        Ok(())
    }

    cudaDeviceSetLimit(limit: cudaLimit, value: usize) {
        context()?;
        cu!(cuCtxSetLimit(CUlimit(limit.0), value));
        Ok(())
    }

    cudaDeviceGetLimit(pValue: *mut usize, limit: cudaLimit) {
        context()?;
        cu!(cuCtxGetLimit(pValue, CUlimit(limit.0)));
        Ok(())
    }

    cudaDeviceGetCacheConfig(pCacheConfig: *mut cudaFuncCache) {
        context()?;
        cu!(cuCtxGetCacheConfig(pCacheConfig.cast()));
        Ok(())
    }

    cudaDeviceSetCacheConfig(cacheConfig: cudaFuncCache) {
        context()?;
        cu!(cuCtxSetCacheConfig(CUfunc_cache(cacheConfig.0)));
        Ok(())
    }

    cudaDeviceGetSharedMemConfig(pConfig: *mut cudaSharedMemConfig) {
        context()?;
        cu!(cuCtxGetSharedMemConfig(pConfig.cast()));
        Ok(())
    }

    cudaDeviceSetSharedMemConfig(config: cudaSharedMemConfig) {
        context()?;
        cu!(cuCtxSetSharedMemConfig(CUsharedconfig(config.0)));
        Ok(())
    }

    cudaDeviceGetStreamPriorityRange(leastPriority: *mut i32, greatestPriority: *mut i32) {
        context()?;
        cu!(cuCtxGetStreamPriorityRange(leastPriority, greatestPriority));
        Ok(())
    }

    cudaDeviceGetTexture1DLinearMaxWidth(
        maxWidthInElements: *mut usize, fmtDesc: *const cudaChannelFormatDesc, ordinal: i32,
    ) {
        refuse(fmtDesc.is_null(), cudaErrorInvalidValue)?;
        let (format, channels) = super::array::format(&*fmtDesc)?;
        let device = device(ordinal)?;
        cu!(cuDeviceGetTexture1DLinearMaxWidth(maxWidthInElements, format, channels, device));
        Ok(())
    }

    cudaCtxResetPersistingL2Cache() {
        context()?;
        cu!(cuCtxResetPersistingL2Cache());
        Ok(())
    }

    cudaDeviceFlushGPUDirectRDMAWrites(
        target: cudaFlushGPUDirectRDMAWritesTarget, scope: cudaFlushGPUDirectRDMAWritesScope,
    ) {
        context()?;
        cu!(cuFlushGPUDirectRDMAWrites(
            CUflushGPUDirectRDMAWritesTarget(target.0), CUflushGPUDirectRDMAWritesScope(scope.0)
        ));
        Ok(())
    }

    cudaThreadExit() {
        context::reset()?;
        crate::error::forget();
        Ok(())
    }

    cudaThreadSynchronize() {
        context()?;
        cu!(cuCtxSynchronize());
        Ok(())
    }

    cudaThreadSetLimit(limit: cudaLimit, value: usize) {
        context()?;
        cu!(cuCtxSetLimit(CUlimit(limit.0), value));
        Ok(())
    }

    cudaThreadGetLimit(pValue: *mut usize, limit: cudaLimit) {
        context()?;
        cu!(cuCtxGetLimit(pValue, CUlimit(limit.0)));
        Ok(())
    }

    cudaThreadGetCacheConfig(pCacheConfig: *mut cudaFuncCache) {
        context()?;
        cu!(cuCtxGetCacheConfig(pCacheConfig.cast()));
        Ok(())
    }

    cudaThreadSetCacheConfig(cacheConfig: cudaFuncCache) {
        context()?;
        cu!(cuCtxSetCacheConfig(CUfunc_cache(cacheConfig.0)));
        Ok(())
    }

    // Devices have had doubles for long: nothing is to be converted.
    cudaSetDoubleForDevice(_d: *mut f64) {
        Ok(())
    }

    cudaSetDoubleForHost(_d: *mut f64) {
        Ok(())
    }
}
