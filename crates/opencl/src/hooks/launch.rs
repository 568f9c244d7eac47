//! Launches: they wait at the gate if there is one.
#![allow(non_snake_case)]

use core::ffi::c_void;

use divvy_abi::{CUDA_ERROR_UNKNOWN, CUDA_SUCCESS};
use divvy_limiter::tenant::Tenant;

use super::guarded;
use crate::below;
use crate::cl::*;
use crate::driver::{self, Launch};
use crate::queues::{self, Found};

/// Launches into a queue by `call`, which has a place for the launch's event; `event` is the program's.
///
/// # Safety
/// `queue` is a queue of the driver's, or one that the driver refuses; `event` is null or valid for writing.
pub(super) unsafe fn gated(
    queue: cl_command_queue,
    launch: Launch,
    event: *mut cl_event,
    mut call: impl FnMut(*mut cl_event) -> cl_int,
) -> cl_int {
    match divvy_limiter::tenant::join() {
        Ok(Tenant::Unlimited) => return call(event),
        Ok(Tenant::Member(_)) if driver::is_counted() => {}
        // A child that was forked has no slice, as CUDA's contexts have none there.
        _ => return CL_OUT_OF_RESOURCES,
    }
    // SAFETY: the caller's promise.
    let known = match unsafe { queues::find(queue) } {
        Found::Gated(known) => known,
        Found::Free => return call(event),
        Found::Refused => return CL_OUT_OF_RESOURCES,
    };
    driver::stand_in(known.ordinal);
    let mut told = None;
    let mut pass = || {
        // SAFETY: the caller's promise.
        let result = unsafe { known.launch(event, &mut call) };
        told = Some(result);
        match result {
            CL_SUCCESS => CUDA_SUCCESS,
            _ => CUDA_ERROR_UNKNOWN,
        }
    };
    let _answer = driver::launch(queue, known.in_order, launch, &mut pass);
    if told == Some(CL_SUCCESS) && !is_open(known.ordinal) {
        // The lease runs: what waits in the driver until the program asks for a result would waste it.
        // SAFETY: the program's own queue.
        unsafe { below::clFlush(queue) };
    }
    told.unwrap_or(CL_OUT_OF_RESOURCES)
}

/// Whether nothing is counted on the device at the moment.
fn is_open(ordinal: i32) -> bool {
    match divvy_limiter::account::of_device(ordinal) {
        Ok(Some(account)) => matches!(account.attached().gate().gate(), divvy_ledger::Gate::Open),
        _ => true,
    }
}

/// Sizes of a launch in three dimensions; large ones are told by their lower halves, for the gate only tells them apart.
///
/// # Safety
/// `sizes` is null or has so many numbers.
unsafe fn shape(dimensions: cl_uint, sizes: *const usize) -> [u32; 3] {
    let mut shape = [0; 3];
    if sizes.is_null() {
        return shape;
    }
    for (n, place) in shape.iter_mut().enumerate().take(dimensions as usize) {
        // SAFETY: the caller's promise.
        let size = unsafe { sizes.add(n).read() };
        *place = (size ^ size >> 32) as u32;
    }
    shape
}

#[allow(clippy::too_many_arguments, reason = "OpenCL's")]
pub(super) unsafe extern "C" fn clEnqueueNDRangeKernel(
    queue: cl_command_queue,
    kernel: cl_kernel,
    dimensions: cl_uint,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    waits: cl_uint,
    list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    guarded(CL_OUT_OF_RESOURCES, || {
        // SAFETY: the arguments are handed on as they came; the driver reads as many sizes, of three at most.
        unsafe {
            let launch = Launch {
                what: kernel as usize,
                grid: shape(dimensions, global),
                block: shape(dimensions, local),
            };
            gated(queue, launch, event, |event| {
                below::clEnqueueNDRangeKernel(
                    queue, kernel, dimensions, offset, global, local, waits, list, event,
                )
            })
        }
    })
}

/// What runs once, without a shape.
pub(super) fn single(what: usize) -> Launch {
    Launch {
        what,
        grid: [1; 3],
        block: [1; 3],
    }
}

pub(super) unsafe extern "C" fn clEnqueueTask(
    queue: cl_command_queue,
    kernel: cl_kernel,
    waits: cl_uint,
    list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    guarded(CL_OUT_OF_RESOURCES, || {
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            gated(queue, single(kernel as usize), event, |event| {
                below::clEnqueueTask(queue, kernel, waits, list, event)
            })
        }
    })
}

#[allow(clippy::too_many_arguments, reason = "OpenCL's")]
pub(super) unsafe extern "C" fn clEnqueueNativeKernel(
    queue: cl_command_queue,
    function: NativeKernel,
    arguments: *mut c_void,
    size: usize,
    objects: cl_uint,
    list: *const cl_mem,
    places: *mut *const c_void,
    waits: cl_uint,
    events: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    guarded(CL_OUT_OF_RESOURCES, || {
        let what = function.map_or(0, |function| function as usize);
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            gated(queue, single(what), event, |event| {
                below::clEnqueueNativeKernel(
                    queue, function, arguments, size, objects, list, places, waits, events, event,
                )
            })
        }
    })
}
