//! Shared virtual memory: charged by its address until it is freed, in order of the queue where the program says so.
#![allow(non_snake_case)]

use core::ffi::c_void;

use super::guarded;
use crate::below;
use crate::cl::*;
use crate::memory::{self, Named};

pub(super) unsafe extern "C" fn clSVMAlloc(
    context: cl_context,
    flags: cl_bitfield,
    size: usize,
    alignment: cl_uint,
) -> *mut c_void {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            allocate(context, &below::devices_of(context), size, || {
                let pointer = below::clSVMAlloc(context, flags, size, alignment);
                (!pointer.is_null()).then_some(pointer).ok_or(CL_OUT_OF_RESOURCES)
            })
        }
        .unwrap_or(core::ptr::null_mut())
    })
}

/// Allocates memory that is known by its address.
///
/// # Errors
/// As [`memory::charged`].
///
/// # Safety
/// As [`memory::charged`].
pub(super) unsafe fn allocate(
    context: cl_context,
    devices: &[cl_device_id],
    size: usize,
    make: impl FnMut() -> Result<*mut c_void, cl_int>,
) -> Result<*mut c_void, cl_int> {
    // SAFETY: the caller's promise.
    let (pointer, charge) = unsafe { memory::charged(devices, size as u64, make) }?;
    memory::keep(context, pointer, charge);
    Ok(pointer)
}

pub(super) unsafe extern "C" fn clSVMFree(context: cl_context, pointer: *mut c_void) {
    guarded((), || {
        // Before the call: afterwards the address may already be another thread's.
        let charge = memory::taken(context, pointer);
        // SAFETY: the arguments are handed on as they came.
        unsafe { below::clSVMFree(context, pointer) };
        if let Some(charge) = charge {
            charge.end();
        }
    });
}

unsafe extern "C" fn freed(_event: cl_event, status: cl_int, data: *mut c_void) {
    guarded((), || {
        // SAFETY: `clEnqueueSVMFree` made it for this one call.
        let names = unsafe { Box::from_raw(data.cast::<Vec<Named>>()) };
        // A command that failed has freed nothing.
        if status == CL_COMPLETE {
            names.into_iter().for_each(memory::freed);
        }
    });
}

#[allow(clippy::too_many_arguments, reason = "OpenCL's")]
pub(super) unsafe extern "C" fn clEnqueueSVMFree(
    queue: cl_command_queue,
    count: cl_uint,
    pointers: *mut *mut c_void,
    notify: SvmFreeCallback,
    data: *mut c_void,
    waits: cl_uint,
    list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    guarded(CL_OUT_OF_RESOURCES, || {
        // SAFETY: the arguments are handed on as they came. A function of the program's frees by itself, with `clSVMFree`.
        unsafe {
            if notify.is_some() || pointers.is_null() {
                return below::clEnqueueSVMFree(queue, count, pointers, notify, data, waits, list, event);
            }
            // The program may change its list after the call.
            let addresses = core::slice::from_raw_parts(pointers, count as usize).to_vec();
            let mut own: cl_event = core::ptr::null_mut();
            let place = if event.is_null() { &raw mut own } else { event };
            let context = below::of_queue::<usize>(queue, CL_QUEUE_CONTEXT).unwrap_or(0) as cl_context;
            // Before the call: afterwards an address may already be another thread's.
            let named = |address| memory::named(context, address);
            let names: Vec<Named> = addresses.into_iter().filter_map(named).collect();
            let result = below::clEnqueueSVMFree(queue, count, pointers, notify, data, waits, list, place);
            if result != CL_SUCCESS {
                return result;
            }
            let boxed = Box::into_raw(Box::new(names));
            if below::clSetEventCallback(place.read(), CL_COMPLETE, Some(freed), boxed.cast()) != CL_SUCCESS {
                // What is not told about stays charged.
                drop(Box::from_raw(boxed));
            }
            if event.is_null() {
                below::clReleaseEvent(own);
            }
            result
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_failed_has_freed_nothing() {
        let name = memory::keep_for_test(0x2000, 9);
        let told = |status| {
            let names = Box::into_raw(Box::new(vec![name]));
            // SAFETY: the names are this one call's.
            unsafe { freed(core::ptr::null_mut(), status, names.cast()) };
        };
        told(-1);
        assert!(memory::is_kept(name));
        told(CL_COMPLETE);
        assert!(!memory::is_kept(name));
    }
}
