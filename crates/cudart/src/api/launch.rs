//! Launches.

use core::cell::RefCell;
use core::ffi::c_void;
use core::ptr::null_mut;

use crate::prelude::*;
use crate::registry;

/// What `<<<grid, block, shared, stream>>>` says.
#[derive(Clone, Copy)]
struct Configuration {
    grid: dim3,
    block: dim3,
    shared: usize,
    stream: usize,
}

thread_local! {
    /// Configurations of launches whose arguments are being evaluated: `<<<…>>>` pushes one, the kernel's stub pops it.
    static LAUNCHES: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// Pushes what stands in `<<<…>>>`. nvcc's code calls the kernel's stub where the answer is 0.
pub unsafe extern "C-unwind" fn __cudaPushCallConfiguration(
    gridDim: dim3,
    blockDim: dim3,
    sharedMem: usize,
    stream: *mut c_void,
) -> u32 {
    let configuration = Configuration {
        grid: gridDim,
        block: blockDim,
        shared: sharedMem,
        stream: stream as usize,
    };
    LAUNCHES
        .try_with(|launches| launches.borrow_mut().push(configuration))
        .map_or(1, |()| 0)
}

/// Launches a kernel: what all the forms have in common.
///
/// # Safety
/// As cudaLaunchKernel asks.
unsafe fn launch(
    kernel: CUkernel,
    grid: dim3,
    block: dim3,
    arguments: *mut *mut c_void,
    shared: usize,
    stream: cudaStream_t,
    cooperative: bool,
) -> Result<()> {
    let shared_bytes = u32::try_from(shared).map_err(|_| cudaErrorInvalidValue)?;
    // SAFETY: the caller vouches for the arguments; the kernel may stand where a function may.
    let launched = unsafe {
        let driver = crate::driver::table()?;
        if cooperative {
            (driver.cuLaunchCooperativeKernel)(
                kernel.cast(),
                grid.x,
                grid.y,
                grid.z,
                block.x,
                block.y,
                block.z,
                shared_bytes,
                stream,
                arguments,
            )
        } else {
            (driver.cuLaunchKernel)(
                kernel.cast(),
                grid.x,
                grid.y,
                grid.z,
                block.x,
                block.y,
                block.z,
                shared_bytes,
                stream,
                arguments,
                null_mut(),
            )
        }
    };
    match crate::error::check(launched) {
        Err(cudaErrorInvalidValue) => Err(why_invalid(grid, block)?),
        other => other,
    }
}

/// The driver has one code for what a launch cannot have; the runtime has one of its own for sizes of grid and block.
fn why_invalid(grid: dim3, block: dim3) -> Result<cudaError_t> {
    let device = crate::context::current_device()?;
    let limit = |attribute| {
        let mut value = 0;
        // SAFETY: the pointer is that of a number.
        unsafe {
            cu!(cuDeviceGetAttribute(&mut value, attribute, device));
        }
        Ok(value as u64)
    };
    let threads = u64::from(block.x) * u64::from(block.y) * u64::from(block.z);
    let within = |value: u32, attribute| Ok(value > 0 && u64::from(value) <= limit(attribute)?);
    let fits = within(grid.x, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?
        && within(grid.y, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?
        && within(grid.z, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?
        && within(block.x, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?
        && within(block.y, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?
        && within(block.z, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?
        && threads <= limit(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    Ok(if fits {
        cudaErrorInvalidValue
    } else {
        cudaErrorInvalidConfiguration
    })
}

entry! {
    __cudaPopCallConfiguration(gridDim: *mut dim3, blockDim: *mut dim3, sharedMem: *mut usize, stream: *mut c_void) {
        let popped = LAUNCHES.try_with(|launches| launches.borrow_mut().pop());
        let Ok(Some(popped)) = popped else { return Err(cudaErrorMissingConfiguration) };
        *gridDim = popped.grid;
        *blockDim = popped.block;
        *sharedMem = popped.shared;
        *stream.cast::<usize>() = popped.stream;
        Ok(())
    }

    cudaLaunchKernel | cudaLaunchKernel_ptsz by stream (
        func: *const c_void, gridDim: dim3, blockDim: dim3, args: *mut *mut c_void, sharedMem: usize,
        stream: cudaStream_t,
    ) {
        context()?;
        launch(registry::kernel(func)?, gridDim, blockDim, args, sharedMem, stream, false)
    }

    cudaLaunchCooperativeKernel | cudaLaunchCooperativeKernel_ptsz by stream (
        func: *const c_void, gridDim: dim3, blockDim: dim3, args: *mut *mut c_void, sharedMem: usize,
        stream: cudaStream_t,
    ) {
        context()?;
        launch(registry::kernel(func)?, gridDim, blockDim, args, sharedMem, stream, true)
    }

    __cudaLaunchKernel | __cudaLaunchKernel_ptsz by stream (
        kernel: cudaKernel_t, gridDim: dim3, blockDim: dim3, args: *mut *mut c_void, sharedMem: usize,
        stream: cudaStream_t,
    ) {
        context()?;
        refuse(kernel.is_null(), cudaErrorInvalidDeviceFunction)?;
        launch(kernel, gridDim, blockDim, args, sharedMem, stream, false)
    }

    cudaLaunchKernelExC(config: *const cudaLaunchConfig_t, func: *const c_void, args: *mut *mut c_void) {
        extended(config, func, args, false)
    }

    cudaLaunchKernelExC_ptsz(config: *const cudaLaunchConfig_t, func: *const c_void, args: *mut *mut c_void) {
        extended(config, func, args, true)
    }

    __cudaGetKernel(kernel: *mut cudaKernel_t, func: *const c_void) {
        refuse(kernel.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let found = registry::kernel(func)?;
        registry::given(found);
        *kernel = found;
        Ok(())
    }

    cudaGetKernel(kernelPtr: *mut cudaKernel_t, entryFuncAddr: *const c_void) {
        refuse(kernelPtr.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let found = registry::kernel(entryFuncAddr)?;
        registry::given(found);
        *kernelPtr = found;
        Ok(())
    }

    cudaGetFuncBySymbol(functionPtr: *mut cudaFunction_t, symbolPtr: *const c_void) {
        refuse(functionPtr.is_null(), cudaErrorInvalidValue)?;
        *functionPtr = super::function::function(symbolPtr)?;
        Ok(())
    }

    cudaLaunchHostFunc | cudaLaunchHostFunc_ptsz by stream (
        stream: cudaStream_t, function: cudaHostFn_t, userData: *mut c_void,
    ) {
        context()?;
        cu!(cuLaunchHostFunc(stream, function, userData));
        Ok(())
    }

    cudaLaunchHostFunc_v2 | cudaLaunchHostFunc_v2_ptsz by stream (
        stream: cudaStream_t, function: cudaHostFn_t, userData: *mut c_void, syncMode: u32,
    ) {
        context()?;
        cu!(cuLaunchHostFunc_v2(stream, function, userData, syncMode));
        Ok(())
    }
}

/// # Safety
/// As cudaLaunchKernelExC asks.
unsafe fn extended(
    config: *const cudaLaunchConfig_t,
    func: *const c_void,
    args: *mut *mut c_void,
    per_thread: bool,
) -> Result<()> {
    refuse(config.is_null(), cudaErrorInvalidValue)?;
    context()?;
    let kernel = registry::kernel(func)?;
    // SAFETY: the caller vouches for the configuration. A launch's attributes have the same layout in both interfaces.
    unsafe {
        let given = &*config;
        let configuration = CUlaunchConfig {
            gridDimX: given.gridDim.x,
            gridDimY: given.gridDim.y,
            gridDimZ: given.gridDim.z,
            blockDimX: given.blockDim.x,
            blockDimY: given.blockDim.y,
            blockDimZ: given.blockDim.z,
            sharedMemBytes: u32::try_from(given.dynamicSmemBytes).map_err(|_| cudaErrorInvalidValue)?,
            hStream: if per_thread {
                crate::context::own(given.stream)
            } else {
                given.stream
            },
            attrs: given.attrs.cast(),
            numAttrs: given.numAttrs,
        };
        let launched =
            (crate::driver::table()?.cuLaunchKernelEx)(&configuration, kernel.cast(), args, null_mut());
        match crate::error::check(launched) {
            Err(cudaErrorInvalidValue) => Err(why_invalid(given.gridDim, given.blockDim)?),
            other => other,
        }
    }
}
