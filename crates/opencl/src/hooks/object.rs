//! Buffers and pipes. A sub-buffer takes no memory of its own, and keeps its buffer.
#![allow(non_snake_case)]

use core::ffi::c_void;

use super::guarded;
use crate::cl::*;
use crate::{below, memory};

pub(super) unsafe extern "C" fn clCreateBuffer(
    context: cl_context,
    flags: cl_bitfield,
    size: usize,
    host: *mut c_void,
    error: *mut cl_int,
) -> cl_mem {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            memory::object(context, size as u64, error, |why| {
                below::clCreateBuffer(context, flags, size, host, why)
            })
        }
    })
}

pub(super) unsafe extern "C" fn clCreateBufferWithProperties(
    context: cl_context,
    properties: *const u64,
    flags: cl_bitfield,
    size: usize,
    host: *mut c_void,
    error: *mut cl_int,
) -> cl_mem {
    guarded(core::ptr::null_mut(), || {
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            memory::object(context, size as u64, error, |why| {
                below::clCreateBufferWithProperties(context, properties, flags, size, host, why)
            })
        }
    })
}

pub(super) unsafe extern "C" fn clCreatePipe(
    context: cl_context,
    flags: cl_bitfield,
    packet: cl_uint,
    packets: cl_uint,
    properties: *const isize,
    error: *mut cl_int,
) -> cl_mem {
    guarded(core::ptr::null_mut(), || {
        let bytes = u64::from(packet) * u64::from(packets);
        // SAFETY: the arguments are handed on as they came.
        unsafe {
            memory::object(context, bytes, error, |why| {
                below::clCreatePipe(context, flags, packet, packets, properties, why)
            })
        }
    })
}
