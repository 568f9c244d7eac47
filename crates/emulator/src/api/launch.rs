//! Launching kernels.

use super::args::{Handle, In, InMut, stream_name};
use crate::Result;
use crate::function::Target;
use crate::launch::{self, Geometry};
use crate::stream::StreamName;
use divvy_abi::*;

/// cuLaunchKernel in one variant.
macro_rules! launch_kernel {
    ($($name:ident $per_thread:literal)*) => {$(
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
            extra: *mut *mut c_void,
        ) -> CUresult {
            let geometry = Geometry {
                grid: [grid_x, grid_y, grid_z],
                block: [block_x, block_y, block_z],
                shared_bytes,
                cooperative: false,
            };
            let stream = stream_name(stream, $per_thread);
            super::answer(|| {
                // SAFETY: the program vouches for its parameter lists.
                unsafe { start(function as u64, geometry, stream, params, extra) }
            })
        }
    )*};
}

launch_kernel! { cuLaunchKernel false cuLaunchKernel_ptsz true }

/// cuLaunchCooperativeKernel in one variant.
macro_rules! launch_cooperative {
    ($($name:ident $per_thread:literal)*) => {$(
        /// Launches a kernel whose blocks can wait for one another.
        ///
        /// # Safety
        /// As CUDA says: the parameter list describes the kernel's parameters.
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
        ) -> CUresult {
            let geometry = Geometry {
                grid: [grid_x, grid_y, grid_z],
                block: [block_x, block_y, block_z],
                shared_bytes,
                cooperative: true,
            };
            let stream = stream_name(stream, $per_thread);
            super::answer(|| {
                // SAFETY: the program vouches for its parameter list.
                unsafe { start(function as u64, geometry, stream, params, std::ptr::null_mut()) }
            })
        }
    )*};
}

launch_cooperative! { cuLaunchCooperativeKernel false cuLaunchCooperativeKernel_ptsz true }

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
    let attributes = unsafe { list(config.attrs, config.numAttrs as usize) }?;
    for attribute in attributes {
        match attribute.id {
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                // SAFETY: this attribute's value is the member `cooperative`, and any bits are an i32.
                geometry.cooperative = unsafe { attribute.value.cooperative } != 0;
            }
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => {
                // SAFETY: this attribute's value is the member `clusterDim`, and any bits are numbers.
                let size = unsafe { attribute.value.clusterDim };
                if (size.x, size.y, size.z) != (1, 1, 1) {
                    return Err(CUDA_ERROR_NOT_SUPPORTED);
                }
            }
            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
            | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT
            | CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => return Err(CUDA_ERROR_NOT_SUPPORTED),
            // The others are hints, or permissions that need not be used.
            _ => {}
        }
    }
    let stream = stream_name(config.hStream, per_thread);
    // SAFETY: the program vouches for its parameter lists.
    unsafe { start(function, geometry, stream, params.pointer(), extra.pointer()) }
}

/// # Safety
/// `first` points to `count` entries.
unsafe fn list<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    match (count, first.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(CUDA_ERROR_INVALID_VALUE),
        // SAFETY: promised by the caller.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
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
    let queue = stream.queue()?;
    let function = Target::find(function)?.function(&queue.context)?;
    let kernel = function.kernel();
    let mut bytes = vec![0; kernel.param_bytes as usize];
    if !params.is_null() && !extra.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if !params.is_null() {
        for (at, param) in kernel.params.iter().enumerate() {
            // SAFETY: the list has one entry for each parameter.
            let value = unsafe { params.add(at).read() };
            if value.is_null() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: each entry points to a value of the parameter's size.
            let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), param.size as usize) };
            let start = param.offset as usize;
            bytes
                .get_mut(start..start + value.len())
                .ok_or(CUDA_ERROR_INVALID_VALUE)?
                .copy_from_slice(value);
        }
    } else if !extra.is_null() {
        // SAFETY: promised by the caller.
        let buffer = unsafe { packed(extra) }?;
        if buffer.len() < bytes.len() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        bytes.copy_from_slice(&buffer[..kernel.param_bytes as usize]);
    } else if !kernel.params.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    launch::submit(function, geometry, bytes, &queue)
}

/// The parameter buffer of an `extra` list.
///
/// # Safety
/// `extra` is a list of keys and values that ends with CU_LAUNCH_PARAM_END.
unsafe fn packed<'a>(extra: *mut *mut c_void) -> Result<&'a [u8]> {
    let (mut buffer, mut size) = (std::ptr::null::<u8>(), 0);
    let mut entry = extra;
    loop {
        // SAFETY: the list goes on until its end is read.
        let key = unsafe { entry.read() };
        if key == CU_LAUNCH_PARAM_END {
            break;
        }
        // SAFETY: a key other than the end is followed by its value.
        let value = unsafe { entry.add(1).read() };
        match key {
            CU_LAUNCH_PARAM_BUFFER_POINTER => buffer = value.cast(),
            CU_LAUNCH_PARAM_BUFFER_SIZE if !value.is_null() => {
                // SAFETY: this key's value points to the size.
                size = unsafe { value.cast::<usize>().read() };
            }
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        // SAFETY: the value just read was inside the list, so one past it is too.
        entry = unsafe { entry.add(2) };
    }
    // SAFETY: the buffer is as long as the list says.
    unsafe { list(buffer, size) }
}
