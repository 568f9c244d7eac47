//! Memory that comes from pools, in the order of streams.

use core::ffi::c_void;

use super::graph_node::pool_properties;
use super::managed::same;
use crate::prelude::*;

entry! {
    cudaMallocAsync | cudaMallocAsync_ptsz by hStream (devPtr: *mut *mut c_void, size: usize, hStream: cudaStream_t) {
        refuse(devPtr.is_null(), cudaErrorInvalidValue)?;
        context()?;
        if size == 0 {
            *devPtr = core::ptr::null_mut();
            return Ok(());
        }
        let mut address = 0;
        cu!(cuMemAllocAsync(&mut address, size, hStream));
        *devPtr = address as *mut c_void;
        Ok(())
    }

    cudaMallocFromPoolAsync | cudaMallocFromPoolAsync_ptsz by stream (
        ptr: *mut *mut c_void, size: usize, memPool: cudaMemPool_t, stream: cudaStream_t,
    ) {
        refuse(ptr.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let mut address = 0;
        cu!(cuMemAllocFromPoolAsync(&mut address, size, memPool, stream));
        *ptr = address as *mut c_void;
        Ok(())
    }

    cudaFreeAsync | cudaFreeAsync_ptsz by hStream (devPtr: *mut c_void, hStream: cudaStream_t) {
        context()?;
        if devPtr.is_null() {
            return Ok(());
        }
        cu!(cuMemFreeAsync(devPtr as CUdeviceptr, hStream));
        Ok(())
    }

    cudaMemPoolCreate(memPool: *mut cudaMemPool_t, poolProps: *const cudaMemPoolProps) {
        refuse(memPool.is_null() || poolProps.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let properties = pool_properties(&*poolProps);
        cu!(cuMemPoolCreate(memPool, &properties));
        Ok(())
    }

    cudaMemPoolDestroy(memPool: cudaMemPool_t) {
        cu!(cuMemPoolDestroy(memPool));
        Ok(())
    }

    cudaMemPoolTrimTo(memPool: cudaMemPool_t, minBytesToKeep: usize) {
        cu!(cuMemPoolTrimTo(memPool, minBytesToKeep));
        Ok(())
    }

    cudaMemPoolSetAttribute(memPool: cudaMemPool_t, attr: cudaMemPoolAttr, value: *mut c_void) {
        cu!(cuMemPoolSetAttribute(memPool, CUmemPool_attribute(attr.0), value));
        Ok(())
    }

    cudaMemPoolGetAttribute(memPool: cudaMemPool_t, attr: cudaMemPoolAttr, value: *mut c_void) {
        cu!(cuMemPoolGetAttribute(memPool, CUmemPool_attribute(attr.0), value));
        Ok(())
    }

    cudaMemPoolSetAccess(memPool: cudaMemPool_t, descList: *const cudaMemAccessDesc, count: usize) {
        // Laid out alike in both interfaces.
        cu!(cuMemPoolSetAccess(memPool, descList.cast(), count));
        Ok(())
    }

    cudaMemPoolGetAccess(flags: *mut cudaMemAccessFlags, memPool: cudaMemPool_t, of: *mut cudaMemLocation) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        let mut location = same(*of);
        cu!(cuMemPoolGetAccess(flags.cast(), memPool, &mut location));
        Ok(())
    }

    cudaMemPoolExportToShareableHandle(
        shareableHandle: *mut c_void, memPool: cudaMemPool_t, handleType: cudaMemAllocationHandleType, flags: u32,
    ) {
        cu!(cuMemPoolExportToShareableHandle(
            shareableHandle, memPool, CUmemAllocationHandleType(handleType.0), u64::from(flags)
        ));
        Ok(())
    }

    cudaMemPoolImportFromShareableHandle(
        memPool: *mut cudaMemPool_t, shareableHandle: *mut c_void, handleType: cudaMemAllocationHandleType, flags: u32,
    ) {
        context()?;
        cu!(cuMemPoolImportFromShareableHandle(
            memPool, shareableHandle, CUmemAllocationHandleType(handleType.0), u64::from(flags)
        ));
        Ok(())
    }

    cudaMemPoolExportPointer(exportData: *mut cudaMemPoolPtrExportData, ptr: *mut c_void) {
        cu!(cuMemPoolExportPointer(exportData.cast(), ptr as CUdeviceptr));
        Ok(())
    }

    cudaMemPoolImportPointer(
        ptr: *mut *mut c_void, memPool: cudaMemPool_t, exportData: *mut cudaMemPoolPtrExportData,
    ) {
        refuse(ptr.is_null(), cudaErrorInvalidValue)?;
        let mut address = 0;
        cu!(cuMemPoolImportPointer(&mut address, memPool, exportData.cast()));
        *ptr = address as *mut c_void;
        Ok(())
    }

    cudaDeviceGetDefaultMemPool(memPool: *mut cudaMemPool_t, device: i32) {
        let device = crate::context::device(device)?;
        cu!(cuDeviceGetDefaultMemPool(memPool, device));
        Ok(())
    }

    cudaDeviceGetMemPool(memPool: *mut cudaMemPool_t, device: i32) {
        let device = crate::context::device(device)?;
        cu!(cuDeviceGetMemPool(memPool, device));
        Ok(())
    }

    cudaDeviceSetMemPool(device: i32, memPool: cudaMemPool_t) {
        let device = crate::context::device(device)?;
        cu!(cuDeviceSetMemPool(device, memPool));
        Ok(())
    }

    cudaMemGetDefaultMemPool(memPool: *mut cudaMemPool_t, of: *mut cudaMemLocation, kind: cudaMemAllocationType) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        let mut location = same(*of);
        cu!(cuMemGetDefaultMemPool(memPool, &mut location, CUmemAllocationType(kind.0)));
        Ok(())
    }

    cudaMemGetMemPool(memPool: *mut cudaMemPool_t, of: *mut cudaMemLocation, kind: cudaMemAllocationType) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        let mut location = same(*of);
        cu!(cuMemGetMemPool(memPool, &mut location, CUmemAllocationType(kind.0)));
        Ok(())
    }

    cudaMemSetMemPool(of: *mut cudaMemLocation, kind: cudaMemAllocationType, memPool: cudaMemPool_t) {
        refuse(of.is_null(), cudaErrorInvalidValue)?;
        let mut location = same(*of);
        cu!(cuMemSetMemPool(&mut location, CUmemAllocationType(kind.0), memPool));
        Ok(())
    }
}
