//! The primary context of each device, which the runtime and most clients share.

use super::args::Out;
use crate::Result;
use crate::driver::driver;
use divvy_abi::*;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

entry! {
    fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: CUdevice) {
        context.required()?;
        let driver = driver()?;
        let retained = driver.retain_primary(driver.device(device)?)?;
        context.set(retained.handle as CUcontext)
    }

    fn cuDevicePrimaryCtxRelease | cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        release(device, false)
    }

    fn cuDevicePrimaryCtxReset | cuDevicePrimaryCtxReset_v2(device: CUdevice) {
        release(device, true)
    }

    fn cuDevicePrimaryCtxSetFlags | cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: u32) {
        set_flags(device, flags)
    }

    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: Out<u32>, active: Out<i32>) {
        let driver = driver()?;
        let defaults = driver.defaults(device)?;
        let live = driver.contexts.get(defaults.primary_handle);
        let next = defaults.primary.lock().unwrap_or_else(PoisonError::into_inner).flags;
        flags.set(live.as_ref().map_or(next, |context| context.flags.load(Ordering::Relaxed)))?;
        active.set(i32::from(live.is_some()))
    }
}

fn release(device: CUdevice, all: bool) -> Result {
    let driver = driver()?;
    driver.release_primary(driver.device(device)?, all)
}

fn set_flags(device: CUdevice, flags: u32) -> Result {
    super::context::check_flags(flags)?;
    let driver = driver()?;
    let defaults = driver.defaults(device)?;
    defaults
        .primary
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .flags = flags;
    if let Some(context) = driver.contexts.get(defaults.primary_handle) {
        context.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}
