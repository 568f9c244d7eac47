//! External memory by descriptor. Rules and codes: the driver API's manual, "External Resource Interoperability".
//!
//! The descriptor is that of an emulated device's memory (cuMemExportToShareableHandle) or of any memory file whose
//! size is sealed or can be sealed. Memory that shrinks under a kernel would end the program.

use super::args::{Handle, In, Out};
use super::array::mipmap_of;
use super::current;
use crate::Result;
use crate::array::{Format, levels};
use crate::driver::{Driver, driver};
use crate::external::External;
use crate::memory::allocation::{Allocation, Backing, Kind};
use crate::memory::external::{ExternalMemory, ExternalPart};
use divvy_abi::*;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

entry! {
    // "Ownership of the file descriptor is transferred to the CUDA driver when the handle is imported successfully."
    fn cuImportExternalMemory(external: Out<CUexternalMemory>, description: In<CUDA_EXTERNAL_MEMORY_HANDLE_DESC>) {
        external.required()?;
        let context = current::usable()?;
        let description = description.get()?;
        match description.type_ {
            CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD => {}
            CUexternalMemoryHandleType(1..=9) => return Err(CUDA_ERROR_NOT_SUPPORTED),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        if description.size == 0 || description.flags & !CUDA_EXTERNAL_MEMORY_DEDICATED != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: for this type the program filled in the descriptor; every bit pattern is an i32.
        let number = unsafe { description.handle.fd };
        if number < 0 {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        // SAFETY: a number from 0 up is a descriptor or none, and the system says which.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let copy = rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
        let driver = driver()?;
        let on = context.device.facts.uuid;
        let memory = ExternalMemory::import(&driver.devices, &driver.physical, on, copy, description.size)?;
        let imported = External::new(context, memory);
        let handle = imported.handle;
        driver.external.insert(handle, imported);
        external.set(handle as CUexternalMemory)?;
        // SAFETY: the program gave the descriptor away with this call, and the copy showed that it is open.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        Ok(())
    }

    fn cuExternalMemoryGetMappedBuffer(
        pointer: Out<CUdeviceptr>,
        external: Handle<CUexternalMemory>,
        description: In<CUDA_EXTERNAL_MEMORY_BUFFER_DESC>,
    ) {
        pointer.required()?;
        let driver = driver()?;
        let external = known(driver, external.0)?;
        let description = description.get()?;
        if description.flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let part = external.memory.map(description.offset, description.size)?;
        let address = part.address;
        let allocation = allocation(&external, part, description.size);
        driver.addresses.live.insert(allocation).map_err(|_| CUDA_ERROR_UNKNOWN)?;
        pointer.set(address)
    }

    fn cuExternalMemoryGetMappedMipmappedArray(
        mipmap: Out<CUmipmappedArray>,
        external: Handle<CUexternalMemory>,
        description: In<CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC>,
    ) {
        mipmap.required()?;
        let driver = driver()?;
        let external = known(driver, external.0)?;
        let description = description.get()?;
        let format = Format::check(description.arrayDesc)?;
        if format.is_deferred() || !(1..=format.full_levels()).contains(&description.numLevels) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (levels, bytes) = levels(&format, description.numLevels);
        let memory = allocation(&external, external.memory.map(description.offset, bytes)?, bytes);
        let made = mipmap_of(driver, &external.context, format, levels, bytes, Some((memory, 0)));
        mipmap.set(made as CUmipmappedArray)
    }

    // Mapped buffers stay until each is freed by itself.
    fn cuDestroyExternalMemory(external: Handle<CUexternalMemory>) {
        driver()?.external.remove(external.0).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

fn known(driver: &Driver, external: u64) -> Result<Arc<External>> {
    driver.external.get(external).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn allocation(external: &External, part: ExternalPart, bytes: u64) -> Arc<Allocation> {
    let kind = Kind::External {
        host: external.memory.host,
    };
    let (context, device) = (external.context.handle, external.context.device.ordinal);
    let (base, backing) = (part.address, Backing::External(part));
    Arc::new(Allocation::new(base, bytes, kind, context, device, backing))
}
