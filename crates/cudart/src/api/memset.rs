//! Filling memory with a byte.

use core::ffi::c_void;

use crate::prelude::*;

/// # Safety
/// As cudaMemset2DAsync asks.
unsafe fn rows(
    address: *mut c_void,
    pitch: usize,
    value: i32,
    width: usize,
    height: usize,
    stream: cudaStream_t,
    asynchronous: bool,
) -> Result<()> {
    context()?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    let address = address as CUdeviceptr;
    // SAFETY: the caller vouches for the memory; the driver looks at it.
    unsafe {
        match (asynchronous || !stream.is_null(), height) {
            (true, 1) => cu!(cuMemsetD8Async(address, value as u8, width, stream)),
            (true, _) => cu!(cuMemsetD2D8Async(
                address,
                pitch,
                value as u8,
                width,
                height,
                stream
            )),
            (false, 1) => cu!(cuMemsetD8_v2(address, value as u8, width)),
            (false, _) => cu!(cuMemsetD2D8_v2(address, pitch, value as u8, width, height)),
        }
    }
    Ok(())
}

/// # Safety
/// As cudaMemset3DAsync asks.
unsafe fn slices(
    memory: cudaPitchedPtr,
    value: i32,
    extent: cudaExtent,
    stream: cudaStream_t,
    asynchronous: bool,
) -> Result<()> {
    for slice in 0..extent.depth {
        // SAFETY: the caller vouches for a slice of `ysize` rows at each step.
        unsafe {
            let address = memory.ptr.byte_add(slice * memory.pitch * memory.ysize);
            rows(
                address,
                memory.pitch,
                value,
                extent.width,
                extent.height,
                stream,
                asynchronous,
            )?;
        }
    }
    Ok(())
}

entry! {
    cudaMemset | cudaMemset_ptds on stream (devPtr: *mut c_void, value: i32, count: usize) {
        rows(devPtr, count, value, count, 1, stream, false)
    }

    cudaMemsetAsync | cudaMemsetAsync_ptsz by stream (
        devPtr: *mut c_void, value: i32, count: usize, stream: cudaStream_t,
    ) {
        rows(devPtr, count, value, count, 1, stream, true)
    }

    cudaMemset2D | cudaMemset2D_ptds on stream (
        devPtr: *mut c_void, pitch: usize, value: i32, width: usize, height: usize,
    ) {
        rows(devPtr, pitch, value, width, height, stream, false)
    }

    cudaMemset2DAsync | cudaMemset2DAsync_ptsz by stream (
        devPtr: *mut c_void, pitch: usize, value: i32, width: usize, height: usize, stream: cudaStream_t,
    ) {
        rows(devPtr, pitch, value, width, height, stream, true)
    }

    cudaMemset3D | cudaMemset3D_ptds on stream (pitchedDevPtr: cudaPitchedPtr, value: i32, extent: cudaExtent) {
        slices(pitchedDevPtr, value, extent, stream, false)
    }

    cudaMemset3DAsync | cudaMemset3DAsync_ptsz by stream (
        pitchedDevPtr: cudaPitchedPtr, value: i32, extent: cudaExtent, stream: cudaStream_t,
    ) {
        slices(pitchedDevPtr, value, extent, stream, true)
    }
}
