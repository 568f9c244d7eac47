//! Contexts: a device of which the slice has no share gets none.
#![allow(non_snake_case)]

use core::ffi::c_void;

use super::guarded;
use crate::cl::*;
use crate::devices::{self, Charged};
use crate::{below, driver};

/// Charges the devices for their contexts.
///
/// # Errors
/// `CL_DEVICE_NOT_AVAILABLE` for a device that may not be used, `CL_OUT_OF_RESOURCES` where a context does not fit.
///
/// # Safety
/// The devices are the driver's.
unsafe fn begin(devices: &[cl_device_id]) -> Result<(), cl_int> {
    for device in devices {
        // SAFETY: the caller's promise.
        match unsafe { devices::charged(*device) } {
            Charged::Account(ordinal) => driver::begin_context(ordinal).map_err(|_| CL_OUT_OF_RESOURCES)?,
            Charged::Free => {}
            Charged::Refused => return Err(CL_DEVICE_NOT_AVAILABLE),
        }
    }
    Ok(())
}

/// # Safety
/// `error` is null or valid for writing.
unsafe fn refuse(error: *mut cl_int, why: cl_int) -> cl_context {
    if !error.is_null() {
        // SAFETY: the caller's promise.
        unsafe { error.write(why) };
    }
    core::ptr::null_mut()
}

pub(super) unsafe extern "C" fn clCreateContext(
    properties: *const isize,
    count: cl_uint,
    devices: *const cl_device_id,
    notify: ContextCallback,
    data: *mut c_void,
    error: *mut cl_int,
) -> cl_context {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the program says that there are so many, and the driver reads them as well; null is its error to tell.
        // Each is the driver's: the loader found the driver by it.
        unsafe {
            if !devices.is_null() && count > 0 {
                let list = core::slice::from_raw_parts(devices, count as usize);
                if !list.iter().any(|device| device.is_null())
                    && let Err(why) = begin(list)
                {
                    return refuse(error, why);
                }
            }
            below::clCreateContext(properties, count, devices, notify, data, error)
        }
    })
}

pub(super) unsafe extern "C" fn clCreateContextFromType(
    properties: *const isize,
    kind: cl_bitfield,
    notify: ContextCallback,
    data: *mut c_void,
    error: *mut cl_int,
) -> cl_context {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came. Only the driver tells which devices it chose.
        unsafe {
            let context = below::clCreateContextFromType(properties, kind, notify, data, error);
            if context.is_null() {
                return context;
            }
            match begin(&below::devices_of(context)) {
                Ok(()) => context,
                Err(why) => {
                    below::clReleaseContext(context);
                    refuse(error, why)
                }
            }
        }
    })
}
