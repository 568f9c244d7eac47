//! Physical memory of cuMemCreate: bytes with no address of their own, mapped wherever the program likes.

use divvy_abi::*;
use divvy_device::Device;
use divvy_device::memory::charge::{Charged, OutOfMemory};
use divvy_device::memory::file::{Identity, MemoryFile};
use divvy_device::memory::mapping::{Mapping, map_over};
use divvy_device::memory::store::FileExtent;
use divvy_device::shared::ownership::{self, Contents, Id, OwnershipRecord};
use divvy_device::shared::trailer::{self, Trailer};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
    cost: Mutex<Cost>,
}

/// What holds the bytes.
enum Bytes {
    /// A part of the device's store.
    Extent(FileExtent),
    /// A file of their own, which can be passed to others.
    File(MemoryFile, Trailer),
}

/// What the device counts.
enum Cost {
    /// Host memory costs it nothing.
    Nothing,
    /// This process's, and no other process has it.
    Own(#[allow(dead_code, reason = "held for its drop")] Charged),
    /// Other processes have it as well.
    Shared(#[allow(dead_code, reason = "held for its drop")] Arc<OwnershipRecord>),
}

impl Physical {
    /// Memory of a device. Memory that may be shared has a file of its own: an importer sees nothing else.
    pub fn on_device(
        device: &Device,
        bytes: u64,
        handle_types: u32,
        flags: CUmemAllocationProp_v1_allocFlags,
    ) -> Result<Physical, OutOfMemory> {
        let (bytes_of, charged) = if handle_types == 0 {
            let (extent, charged) = device.heap.take_pages(bytes)?;
            (Bytes::Extent(extent), charged)
        } else {
            let charged = Charged::take(device.heap.charge(), bytes)?;
            (file(trailer::Kind::Device, device, bytes)?, charged)
        };
        let place = Place::Device(device.ordinal);
        let cost = Cost::Own(charged);
        Ok(Physical::new(place, bytes, handle_types, flags, bytes_of, cost))
    }

    /// Host memory, which is charged to no device.
    pub fn on_host(
        device: &Device,
        kind: CUmemLocationType,
        bytes: u64,
        handle_types: u32,
        flags: CUmemAllocationProp_v1_allocFlags,
    ) -> Result<Physical, OutOfMemory> {
        let file = file(trailer::Kind::Host(kind.0), device, bytes)?;
        Ok(Physical::new(
            Place::Host(kind),
            bytes,
            handle_types,
            flags,
            file,
            Cost::Nothing,
        ))
    }

    /// Memory that another process made, by the descriptor it gave away. It costs the device what it cost there, once.
    pub fn import(devices: &[Arc<Device>], fd: OwnedFd, trailer: Trailer) -> Result<Physical, CUresult> {
        let found = |device: &&Arc<Device>| device.facts.uuid == trailer.device;
        let (place, cost) = match trailer.kind {
            trailer::Kind::Device => {
                let device = devices.iter().find(found).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
                let cost = join(device, &fd, &trailer).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
                (Place::Device(device.ordinal), Cost::Shared(cost))
            }
            trailer::Kind::Host(kind) => (Place::Host(CUmemLocationType(kind)), Cost::Nothing),
            trailer::Kind::Pool => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        let file = MemoryFile::keep(fd).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let (types, flags) = (
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0,
            CUmemAllocationProp_v1_allocFlags::default(),
        );
        Ok(Physical::new(
            place,
            trailer.bytes,
            types,
            flags,
            Bytes::File(file, trailer),
            cost,
        ))
    }

    fn new(
        place: Place,
        bytes: u64,
        handle_types: u32,
        flags: CUmemAllocationProp_v1_allocFlags,
        bytes_of: Bytes,
        cost: Cost,
    ) -> Physical {
        Physical {
            handle: crate::handle::fresh(),
            bytes,
            place,
            handle_types,
            flags,
            bytes_of,
            cost: Mutex::new(cost),
        }
    }

    /// A descriptor for another process. From now on the memory lives until the last process lets go.
    pub fn export(&self, devices: &[Arc<Device>]) -> Result<OwnedFd, CUresult> {
        let Bytes::File(file, trailer) = &self.bytes_of else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let system = |why| {
            divvy_device::log::line(format_args!("cuMemExportToShareableHandle: {why}"));
            CUDA_ERROR_OPERATING_SYSTEM
        };
        let mut cost = self.cost.lock().unwrap_or_else(PoisonError::into_inner);
        if let Place::Device(ordinal) = self.place
            && matches!(*cost, Cost::Own(_))
        {
            let device = &devices[ordinal];
            // The ownership record carries the charge from here on. If it cannot be written, the memory stays this
            // process's own.
            let records = &device.hardware.ownership;
            let charge = device.heap.charge();
            let record = records
                .create(trailer.id, contents(self.bytes, file.identity()), charge)
                .map_err(system)?;
            if let Cost::Own(charged) = std::mem::replace(&mut *cost, Cost::Nothing) {
                record.pay_with(charged);
            }
            *cost = Cost::Shared(record);
        }
        file.export().map_err(system)
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

    /// Maps a part of it anywhere; `offset` is a multiple of a host page.
    pub fn map(&self, offset: u64, bytes: u64) -> Result<Mapping, Errno> {
        let (fd, start) = self.source()?;
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        Mapping::of_file(fd, start + offset, bytes, 4096)
    }

    /// The file and the place in it where the bytes are.
    fn source(&self) -> Result<(BorrowedFd<'_>, u64), Errno> {
        match &self.bytes_of {
            Bytes::Extent(extent) => Ok((extent.file().fd()?, extent.offset())),
            Bytes::File(file, _) => Ok((file.fd()?, 0)),
        }
    }

    /// What the file of shareable memory is, in every process.
    fn identity(&self) -> Option<Identity> {
        match &self.bytes_of {
            Bytes::Extent(_) => None,
            Bytes::File(file, _) => Some(file.identity()),
        }
    }
}

fn file(kind: trailer::Kind, device: &Device, bytes: u64) -> Result<Bytes, OutOfMemory> {
    let made = Id::random().and_then(|id| {
        let trailer = Trailer {
            device: device.facts.uuid,
            id,
            bytes,
            kind,
        };
        Ok(Bytes::File(trailer.create()?, trailer))
    });
    made.map_err(ownership::refused)
}

/// Memory with a file of its own is found by its descriptor alone.
fn contents(bytes: u64, file: Identity) -> Contents {
    Contents {
        bytes,
        pid: std::process::id(),
        number: 0,
        file,
        offset: 0,
    }
}

/// This process's part in memory of a device. Where no process has it any more, only the descriptor kept it: it is
/// charged again.
fn join(device: &Device, fd: &OwnedFd, trailer: &Trailer) -> Result<Arc<OwnershipRecord>, OutOfMemory> {
    let (records, charge) = (&device.hardware.ownership, device.heap.charge());
    loop {
        if let Some(record) = records.join(trailer.id, charge).map_err(ownership::refused)? {
            return Ok(record);
        }
        let charged = Charged::take(charge, trailer.bytes)?;
        let file = Identity::of(fd).map_err(ownership::refused)?;
        match records.create(trailer.id, contents(trailer.bytes, file), charge) {
            Ok(record) => {
                record.pay_with(charged);
                return Ok(record);
            }
            // Another importer was faster.
            Err(Errno::EXIST) => {}
            Err(why) => return Err(ownership::refused(why)),
        }
    }
}

/// The handles of physical memory: each counts the references that cuMemRelease takes back one by one.
#[derive(Default)]
pub struct PhysicalHandles(Mutex<Known>);

#[derive(Default)]
struct Known {
    handles: HashMap<u64, (Arc<Physical>, u64)>,
    /// Shareable memory this process has, by its file: a process that imports memory it already has gets it once.
    by_file: HashMap<Identity, Weak<Physical>>,
}

impl Known {
    fn remember(&mut self, physical: &Arc<Physical>) {
        if let Some(identity) = physical.identity() {
            self.by_file.retain(|_, physical| physical.strong_count() > 0);
            self.by_file.insert(identity, Arc::downgrade(physical));
        }
    }
}

impl PhysicalHandles {
    /// Memory that this process has without a handle.
    pub fn remember(&self, physical: Physical) -> Arc<Physical> {
        let physical = Arc::new(physical);
        self.lock().remember(&physical);
        physical
    }

    /// One more reference, the first of which makes the handle valid.
    pub fn retain(&self, physical: Arc<Physical>) -> u64 {
        let mut known = self.lock();
        known.remember(&physical);
        let handle = physical.handle;
        known.handles.entry(handle).or_insert((physical, 0)).1 += 1;
        handle
    }

    /// The memory of a valid handle.
    pub fn get(&self, handle: u64) -> Option<Arc<Physical>> {
        self.lock()
            .handles
            .get(&handle)
            .map(|(physical, _)| Arc::clone(physical))
    }

    /// The memory in a file, if this process has it.
    pub fn of_file(&self, identity: Identity) -> Option<Arc<Physical>> {
        self.lock().by_file.get(&identity)?.upgrade()
    }

    /// One reference less; None for a handle that has none.
    pub fn release(&self, handle: u64) -> Option<()> {
        let mut known = self.lock();
        let (_, references) = known.handles.get_mut(&handle)?;
        *references -= 1;
        let gone = if *references == 0 {
            known.handles.remove(&handle)
        } else {
            None
        };
        drop(known);
        // Giving memory back takes time that other threads need not wait for.
        drop(gone);
        Some(())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
