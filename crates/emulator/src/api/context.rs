//! Contexts: making and ending them, which is current, and their settings.

use super::args::{Handle, InMut, Out};
use super::current;
use crate::context::Context;
use crate::driver::{driver, show};
use crate::print::DEFAULT_FIFO_BYTES;
use crate::{Result, device_heap, handle};
use divvy_abi::*;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

entry! {
    fn cuCtxCreate_v2(context: Out<CUcontext>, flags: u32, device: CUdevice) {
        create(&context, flags, device, 3020)
    }

    fn cuCtxCreate_v3(
        context: Out<CUcontext>,
        _affinity: InMut<CUexecAffinityParam>,
        affinities: i32,
        flags: u32,
        device: CUdevice,
    ) {
        if affinities != 0 {
            return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        create(&context, flags, device, 3020)
    }

    fn cuCtxCreate_v4(context: Out<CUcontext>, params: InMut<CUctxCreateParams>, flags: u32, device: CUdevice) {
        if !params.pointer().is_null() {
            let params = params.read().get()?;
            if params.numExecAffinityParams != 0 || !params.cigParams.is_null() {
                return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
            }
        }
        create(&context, flags, device, 3020)
    }

    fn cuCtxDestroy | cuCtxDestroy_v2(context: Handle<CUcontext>) {
        destroy(context.0)
    }

    fn cuCtxPushCurrent_v2(context: Handle<CUcontext>) {
        driver()?.contexts.get(context.0).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        current::push(context.0)
    }

    fn cuCtxPopCurrent_v2(context: Out<CUcontext>) {
        driver()?;
        let popped = current::pop()?;
        context.set_if_wanted(popped as CUcontext);
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle<CUcontext>) {
        let driver = driver()?;
        if context.0 != 0 {
            driver.contexts.get(context.0).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        }
        current::set(context.0)
    }

    fn cuCtxGetCurrent(context: Out<CUcontext>) {
        driver()?;
        context.set(current::handle()? as CUcontext)
    }

    fn cuCtxGetDevice(device: Out<CUdevice>) {
        device.set(current::context()?.device.ordinal as CUdevice)
    }

    fn cuCtxGetDevice_v2(device: Out<CUdevice>, context: Handle<CUcontext>) {
        device.set(current::named(context.0)?.device.ordinal as CUdevice)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(current::context()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: u32) {
        check_flags(flags)?;
        current::context()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(context: Handle<CUcontext>, id: Out<u64>) {
        id.set(current::named(context.0)?.id)
    }

    fn cuCtxGetApiVersion(context: Handle<CUcontext>, version: Out<u32>) {
        version.set(current::named(context.0)?.api_version)
    }

    fn cuCtxSynchronize() {
        synchronize(&*current::usable()?)
    }

    fn cuCtxSynchronize_v2(context: Handle<CUcontext>) {
        synchronize(&*current::named(context.0)?)
    }

    fn cuCtxSetLimit(limit: CUlimit, value: usize) {
        let context = current::usable()?;
        default_limit(limit)?;
        context.limits.lock().unwrap_or_else(PoisonError::into_inner).insert(limit.0, value);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: CUlimit) {
        let set = current::context()?.limit(limit.0);
        value.set(set.map_or_else(|| default_limit(limit), Ok)?)
    }

    fn cuCtxGetCacheConfig(config: Out<CUfunc_cache>) {
        config.set(CUfunc_cache(current::context()?.cache_config.load(Ordering::Relaxed)))
    }

    fn cuCtxSetCacheConfig(config: CUfunc_cache) {
        current::context()?.cache_config.store(config.0, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(config: Out<CUsharedconfig>) {
        config.set(CUsharedconfig(current::context()?.shared_config.load(Ordering::Relaxed)))
    }

    fn cuCtxSetSharedMemConfig(_config: CUsharedconfig) {
        // Banks have one width on every compute capability emulated, so there is nothing to choose.
        current::context().map(drop)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current::context()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(GREATEST_PRIORITY);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache() {
        current::usable().map(drop)
    }

    fn cuCtxAttach(context: Out<CUcontext>, flags: u32) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        context.required()?;
        let current = current::context()?;
        current.attach();
        context.set(current.handle as CUcontext)
    }

    // "The context must be a handle that was passed back by cuCtxCreate() or cuCtxAttach(), and must be current to the
    // calling thread." A program cannot take away the last use of a primary context.
    fn cuCtxDetach(context: Handle<CUcontext>) {
        let current = current::context()?;
        if current.handle != context.0 {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        if current.detach() { destroy(context.0) } else { Ok(()) }
    }
}

/// Waits for all streams of a context, none of which may be captured.
fn synchronize(context: &Context) -> Result {
    driver()?.graphs.captures.refuse_context(context.id)?;
    context.synchronize()
}

/// The greatest stream priority, which is the least number.
pub const GREATEST_PRIORITY: i32 = -5;

/// Refuses flags CUDA does not define.
pub fn check_flags(flags: u32) -> Result {
    if flags & !CU_CTX_FLAGS_MASK.0 != 0 {
        Err(CUDA_ERROR_INVALID_VALUE)
    } else {
        Ok(())
    }
}

fn create(out: &Out<CUcontext>, flags: u32, device: CUdevice, api_version: u32) -> Result {
    out.required()?;
    check_flags(flags)?;
    let driver = driver()?;
    let device = driver.device(device)?;
    show(device)?;
    let context = driver.new_context(device, handle::fresh(), false, flags, api_version)?;
    driver.contexts.insert(context.handle, Arc::clone(&context));
    current::push(context.handle)?;
    out.set(context.handle as CUcontext)
}

fn destroy(handle: u64) -> Result {
    let driver = driver()?;
    let context = driver.contexts.get(handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    if context.primary {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    driver.contexts.remove(handle);
    if current::handle()? == handle {
        current::pop()?;
    }
    driver.destroy_context(&context);
    Ok(())
}

/// What a limit is until it is set; limits of features that are not emulated are unsupported.
fn default_limit(limit: CUlimit) -> Result<usize> {
    match limit {
        CU_LIMIT_STACK_SIZE => Ok(1024),
        CU_LIMIT_PRINTF_FIFO_SIZE => Ok(DEFAULT_FIFO_BYTES),
        CU_LIMIT_MALLOC_HEAP_SIZE => Ok(device_heap::DEFAULT_BYTES),
        CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH => Ok(2),
        CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => Ok(2048),
        CU_LIMIT_MAX_L2_FETCH_GRANULARITY => Ok(64),
        CU_LIMIT_PERSISTING_L2_CACHE_SIZE => Ok(0),
        _ => Err(CUDA_ERROR_UNSUPPORTED_LIMIT),
    }
}
