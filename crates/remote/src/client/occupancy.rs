//! How large blocks had best be. A program may say by a function of its own how much shared memory a block of each size takes, so
//! the sizes are tried here, and the server is asked how many blocks of each fit.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::TABLE;

/// Blocks are made of so many threads, or of a multiple: a warp.
const WARP: i32 = 32;

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuOccupancyMaxPotentialBlockSize(
    minGridSize: *mut i32,
    blockSize: *mut i32,
    func: CUfunction,
    blockSizeToDynamicSMemSize: CUoccupancyB2DSize,
    dynamicSMemSize: usize,
    blockSizeLimit: i32,
) -> CUresult {
    // SAFETY: as the caller says.
    unsafe {
        cuOccupancyMaxPotentialBlockSizeWithFlags(
            minGridSize,
            blockSize,
            func,
            blockSizeToDynamicSMemSize,
            dynamicSMemSize,
            blockSizeLimit,
            0,
        )
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    minGridSize: *mut i32,
    blockSize: *mut i32,
    func: CUfunction,
    blockSizeToDynamicSMemSize: CUoccupancyB2DSize,
    dynamicSMemSize: usize,
    blockSizeLimit: i32,
    flags: u32,
) -> CUresult {
    if minGridSize.is_null() || blockSize.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let shared_for = |threads: i32| match blockSizeToDynamicSMemSize {
        // SAFETY: the program vouches for its function.
        Some(shared_for) => unsafe { shared_for(threads) },
        None => dynamicSMemSize,
    };
    match best(func, shared_for, blockSizeLimit, flags) {
        Ok((grid, block)) => {
            // SAFETY: the program vouches for its pointers, which are not null.
            unsafe {
                minGridSize.write(grid);
                blockSize.write(block);
            }
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

/// The grid that fills the device, and the size of its blocks: of all sizes in whole warps from the largest down, the first with
/// the most threads on a multiprocessor.
fn best(
    function: CUfunction,
    shared_for: impl Fn(i32) -> usize,
    limit: i32,
    flags: u32,
) -> Result<(i32, i32), CUresult> {
    let (mut device, mut multiprocessors, mut most) = (0, 0, 0);
    // SAFETY: each call writes one number to memory of ours.
    unsafe {
        done((TABLE.cuCtxGetDevice)(&raw mut device))?;
        done((TABLE.cuDeviceGetAttribute)(
            &raw mut multiprocessors,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            device,
        ))?;
        done((TABLE.cuFuncGetAttribute)(
            &raw mut most,
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
            function,
        ))?;
    }
    if limit > 0 {
        most = most.min(limit);
    }
    let mut best = (0, 0);
    let mut threads = most;
    while threads > 0 {
        let mut blocks = 0;
        // SAFETY: as above.
        done(unsafe {
            (TABLE.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(
                &raw mut blocks,
                function,
                threads,
                shared_for(threads),
                flags,
            )
        })?;
        if blocks * threads > best.0 * best.1 {
            best = (blocks, threads);
        }
        threads = (threads - 1) / WARP * WARP;
    }
    let (blocks, threads) = best;
    Ok((blocks * multiprocessors, threads))
}

fn done(code: CUresult) -> Result<(), CUresult> {
    match code {
        CUDA_SUCCESS => Ok(()),
        code => Err(code),
    }
}
