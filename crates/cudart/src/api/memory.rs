//! Memory of the device and of the host.

use core::ffi::c_void;
use core::ptr::null_mut;

use crate::prelude::*;

/// The alignment of rows that NVIDIA's devices have.
const ELEMENT_BYTES: u32 = 16;

/// # Safety
/// The pointers are those of an address and of a size.
unsafe fn pitched(address: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) -> Result<()> {
    refuse(address.is_null() || pitch.is_null(), cudaErrorInvalidValue)?;
    context()?;
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        if width == 0 || height == 0 {
            *address = null_mut();
            *pitch = 0;
            return Ok(());
        }
        let mut device = 0;
        cu!(cuMemAllocPitch_v2(
            &mut device,
            pitch,
            width,
            height,
            ELEMENT_BYTES
        ));
        *address = device as *mut c_void;
    }
    Ok(())
}

entry! {
    cudaMalloc(devPtr: *mut *mut c_void, size: usize) {
        refuse(devPtr.is_null(), cudaErrorInvalidValue)?;
        context()?;
        if size == 0 {
            *devPtr = null_mut();
            return Ok(());
        }
        let mut address = 0;
        cu!(cuMemAlloc_v2(&mut address, size));
        *devPtr = address as *mut c_void;
        Ok(())
    }

    cudaMallocPitch(devPtr: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) {
        pitched(devPtr, pitch, width, height)
    }

    cudaMalloc3D(pitchedDevPtr: *mut cudaPitchedPtr, extent: cudaExtent) {
        refuse(pitchedDevPtr.is_null(), cudaErrorInvalidValue)?;
        let rows = extent.height.checked_mul(extent.depth).ok_or(cudaErrorMemoryAllocation)?;
        let (mut address, mut pitch) = (null_mut(), 0);
        pitched(&mut address, &mut pitch, extent.width, rows)?;
        *pitchedDevPtr = cudaPitchedPtr { ptr: address, pitch, xsize: extent.width, ysize: extent.height };
        Ok(())
    }

    cudaFree(devPtr: *mut c_void) {
        context()?;
        if devPtr.is_null() {
            return Ok(());
        }
        cu!(cuMemFree_v2(devPtr as CUdeviceptr));
        Ok(())
    }

    cudaMallocHost(ptr: *mut *mut c_void, size: usize) {
        refuse(ptr.is_null(), cudaErrorInvalidValue)?;
        context()?;
        if size == 0 {
            *ptr = null_mut();
            return Ok(());
        }
        cu!(cuMemHostAlloc(ptr, size, 0));
        Ok(())
    }

    cudaHostAlloc(pHost: *mut *mut c_void, size: usize, flags: u32) {
        refuse(pHost.is_null(), cudaErrorInvalidValue)?;
        context()?;
        if size == 0 {
            *pHost = null_mut();
            return Ok(());
        }
        cu!(cuMemHostAlloc(pHost, size, flags));
        Ok(())
    }

    cudaFreeHost(ptr: *mut c_void) {
        context()?;
        if ptr.is_null() {
            return Ok(());
        }
        cu!(cuMemFreeHost(ptr));
        Ok(())
    }

    cudaHostRegister(ptr: *mut c_void, size: usize, flags: u32) {
        context()?;
        cu!(cuMemHostRegister_v2(ptr, size, flags));
        Ok(())
    }

    cudaHostUnregister(ptr: *mut c_void) {
        context()?;
        cu!(cuMemHostUnregister(ptr));
        Ok(())
    }

    cudaHostGetDevicePointer(pDevice: *mut *mut c_void, pHost: *mut c_void, flags: u32) {
        refuse(pDevice.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let mut address = 0;
        cu!(cuMemHostGetDevicePointer_v2(&mut address, pHost, flags));
        *pDevice = address as *mut c_void;
        Ok(())
    }

    cudaHostGetFlags(pFlags: *mut u32, pHost: *mut c_void) {
        refuse(pFlags.is_null(), cudaErrorInvalidValue)?;
        context()?;
        cu!(cuMemHostGetFlags(pFlags, pHost));
        Ok(())
    }

    cudaMemGetInfo(free: *mut usize, total: *mut usize) {
        context()?;
        let (mut free_now, mut all) = (0, 0);
        cu!(cuMemGetInfo_v2(&mut free_now, &mut all));
        if !free.is_null() {
            *free = free_now;
        }
        if !total.is_null() {
            *total = all;
        }
        Ok(())
    }

    cudaPointerGetAttributes(attributes: *mut cudaPointerAttributes, ptr: *const c_void) {
        refuse(attributes.is_null(), cudaErrorInvalidValue)?;
        let found = pointer(ptr)?;
        *attributes = cudaPointerAttributes {
            type_: found.type_,
            device: found.device,
            devicePointer: found.devicePointer,
            hostPointer: found.hostPointer,
            ..Default::default()
        };
        Ok(())
    }

    cudaPointerGetAttributes_12(attributes: *mut cudaPointerAttributes_12, ptr: *const c_void) {
        refuse(attributes.is_null(), cudaErrorInvalidValue)?;
        *attributes = pointer(ptr)?;
        Ok(())
    }
}

fn pointer(ptr: *const c_void) -> Result<cudaPointerAttributes_12> {
    context()?;
    let (mut kind, mut managed, mut device) = (0_u32, 0_u32, 0_i32);
    let (mut on_device, mut on_host): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
    let mut which = [
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
    ];
    let mut places = [
        (&raw mut kind).cast(),
        (&raw mut managed).cast(),
        (&raw mut device).cast(),
        (&raw mut on_device).cast::<c_void>(),
    ];
    // SAFETY: each place holds what its attribute is.
    unsafe {
        cu!(cuPointerGetAttributes(
            which.len() as u32,
            which.as_mut_ptr(),
            places.as_mut_ptr(),
            ptr as CUdeviceptr
        ));
    }
    // A host's pointer to memory of the device is a question that the driver refuses.
    // SAFETY: the place is that of an address.
    unsafe {
        let driver = crate::driver::table()?;
        let place = (&raw mut on_host).cast();
        let answer =
            (driver.cuPointerGetAttribute)(place, CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr as CUdeviceptr);
        if answer != CUDA_SUCCESS {
            on_host = null_mut();
        }
    }
    let kind = if managed != 0 {
        cudaMemoryTypeManaged
    } else {
        match CUmemorytype(kind) {
            CU_MEMORYTYPE_HOST => cudaMemoryTypeHost,
            CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_ARRAY => cudaMemoryTypeDevice,
            CU_MEMORYTYPE_UNIFIED => cudaMemoryTypeManaged,
            _ => {
                return Ok(cudaPointerAttributes_12 {
                    type_: cudaMemoryTypeUnregistered,
                    device: -2,
                    devicePointer: null_mut(),
                    hostPointer: ptr.cast_mut(),
                });
            }
        }
    };
    Ok(cudaPointerAttributes_12 {
        type_: kind,
        device,
        devicePointer: on_device,
        hostPointer: on_host,
    })
}
