//! Command queues: how many references the program holds of each, so that its end is known before it comes.
#![allow(non_snake_case)]

use super::guarded;
use crate::cl::*;
use crate::{below, driver, queues};

/// Counts the reference that comes with a new queue.
fn counted(queue: cl_command_queue) -> cl_command_queue {
    if !queue.is_null() && driver::is_counted() {
        queues::created(queue);
    }
    queue
}

pub(super) unsafe extern "C" fn clCreateCommandQueue(
    context: cl_context,
    device: cl_device_id,
    properties: cl_bitfield,
    error: *mut cl_int,
) -> cl_command_queue {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        counted(unsafe { below::clCreateCommandQueue(context, device, properties, error) })
    })
}

pub(super) unsafe extern "C" fn clCreateCommandQueueWithProperties(
    context: cl_context,
    device: cl_device_id,
    properties: *const u64,
    error: *mut cl_int,
) -> cl_command_queue {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        counted(unsafe { below::clCreateCommandQueueWithProperties(context, device, properties, error) })
    })
}

pub(super) unsafe extern "C" fn clRetainCommandQueue(queue: cl_command_queue) -> cl_int {
    guarded(CL_OUT_OF_RESOURCES, || {
        // SAFETY: the argument is handed on as it came.
        let result = unsafe { below::clRetainCommandQueue(queue) };
        if result == CL_SUCCESS && driver::is_counted() {
            queues::retained(queue);
        }
        result
    })
}

pub(super) unsafe extern "C" fn clReleaseCommandQueue(queue: cl_command_queue) -> cl_int {
    guarded(CL_OUT_OF_RESOURCES, || {
        // Before the call: afterwards the handle may already be another thread's new queue.
        if driver::is_counted() && queues::released(queue) {
            if let Some(known) = queues::known(queue) {
                driver::queue_ends(queue, known.ordinal);
            }
            queues::forget(queue);
        }
        // SAFETY: the argument is handed on as it came.
        unsafe { below::clReleaseCommandQueue(queue) }
    })
}
