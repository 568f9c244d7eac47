//! What nvcc's code calls before `main` and after it: images, kernels, variables.

use core::ffi::{c_char, c_void};

use crate::prelude::*;
use crate::registry;

pub unsafe extern "C-unwind" fn __cudaRegisterFatBinary(fatCubin: *mut c_void) -> *mut *mut c_void {
    crate::unsupported::listen();
    registry::add_binary(fatCubin)
}

pub unsafe extern "C-unwind" fn __cudaRegisterFatBinaryEnd(_: *mut *mut c_void) {}

pub unsafe extern "C-unwind" fn __cudaUnregisterFatBinary(fatCubinHandle: *mut *mut c_void) {
    registry::remove_binary(fatCubinHandle);
}

pub unsafe extern "C-unwind" fn __cudaRegisterFunction(
    fatCubinHandle: *mut *mut c_void,
    hostFun: *const c_char,
    _deviceFun: *mut c_char,
    deviceName: *const c_char,
    _thread_limit: i32,
    _tid: *mut uint3,
    _bid: *mut uint3,
    _bDim: *mut dim3,
    _gDim: *mut dim3,
    _wSize: *mut i32,
) {
    // SAFETY: nvcc's code gives the kernel's name as a C string.
    unsafe { registry::add_kernel(fatCubinHandle, hostFun, deviceName) }
}

pub unsafe extern "C-unwind" fn __cudaRegisterVar(
    fatCubinHandle: *mut *mut c_void,
    hostVar: *mut c_char,
    _deviceAddress: *mut c_char,
    deviceName: *const c_char,
    _ext: i32,
    size: usize,
    _constant: i32,
    _global: i32,
) {
    // SAFETY: nvcc's code gives the variable's name as a C string.
    unsafe { registry::add_variable(fatCubinHandle, hostVar.cast(), deviceName, size) }
}

pub unsafe extern "C-unwind" fn __cudaRegisterManagedVar(
    fatCubinHandle: *mut *mut c_void,
    hostVarPtrAddress: *mut *mut c_void,
    _deviceAddress: *mut c_char,
    deviceName: *const c_char,
    _ext: i32,
    size: usize,
    _constant: i32,
    _global: i32,
) {
    // SAFETY: nvcc's code gives the variable's name as a C string, and a static of its own.
    unsafe { registry::add_managed(fatCubinHandle, hostVarPtrAddress, deviceName, size) }
}

pub unsafe extern "C-unwind" fn __cudaInitModule(fatCubinHandle: *mut *mut c_void) -> c_char {
    c_char::from(registry::initialise(fatCubinHandle))
}
