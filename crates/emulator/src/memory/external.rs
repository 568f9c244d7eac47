//! Memory that came as a descriptor, from another API or another process.

use super::physical::{Physical, PhysicalHandles, Place};
use crate::Result;
use divvy_abi::*;
use divvy_device::Device;
use divvy_device::memory::file::{Identity, MemoryFile, is_mappable};
use divvy_device::memory::mapping::Mapping;
use divvy_device::product::identity::Uuid;
use divvy_device::shared::trailer::{self, Trailer};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes of a host page: what a mapping may start at.
const HOST_PAGE: u64 = 4096;

/// External memory.
pub struct ExternalMemory {
    /// Its size in bytes, as the program said it.
    bytes: u64,
    /// Whether the bytes are in host memory.
    pub host: bool,
    source: Arc<Source>,
}

/// Where the bytes are.
enum Source {
    /// Memory of an emulated device, which it counts as any other process's that imports it.
    Device(Arc<Physical>),
    /// A memory file of another owner, which is charged for it.
    File(MemoryFile),
}

/// A part of external memory at an address. It needs the import no more.
pub struct ExternalPart {
    /// First address.
    pub address: u64,
    _mapping: Mapping,
    _source: Arc<Source>,
}

impl std::fmt::Debug for ExternalPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExternalPart({:#x})", self.address)
    }
}

impl ExternalMemory {
    /// Imports the first bytes of what a descriptor stands for. Memory of a device is imported on that device and no
    /// other. The programming guide has this rule for the exports of graphics APIs.
    pub fn import(
        devices: &[Arc<Device>],
        handles: &PhysicalHandles,
        on: Uuid,
        fd: OwnedFd,
        bytes: u64,
    ) -> Result<ExternalMemory> {
        let (source, host) = match Trailer::read(fd.as_fd()) {
            Some(trailer) if bytes <= trailer.bytes && is_here(on, trailer) => {
                let identity = Identity::of(&fd).map_err(|_| CUDA_ERROR_INVALID_HANDLE)?;
                let physical = match handles.of_file(identity) {
                    Some(known) => known,
                    None => handles.remember(Physical::import(devices, fd, trailer)?),
                };
                let host = matches!(physical.place, Place::Host(_));
                (Source::Device(physical), host)
            }
            None if is_mappable(fd.as_fd(), bytes) => {
                let file = MemoryFile::keep(fd).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
                (Source::File(file), false)
            }
            _ => return Err(CUDA_ERROR_INVALID_HANDLE),
        };
        Ok(ExternalMemory {
            bytes,
            host,
            source: Arc::new(source),
        })
    }

    /// Maps a part of it.
    pub fn map(&self, offset: u64, bytes: u64) -> Result<ExternalPart> {
        let end = offset.checked_add(bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if bytes == 0 || end > self.bytes {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let start = offset / HOST_PAGE * HOST_PAGE;
        let mapping = self
            .source
            .map(start, (end - start).next_multiple_of(HOST_PAGE))
            .map_err(|_| CUDA_ERROR_MAP_FAILED)?;
        Ok(ExternalPart {
            address: mapping.address() + (offset - start),
            _mapping: mapping,
            _source: Arc::clone(&self.source),
        })
    }
}

fn is_here(device: Uuid, trailer: Trailer) -> bool {
    !matches!(trailer.kind, trailer::Kind::Device) || trailer.device == device
}

impl Source {
    fn map(&self, offset: u64, bytes: u64) -> std::result::Result<Mapping, Errno> {
        match self {
            Source::Device(physical) => physical.map(offset, bytes),
            Source::File(file) => {
                let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
                Mapping::of_file(file.fd()?, offset, bytes, HOST_PAGE as usize)
            }
        }
    }
}
