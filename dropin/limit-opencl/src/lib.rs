//! The limiter's library for OpenCL: a layer that the ICD loader puts in front of every driver.

use core::ffi::c_void;

/// What the layer tells the loader of itself.
///
/// # Safety
/// As the extension cl_loader_layers says of `clGetLayerInfo`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn clGetLayerInfo(name: u32, size: usize, value: *mut c_void, out: *mut usize) -> i32 {
    // SAFETY: the arguments are handed on as they came.
    unsafe { divvy_opencl::get_layer_info(name, size, value, out) }
}

/// Puts the layer in front of a table of functions.
///
/// # Safety
/// As the extension cl_loader_layers says of `clInitLayer`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn clInitLayer(
    count: u32,
    target: *const *const c_void,
    count_out: *mut u32,
    table_out: *mut *const *const c_void,
) -> i32 {
    // SAFETY: the arguments are handed on as they came.
    unsafe { divvy_opencl::init_layer(count, target, count_out, table_out) }
}

/// The settings are read before the program runs, so that it may clean its environment.
#[used]
#[unsafe(link_section = ".init_array")]
static CAPTURE_ENVIRONMENT: extern "C" fn() = divvy_opencl::capture_environment;
