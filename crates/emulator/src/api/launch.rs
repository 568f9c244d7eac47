//! Launching kernels.

use super::args::{Handle, In, InMut, stream_name};
use super::find;
use super::stream_name::StreamName;
use crate::Result;
use crate::driver::driver;
use crate::graph::capture::Target;
use crate::graph::kernel::{Attributes, KernelWork};
use crate::graph::work::Work;
use crate::launch::{self, Geometry};
use crate::params;
use divvy_abi::*;

/// cuLaunchKernel and cuLaunchCooperativeKernel, whose blocks can wait for one another, in one variant each. The
/// parameter list in parentheses is what C passes behind the kernel's parameters.
macro_rules! launch_kernel {
    ($($name:ident $per_thread:literal $cooperative:literal ($($extra:ident)?))*) => {$(
        /// Launches a kernel.
        ///
        /// # Safety
        /// As CUDA says: the parameter lists describe the kernel's parameters.
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C-unwind" fn $name(
            function: CUfunction,
            grid_x: u32,
            grid_y: u32,
            grid_z: u32,
            block_x: u32,
            block_y: u32,
            block_z: u32,
            shared_bytes: u32,
            stream: CUstream,
            params: *mut *mut c_void,
            $($extra: *mut *mut c_void,)?
        ) -> CUresult {
            let geometry = Geometry {
                grid: [grid_x, grid_y, grid_z],
                block: [block_x, block_y, block_z],
                shared_bytes,
                cooperative: $cooperative,
            };
            let stream = stream_name(stream, $per_thread);
            let extras: &[*mut *mut c_void] = &[$($extra)?];
            let extra = extras.first().copied().unwrap_or(std::ptr::null_mut());
            super::answer(|| {
                // SAFETY: the program vouches for its parameter lists.
                unsafe { start(function as u64, geometry, stream, params, extra) }
            })
        }
    )*};
}

launch_kernel! {
    cuLaunchKernel false false (extra)
    cuLaunchKernel_ptsz true false (extra)
    cuLaunchCooperativeKernel false true ()
    cuLaunchCooperativeKernel_ptsz true true ()
}

entry! {
    fn cuLaunchKernelEx(
        config: In<CUlaunchConfig>,
        function: Handle<CUfunction>,
        params: InMut<*mut c_void>,
        extra: InMut<*mut c_void>,
    ) {
        start_ex(&config.get()?, function.0, false, &params, &extra)
    }

    fn cuLaunchKernelEx_ptsz(
        config: In<CUlaunchConfig>,
        function: Handle<CUfunction>,
        params: InMut<*mut c_void>,
        extra: InMut<*mut c_void>,
    ) {
        start_ex(&config.get()?, function.0, true, &params, &extra)
    }
}

fn start_ex(
    config: &CUlaunchConfig,
    function: u64,
    per_thread: bool,
    params: &InMut<*mut c_void>,
    extra: &InMut<*mut c_void>,
) -> Result {
    let mut geometry = Geometry {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared_bytes: config.sharedMemBytes,
        cooperative: false,
    };
    // SAFETY: the program's list has as many entries as it says.
    let list = unsafe { params::list(config.attrs, config.numAttrs as usize) }?;
    let attributes = Attributes::read(list, &mut geometry)?;
    let stream = stream_name(config.hStream, per_thread);
    // SAFETY: the program vouches for its parameter lists.
    unsafe {
        start_with(
            function,
            geometry,
            attributes,
            stream,
            params.pointer(),
            extra.pointer(),
        )
    }
}

/// # Safety
/// `params`, or else `extra`, describes the kernel's parameters as cuLaunchKernel requires.
unsafe fn start(
    function: u64,
    geometry: Geometry,
    stream: StreamName,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    // SAFETY: promised by the caller.
    unsafe { start_with(function, geometry, Attributes::default(), stream, params, extra) }
}

/// # Safety
/// As for [`start`].
unsafe fn start_with(
    function: u64,
    geometry: Geometry,
    attributes: Attributes,
    stream: StreamName,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    let target = stream.target()?;
    let driver = driver()?;
    let modules = &driver.modules;
    match target {
        Target::Queue(queue) => {
            let function = find::target(function)?.function(&queue.context, modules)?;
            // SAFETY: promised by the caller.
            let bytes = unsafe { params::gather(function.kernel(), params, extra) }?;
            launch::submit(&driver.launcher, function, geometry, bytes, &queue)
        }
        Target::Capture(recorder) => {
            let found = find::target(function)?.function(&recorder.queue.context, modules)?;
            if found.instance.context.id != recorder.queue.context.id {
                return Err(CUDA_ERROR_INVALID_HANDLE);
            }
            let func = found.handle;
            // SAFETY: promised by the caller.
            let mut work = unsafe { KernelWork::gather(found, func, 0, geometry, params, extra) }?;
            work.attributes = attributes;
            work.attributes.set_priority(recorder.queue.priority);
            recorder.add(Work::Kernel(work)).map(drop)
        }
    }
}
