//! The data area of the region that program and server share, and what was copied by which path.
//!
//! The program writes to it at any time. So it is only ever given to the driver below, as memory of a program that is: what
//! it holds decides nothing here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_abi::{CUDA_ERROR_INVALID_VALUE, c_void};
use divvy_ledger::CopyPath;
use divvy_ring::Region;
use divvy_ring::data::Extent;

use super::{Call, Stop};
use crate::handle::Id;

/// The area.
pub struct Area {
    region: Region,
    /// So many bytes may be pinned at once.
    pub most_pinned: u64,
    pinned: Mutex<BTreeMap<u64, Pinned>>,
}

/// A part of the area that the program uses as pinned memory.
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// Its length.
    pub bytes: u64,
    /// Its address on the device; 0 where the driver below has not pinned it.
    pub device: u64,
    /// The context that was current then.
    pub context: Option<Id>,
}

impl Area {
    /// The data area of a region, of which so many bytes may be pinned.
    pub fn new(region: Region, most_pinned: u64) -> Self {
        Self {
            region,
            most_pinned,
            pinned: Mutex::default(),
        }
    }

    /// The address of bytes of the area, where they lie in it.
    pub fn address(&self, offset: u64, bytes: u64) -> Option<*mut c_void> {
        let (first, length) = self.region.data();
        let inside = Extent { offset, bytes }.is_in(length);
        inside.then(|| first.as_ptr().wrapping_add(offset as usize).cast())
    }

    /// The parts that are pinned memory, by their offsets.
    pub fn pinned(&self) -> MutexGuard<'_, BTreeMap<u64, Pinned>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device below reaches these bytes by itself.
    pub fn is_pinned(&self, offset: u64, bytes: u64) -> bool {
        let pinned = self.pinned();
        let last = pinned.range(..=offset).next_back();
        last.is_some_and(|(start, part)| {
            part.device != 0 && bytes <= part.bytes && offset - start <= part.bytes - bytes
        })
    }
}

impl Call<'_> {
    /// The address of bytes of the data area.
    pub fn shared(&self, offset: u64, bytes: u64) -> Result<*mut c_void, Stop> {
        let area = self.server.area.get();
        let address = area.and_then(|area| area.address(offset, bytes));
        address.ok_or(Stop::Code(CUDA_ERROR_INVALID_VALUE))
    }
}

/// Bytes that were copied between the program's memory and the device's, by path. A copy is one that a processor makes, the
/// driver below's own from memory that is not pinned included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// In messages: four copies of each byte. For small transfers, and without shared memory.
    pub inline: u64,
    /// Through the data area: two copies.
    pub staged: u64,
    /// From memory of the program that lies in the data area: one copy.
    pub shared: u64,
    /// From such memory that is pinned: none.
    pub bypass: u64,
}

impl Traffic {
    /// How often each byte was copied, on average.
    pub fn copies_per_byte(&self) -> f64 {
        let copies = 4.0 * self.inline as f64 + 2.0 * self.staged as f64 + self.shared as f64;
        copies / self.bytes().max(1) as f64
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        let paths = [self.inline, self.staged, self.shared, self.bypass];
        paths.into_iter().fold(0, u64::saturating_add)
    }
}

/// The counters of [`Traffic`].
pub struct Counters {
    bytes: [AtomicU64; CopyPath::ALL.len()],
    told: fn(CopyPath, u64),
}

impl Counters {
    /// All 0; `told` is told of each copy.
    pub fn new(told: fn(CopyPath, u64)) -> Self {
        Self {
            bytes: Default::default(),
            told,
        }
    }

    /// Counts bytes of a copy that is made.
    pub fn count(&self, path: CopyPath, bytes: u64) {
        self.bytes[path as usize].fetch_add(bytes, Ordering::Relaxed);
        (self.told)(path, bytes);
    }

    /// What they say now.
    pub fn read(&self) -> Traffic {
        let of = |path: CopyPath| self.bytes[path as usize].load(Ordering::Relaxed);
        Traffic {
            inline: of(CopyPath::Message),
            staged: of(CopyPath::Staged),
            shared: of(CopyPath::Shared),
            bypass: of(CopyPath::Pinned),
        }
    }
}
