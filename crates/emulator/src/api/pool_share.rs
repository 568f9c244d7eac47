//! Memory pools of one process in another. Rules and codes: the driver API's manual, "Stream Ordered Memory Allocator".

use super::args::{Handle, InMut, Out};
use super::ipc::{key, register, share};
use super::pool::known;
use super::shareable::{check_type, received};
use crate::driver::driver;
use crate::handle;
use crate::memory::allocation::Kind;
use crate::memory::imported::{Imported, Own};
use crate::pool::MemoryPool;
use divvy_abi::*;
use divvy_device::shared::key::{Key, Lock};
use divvy_device::shared::trailer;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

entry! {
    fn cuMemPoolExportToShareableHandle(
        shareable: Out<c_void>, pool: Handle<CUmemoryPool>, handle_type: CUmemAllocationHandleType, flags: u64
    ) {
        shareable.required()?;
        let driver = driver()?;
        let pool = known(driver, pool.0)?;
        check_type(handle_type)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let name = pool.name.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let fd = name.export(driver.devices[pool.device].facts.uuid).map_err(|why| {
            divvy_device::log::line(format_args!("cuMemPoolExportToShareableHandle: {why}"));
            CUDA_ERROR_OPERATING_SYSTEM
        })?;
        shareable.set_as(fd.into_raw_fd())
    }

    // The import gives the right to import pointers: nothing can be allocated from it.
    fn cuMemPoolImportFromShareableHandle(
        pool: Out<CUmemoryPool>,
        shareable: Handle<*mut c_void>,
        handle_type: CUmemAllocationHandleType,
        flags: u64,
    ) {
        pool.required()?;
        let driver = driver()?;
        check_type(handle_type)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (_fd, trailer) = received(shareable.0)?;
        if trailer.kind != trailer::Kind::Pool {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let device = driver.devices.iter().find(|device| device.facts.uuid == trailer.device);
        let device = device.ok_or(CUDA_ERROR_INVALID_DEVICE)?;
        let handle = handle::fresh();
        driver.pools.insert(handle, MemoryPool::imported(handle, device.ordinal, Arc::clone(&device.heap), trailer.id));
        pool.set(handle as CUmemoryPool)
    }

    fn cuMemPoolExportPointer(data: Out<CUmemPoolPtrExportData>, pointer: u64) {
        data.required()?;
        let driver = driver()?;
        let allocation = driver.addresses.live.find(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let Kind::Pooled { pool } = allocation.kind else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let pool = driver.pools.get(pool).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let name = pool.name.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let place = share(&driver.devices[pool.device], &allocation)?;
        data.set(CUmemPoolPtrExportData { reserved: key(Lock::Pooled, name.id.0, place, &allocation).to_bytes() })
    }

    fn cuMemPoolImportPointer(
        pointer: Out<CUdeviceptr>, pool: Handle<CUmemoryPool>, data: InMut<CUmemPoolPtrExportData>
    ) {
        pointer.required()?;
        let driver = driver()?;
        let pool = known(driver, pool.0)?;
        let source = pool.source.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let key = Key::read(&data.read().get()?.reserved, Lock::Pooled).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if key.scope != source.0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let imported = Imported::open(&driver.devices[pool.device], key, Own::Mapped);
        let imported = imported.map_err(|why| if why == CUDA_ERROR_INVALID_HANDLE { CUDA_ERROR_INVALID_VALUE } else { why })?;
        pointer.set(register(driver, imported, pool.handle, 0, pool.device)?)
    }
}
