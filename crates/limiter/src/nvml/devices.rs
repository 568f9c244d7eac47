//! The visible devices: the slice's, in its own order, and no others.

use core::ffi::c_char;

use divvy_abi::nvml::*;

use super::below::forward;
use super::outcome::{Result, code, done};
use super::slice::{self, Handle};

/// After nvmlInit: handles are new, and inside a slice the slice must be visible.
fn initialised(answer: nvmlReturn_t) -> nvmlReturn_t {
    let Some(path) = slice::path() else { return answer };
    if answer != NVML_SUCCESS {
        return answer;
    }
    slice::forget_devices();
    match slice::look(path, 0) {
        Ok(_) => answer,
        Err(why) => {
            // SAFETY: ends the earlier nvmlInit; no arguments.
            unsafe { forward::nvmlShutdown() };
            why
        }
    }
}

pub unsafe extern "C-unwind" fn nvmlInit() -> nvmlReturn_t {
    // SAFETY: no arguments.
    initialised(unsafe { forward::nvmlInit() })
}

pub unsafe extern "C-unwind" fn nvmlInit_v2() -> nvmlReturn_t {
    // SAFETY: no arguments.
    initialised(unsafe { forward::nvmlInit_v2() })
}

pub unsafe extern "C-unwind" fn nvmlInitWithFlags(flags: u32) -> nvmlReturn_t {
    // SAFETY: a number.
    initialised(unsafe { forward::nvmlInitWithFlags(flags) })
}

/// # Safety
/// `count` is null or valid for writing.
unsafe fn count_devices(
    count: *mut u32,
    below: unsafe extern "C-unwind" fn(*mut u32) -> nvmlReturn_t,
) -> nvmlReturn_t {
    // SAFETY: the caller's promise.
    let answer = unsafe { below(count) };
    let Some(path) = slice::path() else { return answer };
    code(done(answer).and_then(|()| {
        let devices = slice::devices(path)?;
        // SAFETY: the library below has just written there.
        unsafe { count.write(devices.len() as u32) };
        Ok(())
    }))
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetCount(count: *mut u32) -> nvmlReturn_t {
    // SAFETY: the program's argument.
    unsafe { count_devices(count, forward::nvmlDeviceGetCount) }
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetCount_v2(count: *mut u32) -> nvmlReturn_t {
    // SAFETY: the program's argument.
    unsafe { count_devices(count, forward::nvmlDeviceGetCount_v2) }
}

/// # Safety
/// `device` is null or valid for writing.
unsafe fn by_index(
    index: u32,
    device: *mut nvmlDevice_t,
    below: unsafe extern "C-unwind" fn(u32, *mut nvmlDevice_t) -> nvmlReturn_t,
) -> nvmlReturn_t {
    let Some(path) = slice::path() else {
        // SAFETY: the caller's promise.
        return unsafe { below(index, device) };
    };
    code(slice::devices(path).and_then(|devices| {
        if device.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let found = devices.get(index as usize).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { device.write(found.handle.raw()) };
        Ok(())
    }))
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetHandleByIndex(
    index: u32,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: the program's arguments.
    unsafe { by_index(index, device, forward::nvmlDeviceGetHandleByIndex) }
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetHandleByIndex_v2(
    index: u32,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: the program's arguments.
    unsafe { by_index(index, device, forward::nvmlDeviceGetHandleByIndex_v2) }
}

/// A handle that the library below found by a name: only the slice's own devices are returned.
///
/// # Safety
/// After a success `device` holds a handle.
unsafe fn only_ours(answer: nvmlReturn_t, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    let Some(path) = slice::path() else { return answer };
    code(done(answer).and_then(|()| {
        // SAFETY: the caller's promise.
        let found = Handle::of(unsafe { device.read() });
        if slice::devices(path)?.iter().any(|device| device.handle == found) {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { device.write(core::ptr::null_mut()) };
        Err(NVML_ERROR_NOT_FOUND)
    }))
}

macro_rules! found_by {
    ($($name:ident($by:ident: $of:ty);)*) => {$(
        pub unsafe extern "C-unwind" fn $name($by: $of, device: *mut nvmlDevice_t) -> nvmlReturn_t {
            // SAFETY: the program's arguments; after a success the library below has written the handle.
            unsafe { only_ours(forward::$name($by, device), device) }
        }
    )*};
}

found_by! {
    nvmlDeviceGetHandleByPciBusId(id: *const c_char);
    nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char);
    nvmlDeviceGetHandleBySerial(serial: *const c_char);
    nvmlDeviceGetHandleByUUID(uuid: *const c_char);
    nvmlDeviceGetHandleByUUIDV(uuid: *const nvmlUUID_t);
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut u32) -> nvmlReturn_t {
    // SAFETY: the program's arguments.
    let answer = unsafe { forward::nvmlDeviceGetIndex(device, index) };
    let Some(path) = slice::path() else { return answer };
    let place = || -> Result {
        done(answer)?;
        let devices = slice::devices(path)?;
        let wanted = Handle::of(device);
        let place = devices.iter().position(|device| device.handle == wanted);
        // SAFETY: the library below has just written there.
        unsafe { index.write(place.ok_or(NVML_ERROR_NO_PERMISSION)? as u32) };
        Ok(())
    };
    code(place())
}
