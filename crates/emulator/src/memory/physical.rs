//! Physical memory of cuMemCreate: bytes with no address of their own, mapped wherever the program likes.

use super::file::MemoryFile;
use super::heap::{Charged, Heap, OutOfMemory};
use super::mapping::map_over;
use super::store::Piece;
use divvy_abi::*;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where physical memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the device of this ordinal.
    Device(usize),
    /// In host memory, named as CU_MEM_LOCATION_TYPE_*.
    Host(CUmemLocationType),
}

/// An allocation of physical memory; it lives while a handle or a mapping refers to it.
pub struct Physical {
    /// The CUmemGenericAllocationHandle: the same in every life of its handle.
    pub handle: u64,
    /// Its size: whole device pages.
    pub bytes: u64,
    /// Where it is.
    pub place: Place,
    /// CU_MEM_HANDLE_TYPE_*: how it may be shared.
    pub handle_types: u32,
    /// What the program asked for beside that, kept for cuMemGetAllocationPropertiesFromHandle.
    pub flags: CUmemAllocationProp_v1_allocFlags,
    bytes_of: Bytes,
    /// After the bytes, so that the device has them back only when they are gone.
    _charged: Option<Charged>,
}

/// What holds the bytes.
enum Bytes {
    /// A part of the device's store.
    Piece(Piece),
    /// A file of their own, which can be passed to others.
    File(MemoryFile),
}

impl Physical {
    /// Memory of a device. What may be shared has a file of its own: who gets that sees nothing else.
    pub fn on_device(
        heap: &Heap,
        ordinal: usize,
        bytes: u64,
        handle_types: u32,
        flags: CUmemAllocationProp_v1_allocFlags,
    ) -> Result<Physical, OutOfMemory> {
        let (bytes_of, charged) = if handle_types == 0 {
            let (piece, charged) = heap.take_pages(bytes)?;
            (Bytes::Piece(piece), charged)
        } else {
            let charged = Charged::take(heap.charge(), bytes)?;
            (Bytes::File(file(bytes)?), charged)
        };
        Ok(Physical {
            handle: crate::handle::fresh(),
            bytes,
            place: Place::Device(ordinal),
            handle_types,
            flags,
            bytes_of,
            _charged: Some(charged),
        })
    }

    /// Host memory, which no device pays for.
    pub fn on_host(
        kind: CUmemLocationType,
        bytes: u64,
        handle_types: u32,
        flags: CUmemAllocationProp_v1_allocFlags,
    ) -> Result<Physical, OutOfMemory> {
        Ok(Physical {
            handle: crate::handle::fresh(),
            bytes,
            place: Place::Host(kind),
            handle_types,
            flags,
            bytes_of: Bytes::File(file(bytes)?),
            _charged: None,
        })
    }

    /// Maps its first bytes at an address.
    ///
    /// # Safety
    /// As for [`map_over`].
    pub unsafe fn map_at(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        let (fd, offset) = self.source()?;
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        // SAFETY: as the caller promises.
        unsafe { map_over(address, bytes, fd, offset) }
    }

    /// The file and the place in it where the bytes are.
    fn source(&self) -> Result<(BorrowedFd<'_>, u64), Errno> {
        match &self.bytes_of {
            Bytes::Piece(piece) => Ok((piece.file().fd()?, piece.offset())),
            Bytes::File(file) => Ok((file.fd()?, 0)),
        }
    }

    /// The file, if it is the memory's own.
    pub fn file(&self) -> Option<&MemoryFile> {
        match &self.bytes_of {
            Bytes::Piece(_) => None,
            Bytes::File(file) => Some(file),
        }
    }
}

fn file(bytes: u64) -> Result<MemoryFile, OutOfMemory> {
    MemoryFile::create(bytes).map_err(|why| {
        crate::log::line(format_args!("no memory file of {bytes} bytes: {why}"));
        OutOfMemory
    })
}

/// The handles of physical memory: each counts the references that cuMemRelease takes back one by one.
#[derive(Default)]
pub struct PhysicalHandles(Mutex<HashMap<u64, (Arc<Physical>, u64)>>);

impl PhysicalHandles {
    /// One more reference, the first of which makes the handle valid.
    pub fn retain(&self, physical: Arc<Physical>) -> u64 {
        let handle = physical.handle;
        self.lock().entry(handle).or_insert((physical, 0)).1 += 1;
        handle
    }

    /// The memory of a valid handle.
    pub fn get(&self, handle: u64) -> Option<Arc<Physical>> {
        self.lock().get(&handle).map(|(physical, _)| Arc::clone(physical))
    }

    /// One reference less; None for a handle that has none.
    pub fn release(&self, handle: u64) -> Option<()> {
        let mut handles = self.lock();
        let (_, references) = handles.get_mut(&handle)?;
        *references -= 1;
        let gone = if *references == 0 {
            handles.remove(&handle)
        } else {
            None
        };
        drop(handles);
        // Giving memory back takes time that other threads need not wait for.
        drop(gone);
        Some(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (Arc<Physical>, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
