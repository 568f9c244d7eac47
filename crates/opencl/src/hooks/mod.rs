//! The layer's own functions, one file for each area. Each catches its own panics.

mod context;
mod device;
mod extension;
mod image;
mod launch;
mod object;
mod queue;
mod svm;

use core::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::dispatch::Entry;

/// Runs `body`; a panic inside ends here.
pub(crate) fn guarded<T>(failed: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

/// The layer's function for an entry point that is asked for by its name.
pub(crate) fn named(name: &CStr) -> Option<*mut c_void> {
    let name = name.to_str().ok()?;
    let (_, address) = all().find(|(entry, _)| format!("{entry:?}") == name)?;
    Some(address.cast_mut())
}

macro_rules! table {
    ($($area:ident: $($name:ident)*;)*) => {
        /// The entry points that the layer has functions for, with their addresses.
        pub(crate) fn all() -> impl Iterator<Item = (Entry, *const c_void)> {
            [$($((Entry::$name, $area::$name as *const c_void),)*)*].into_iter()
        }
    };
}

table! {
    device: clGetDeviceInfo;
    context: clCreateContext clCreateContextFromType;
    queue: clCreateCommandQueue clCreateCommandQueueWithProperties clRetainCommandQueue clReleaseCommandQueue;
    object: clCreateBuffer clCreateBufferWithProperties clCreatePipe;
    image: clCreateImage clCreateImageWithProperties clCreateImage2D clCreateImage3D;
    svm: clSVMAlloc clSVMFree clEnqueueSVMFree;
    launch: clEnqueueNDRangeKernel clEnqueueTask clEnqueueNativeKernel;
    extension: clGetExtensionFunctionAddress clGetExtensionFunctionAddressForPlatform;
}
