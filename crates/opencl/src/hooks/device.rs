//! What a device tells of itself: inside a slice, the slice's sizes.
#![allow(non_snake_case)]

use core::ffi::c_void;

use super::guarded;
use crate::cl::*;
use crate::devices::{self, Charged};
use crate::{below, driver};

pub(super) unsafe extern "C" fn clGetDeviceInfo(
    device: cl_device_id,
    name: cl_uint,
    size: usize,
    value: *mut c_void,
    out: *mut usize,
) -> cl_int {
    guarded(CL_OUT_OF_RESOURCES, || {
        // SAFETY: the arguments are handed on as they came.
        let result = unsafe { below::clGetDeviceInfo(device, name, size, value, out) };
        if result == CL_SUCCESS && !value.is_null() && is_of_the_slice(name) {
            // SAFETY: the driver knows the device, and has just filled the value in.
            unsafe { show_slice(device, name, size, value) };
        }
        result
    })
}

fn is_of_the_slice(name: cl_uint) -> bool {
    matches!(
        name,
        CL_DEVICE_GLOBAL_MEM_SIZE
            | CL_DEVICE_MAX_MEM_ALLOC_SIZE
            | CL_DEVICE_GLOBAL_FREE_MEMORY_AMD
            | CL_DEVICE_AVAILABLE
    )
}

/// # Safety
/// `value` holds what the driver told, of `size` bytes at most.
unsafe fn show_slice(device: cl_device_id, name: cl_uint, size: usize, value: *mut c_void) {
    // SAFETY: the caller's promise.
    let ordinal = match unsafe { devices::charged(device) } {
        Charged::Account(ordinal) => ordinal,
        Charged::Free => return,
        Charged::Refused => {
            if name == CL_DEVICE_AVAILABLE && size >= size_of::<cl_uint>() {
                // SAFETY: as wide as OpenCL says.
                unsafe { value.cast::<cl_uint>().write_unaligned(0) };
            }
            return;
        }
    };
    if name == CL_DEVICE_AVAILABLE {
        return;
    }
    let Some((free, all)) = driver::memory(ordinal) else {
        return;
    };
    let at_most = |place: *mut u64, most: u64| {
        // SAFETY: as wide as OpenCL says, and filled in.
        unsafe { place.write_unaligned(place.read_unaligned().min(most)) };
    };
    let place = value.cast::<u64>();
    match name {
        // Memory beyond the share counts as well where the slice has such, so this is not the smaller of the two.
        // SAFETY: as above.
        CL_DEVICE_GLOBAL_MEM_SIZE if size >= size_of::<u64>() => unsafe { place.write_unaligned(all) },
        CL_DEVICE_MAX_MEM_ALLOC_SIZE if size >= size_of::<u64>() => at_most(place, all),
        CL_DEVICE_GLOBAL_FREE_MEMORY_AMD => {
            // One number or two; the program gave room for those that the driver wrote.
            for n in 0..(size / size_of::<u64>()).min(2) {
                // SAFETY: within the value.
                at_most(unsafe { place.add(n) }, free >> 10);
            }
        }
        _ => {}
    }
}
