//! The data area that this process shares with its server: pinned memory of the program, and the bytes of large copies.

use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_ring::Region;
use divvy_ring::data::{Extent, Extents};

/// So many parts of the area may be in use.
const MOST: usize = 1 << 20;

/// The area.
pub struct Area {
    region: Region,
    base: usize,
    bytes: u64,
    extents: Mutex<Extents>,
}

/// The area of this process's connection, where it has one.
pub fn area() -> Option<&'static Area> {
    let client = super::client()?;
    if super::thread::is_forked() {
        // It would be a connection of the child's own.
        return None;
    }
    let made = || client.connector.region().and_then(Area::new);
    client.area.get_or_init(made).as_ref()
}

impl Area {
    fn new(region: Region) -> Option<Self> {
        let (first, bytes) = region.data();
        (bytes != 0).then(|| Self {
            base: first.as_ptr().expose_provenance(),
            bytes,
            extents: Mutex::new(Extents::new(bytes, MOST)),
            region,
        })
    }

    /// Where these bytes of the program lie in the area, if they do.
    pub fn offset(&self, address: usize, bytes: usize) -> Option<u64> {
        let offset = address.checked_sub(self.base)? as u64;
        let extent = Extent {
            offset,
            bytes: bytes as u64,
        };
        extent.is_in(self.bytes).then_some(offset)
    }

    /// The address of an offset in the area.
    pub fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.bytes);
        self.region.data().0.as_ptr().wrapping_add(offset as usize)
    }

    /// Takes a part of the area.
    pub fn allocate(&self, bytes: u64, align: u64) -> Option<Extent> {
        self.extents().allocate(bytes, align)
    }

    /// Gives a part back, and its memory to the system.
    pub fn release(&self, extent: Extent) {
        // SAFETY: the range is of our own mapping, and its part is not in use any more. What the kernel refuses costs
        // memory alone.
        let _kept = unsafe {
            rustix::mm::madvise(
                self.at(extent.offset).cast(),
                extent.bytes as usize,
                rustix::mm::Advice::LinuxRemove,
            )
        };
        self.extents().release(extent.offset);
    }

    fn extents(&self) -> MutexGuard<'_, Extents> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
