//! Managed memory.

use core::ffi::c_void;
use core::ptr::null_mut;

use crate::prelude::*;

/// Where the interface of CUDA 12 names a device, or -1 for the host.
fn location(device: i32) -> CUmemLocation {
    let mut location = CUmemLocation {
        type_: if device == -1 {
            CU_MEM_LOCATION_TYPE_HOST
        } else {
            CU_MEM_LOCATION_TYPE_DEVICE
        },
        ..Default::default()
    };
    if device != -1 {
        location.anonymous1.id = device;
    }
    location
}

/// A location of the runtime as the driver's: they are laid out alike.
pub fn same(location: cudaMemLocation) -> CUmemLocation {
    let mut driver = CUmemLocation {
        type_: CUmemLocationType(location.type_.0),
        ..Default::default()
    };
    // SAFETY: the union is a number in both, and any bytes are one.
    driver.anonymous1.id = unsafe { location.anonymous1.id };
    driver
}

entry! {
    cudaMallocManaged(devPtr: *mut *mut c_void, size: usize, flags: u32) {
        refuse(devPtr.is_null(), cudaErrorInvalidValue)?;
        context()?;
        if size == 0 {
            *devPtr = null_mut();
            return Err(cudaErrorInvalidValue);
        }
        let mut address = 0;
        cu!(cuMemAllocManaged(&mut address, size, flags));
        *devPtr = address as *mut c_void;
        Ok(())
    }

    cudaMemPrefetchAsync | cudaMemPrefetchAsync_ptsz by stream (
        devPtr: *const c_void, count: usize, to: cudaMemLocation, flags: u32, stream: cudaStream_t,
    ) {
        context()?;
        cu!(cuMemPrefetchAsync_v2(devPtr as CUdeviceptr, count, same(to), flags, stream));
        Ok(())
    }

    cudaMemPrefetchAsync_12 | cudaMemPrefetchAsync_12_ptsz by stream (
        devPtr: *const c_void, count: usize, dstDevice: i32, stream: cudaStream_t,
    ) {
        context()?;
        cu!(cuMemPrefetchAsync_v2(devPtr as CUdeviceptr, count, location(dstDevice), 0, stream));
        Ok(())
    }

    cudaMemAdvise(devPtr: *const c_void, count: usize, advice: cudaMemoryAdvise, of: cudaMemLocation) {
        context()?;
        cu!(cuMemAdvise_v2(devPtr as CUdeviceptr, count, CUmem_advise(advice.0), same(of)));
        Ok(())
    }

    cudaMemAdvise_12(devPtr: *const c_void, count: usize, advice: cudaMemoryAdvise, device: i32) {
        context()?;
        cu!(cuMemAdvise_v2(devPtr as CUdeviceptr, count, CUmem_advise(advice.0), location(device)));
        Ok(())
    }

    cudaMemRangeGetAttribute(
        data: *mut c_void, dataSize: usize, attribute: cudaMemRangeAttribute, devPtr: *const c_void, count: usize,
    ) {
        context()?;
        cu!(cuMemRangeGetAttribute(
            data, dataSize, CUmem_range_attribute(attribute.0), devPtr as CUdeviceptr, count
        ));
        Ok(())
    }

    cudaMemRangeGetAttributes(
        data: *mut *mut c_void, dataSizes: *mut usize, attributes: *mut cudaMemRangeAttribute, numAttributes: usize,
        devPtr: *const c_void, count: usize,
    ) {
        context()?;
        cu!(cuMemRangeGetAttributes(
            data, dataSizes, attributes.cast(), numAttributes, devPtr as CUdeviceptr, count
        ));
        Ok(())
    }
}
