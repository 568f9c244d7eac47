//! A thread's device, and the primary contexts: taken when they are first needed.

use core::cell::Cell;
use core::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use divvy_abi::runtime::{cudaErrorInvalidDevice, cudaErrorNoDevice, cudaStream_t};
use divvy_abi::{CUcontext, CUdevice};

use crate::error::Result;

thread_local! {
    /// The device that the thread chose, 0 before it chose one.
    static DEVICE: Cell<i32> = const { Cell::new(0) };
}

/// The primary contexts that this process holds, by device.
static HELD: Mutex<Vec<Option<Context>>> = Mutex::new(Vec::new());

struct Context(CUcontext);

// SAFETY: a context's handle may be used by any thread.
unsafe impl Send for Context {}

/// The stream of a function whose null stream is the thread's own.
#[inline]
pub fn own(stream: cudaStream_t) -> cudaStream_t {
    if stream.is_null() {
        2 as cudaStream_t
    } else {
        stream
    }
}

/// How many devices there are.
///
/// # Errors
/// Where there is none, or no driver.
pub fn device_count() -> Result<i32> {
    let mut count = 0;
    // SAFETY: the pointer is that of a number.
    unsafe {
        cu!(cuDeviceGetCount(&mut count));
    }
    if count > 0 {
        Ok(count)
    } else {
        Err(cudaErrorNoDevice)
    }
}

/// The driver's device of an ordinal.
///
/// # Errors
/// `cudaErrorInvalidDevice` where there is no such device.
pub fn device(ordinal: i32) -> Result<CUdevice> {
    if !(0..device_count()?).contains(&ordinal) {
        return Err(cudaErrorInvalidDevice);
    }
    let mut device = 0;
    // SAFETY: the pointer is that of a device.
    unsafe {
        cu!(cuDeviceGet(&mut device, ordinal));
    }
    Ok(device)
}

/// Makes sure that the thread has a context: the one that is current, or else its device's primary one.
///
/// # Errors
/// What the driver says.
#[inline]
pub fn context() -> Result<()> {
    let mut current: CUcontext = null_mut();
    // SAFETY: the pointer is that of a handle.
    unsafe {
        cu!(cuCtxGetCurrent(&mut current));
    }
    if current.is_null() {
        bind(DEVICE.get())
    } else {
        Ok(())
    }
}

/// The primary context of a device, held from now on.
///
/// # Errors
/// `cudaErrorInvalidDevice`, or what the driver says.
pub fn primary(ordinal: i32) -> Result<CUcontext> {
    let device = device(ordinal)?;
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let place = ordinal as usize;
    if held.len() <= place {
        held.resize_with(place + 1, || None);
    }
    if let Some(context) = &held[place] {
        return Ok(context.0);
    }
    let mut context = null_mut();
    // SAFETY: the pointer is that of a handle.
    unsafe {
        cu!(cuDevicePrimaryCtxRetain(&mut context, device));
    }
    held[place] = Some(Context(context));
    Ok(context)
}

fn bind(ordinal: i32) -> Result<()> {
    let context = primary(ordinal)?;
    // SAFETY: the context is held.
    unsafe {
        cu!(cuCtxSetCurrent(context));
    }
    Ok(())
}

/// Chooses the thread's device, and makes its primary context current.
///
/// # Errors
/// `cudaErrorInvalidDevice`, or what the driver says.
pub fn choose(ordinal: i32) -> Result<()> {
    device(ordinal)?;
    DEVICE.set(ordinal);
    bind(ordinal)
}

/// The thread's device: that of its current context, or else the one that it chose.
///
/// # Errors
/// What the driver says.
pub fn current_device() -> Result<i32> {
    let mut current: CUcontext = null_mut();
    // SAFETY: the pointers are those of a handle and of a device.
    unsafe {
        cu!(cuCtxGetCurrent(&mut current));
        if current.is_null() {
            device_count()?;
            return Ok(DEVICE.get());
        }
        let mut device = 0;
        cu!(cuCtxGetDevice(&mut device));
        Ok(device)
    }
}

/// Destroys what the device's primary context has, and forgets that it was held.
///
/// # Errors
/// What the driver says.
pub fn reset() -> Result<()> {
    let ordinal = current_device()?;
    let device = device(ordinal)?;
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: handles and numbers. The caller of cudaDeviceReset vouches that no other thread uses the device.
    unsafe {
        if let Some(context) = held.get_mut(ordinal as usize).and_then(Option::take) {
            let mut current: CUcontext = null_mut();
            cu!(cuCtxGetCurrent(&mut current));
            if current == context.0 {
                cu!(cuCtxSetCurrent(null_mut()));
            }
            cu!(cuDevicePrimaryCtxReset_v2(device));
            // A driver that counts no more holders after a reset says so.
            let _ = (crate::driver::table()?.cuDevicePrimaryCtxRelease_v2)(device);
        } else {
            cu!(cuDevicePrimaryCtxReset_v2(device));
        }
    }
    DEVICE.set(ordinal);
    Ok(())
}
