//! Physical memory as a descriptor that another process can have: cuMemExportToShareableHandle and back.
//!
//! The manual, "Virtual Memory Management": memory is freed "when all outstanding mappings to the memory are unmapped
//! and when all outstanding references to the handle (including its shareable counterparts) are also released". Here a
//! descriptor that was never imported keeps the bytes and is not counted as device memory (docs/adr/0020 says what
//! would count it).

use super::args::{Handle, Out};
use super::vmm::check_handle_types;
use crate::Result;
use crate::driver::driver;
use crate::memory::physical::Physical;
use divvy_abi::*;
use divvy_device::memory::file::Identity;
use divvy_device::shared::trailer::Trailer;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

entry! {
    fn cuMemExportToShareableHandle(
        shareable: Out<c_void>, handle: u64, handle_type: CUmemAllocationHandleType, flags: u64
    ) {
        shareable.required()?;
        let driver = driver()?;
        let physical = driver.physical.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        check_type(handle_type)?;
        if flags != 0 || physical.handle_types & handle_type.0 == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        shareable.set_as(physical.export(&driver.devices)?.into_raw_fd())
    }

    // The descriptor stays the program's.
    fn cuMemImportFromShareableHandle(
        handle: Out<CUmemGenericAllocationHandle>,
        shareable: Handle<*mut c_void>,
        handle_type: CUmemAllocationHandleType,
    ) {
        handle.required()?;
        let driver = driver()?;
        check_type(handle_type)?;
        let (fd, trailer) = received(shareable.0)?;
        let identity = Identity::of(&fd).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let physical = match driver.physical.of_file(identity) {
            Some(known) => known,
            None => Arc::new(Physical::import(&driver.devices, fd, trailer)?),
        };
        handle.set(driver.physical.retain(physical))
    }
}

/// Refuses what is not a descriptor.
pub fn check_type(handle_type: CUmemAllocationHandleType) -> Result {
    match handle_type {
        CU_MEM_HANDLE_TYPE_NONE => Err(CUDA_ERROR_INVALID_VALUE),
        handle_type => check_handle_types(handle_type),
    }
}

/// A copy of a descriptor that the program passes in place of a pointer, and what it stands for.
pub fn received(shareable: u64) -> Result<(OwnedFd, Trailer)> {
    let number = i32::try_from(shareable).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: a number from 0 up is a descriptor or none, and the system says which.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let trailer = Trailer::read(std::os::fd::AsFd::as_fd(&fd)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok((fd, trailer))
}
