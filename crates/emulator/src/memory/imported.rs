//! Allocations of another process: from their key to their bytes.
//!
//! The process that made them has a descriptor of the file they are in, which others of the same user open under /proc.
//! After the file is mapped, the other process is no longer needed.

use divvy_abi::*;
use divvy_device::Device;
use divvy_device::memory::charge::{GRANULE, PAGE};
use divvy_device::memory::file::{Identity, is_mappable};
use divvy_device::memory::heap::Extent;
use divvy_device::memory::mapping::Mapping;
use divvy_device::memory::store::FileExtent;
use divvy_device::shared::key::Key;
use divvy_device::shared::ownership::{Contents, Id, OwnershipRecord, OwnershipRecords};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Memory that another process allocated. The bytes go before the part in their ownership record.
#[derive(Debug)]
pub struct Imported {
    /// What it was opened with.
    pub key: Key,
    mapping: Mapping,
    _record: Arc<OwnershipRecord>,
}

/// Whether a program may open what its own process exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// It is refused, as cuIpcOpenMemHandle does.
    Refused,
    /// It is mapped a second time.
    Mapped,
}

/// The ownership record of the pages that device memory lies in, with the allocation listed as one that others may
/// open, and where in the pages it starts.
pub fn export(device: &Device, extent: &Extent, buffer_id: u64) -> Result<(Id, u32), CUresult> {
    let (records, charge) = (&device.hardware.ownership, device.heap.charge());
    let write = |pages: &FileExtent, bytes| {
        let contents = Contents {
            bytes,
            pid: std::process::id(),
            number: u32::try_from(pages.file().number()).ok()?,
            file: pages.file().identity(),
            offset: pages.offset(),
        };
        let made = Id::random().and_then(|id| records.create(id, contents, charge));
        made.inspect_err(|why| divvy_device::log::line(format_args!("shared device memory: {why}")))
            .ok()
    };
    let (id, offset) = extent.export(buffer_id, write).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    Ok((id, u32::try_from(offset).map_err(|_| CUDA_ERROR_UNKNOWN)?))
}

impl Imported {
    /// Opens an allocation of a device.
    pub fn open(device: &Device, key: Key, own: Own) -> Result<Imported, CUresult> {
        let records: &Arc<OwnershipRecords> = &device.hardware.ownership;
        let gone = CUDA_ERROR_INVALID_HANDLE;
        let record = records
            .join(key.id, device.heap.charge())
            .map_err(|_| gone)?
            .ok_or(gone)?;
        let contents = &record.contents;
        let inside = u64::from(key.offset)
            .checked_add(key.bytes)
            .is_some_and(|end| end <= contents.bytes);
        if !inside || key.bytes == 0 || record.listed(u64::from(key.offset)) != Some(key.allocation) {
            return Err(gone);
        }
        let file = reach(contents).map_err(|why| {
            divvy_device::log::line(format_args!(
                "memory of process {} is out of reach: {why}",
                contents.pid
            ));
            gone
        })?;
        if own == Own::Refused && contents.pid == std::process::id() {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        let length = usize::try_from(contents.bytes).map_err(|_| gone)?;
        let mapping = Mapping::of_file(file.as_fd(), contents.offset, length, PAGE as usize);
        Ok(Imported {
            key,
            mapping: mapping.map_err(|_| CUDA_ERROR_MAP_FAILED)?,
            _record: record,
        })
    }

    /// Its first address in this process.
    pub fn address(&self) -> u64 {
        self.mapping.address() + u64::from(self.key.offset)
    }

    /// Bytes that may be touched from there.
    pub fn reach(&self) -> u64 {
        self.key.bytes.next_multiple_of(GRANULE)
    }
}

/// The file that a process keeps open.
fn reach(contents: &Contents) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/{}/fd/{}", contents.pid, contents.number);
    let file = divvy_device::shared::lock::open_link(Path::new(&path))?;
    let end = contents.offset.checked_add(contents.bytes).ok_or(Errno::INVAL)?;
    if Identity::of(&file)? == contents.file && is_mappable(file.as_fd(), end) {
        Ok(file)
    } else {
        Err(Errno::STALE)
    }
}
