//! Address ranges of cuMemAddressReserve, and the physical memory that cuMemMap puts into them.

use super::physical::Physical;
use divvy_device::memory::mapping::{Mapping, clear_over};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The bit for host access in [`Mapped::access`]; below it, one bit for each device ordinal.
const HOST_BIT: u32 = 1 << 31;

/// A device or host that may be given access to a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accessor {
    /// The device of this ordinal.
    Device(usize),
    /// The host's processors.
    Host,
}

impl Accessor {
    fn bit(self) -> u32 {
        match self {
            Accessor::Device(ordinal) => 1 << ordinal,
            Accessor::Host => HOST_BIT,
        }
    }
}

/// Physical memory at an address. The last `Arc` of it makes the range a mere reservation again.
pub struct Mapped {
    /// First address.
    pub address: u64,
    /// Size of the mapping.
    pub bytes: u64,
    /// What is mapped.
    pub physical: Arc<Physical>,
    access: AtomicU32,
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapped({:#x})", self.address)
    }
}

impl Mapped {
    /// Whether reading and writing are allowed.
    pub fn allows(&self, who: Accessor) -> bool {
        self.access.load(Ordering::Relaxed) & who.bit() != 0
    }

    /// Whether any of them may use it.
    pub fn is_accessible(&self) -> bool {
        self.access.load(Ordering::Relaxed) != 0
    }

    /// Allows or forbids.
    pub fn set_access(&self, who: Accessor, allowed: bool) {
        if allowed {
            self.access.fetch_or(who.bit(), Ordering::Relaxed);
        } else {
            self.access.fetch_and(!who.bit(), Ordering::Relaxed);
        }
    }

    fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range lies in a reservation that [`Reservations`] keeps until this is gone, and all code that
        // could use the memory held an `Arc` of this.
        let _ = unsafe { clear_over(self.address, self.bytes as usize) };
    }
}

struct Reservation {
    range: Mapping,
    bytes: u64,
    mapped: BTreeMap<u64, Arc<Mapped>>,
}

/// Why a range cannot be used as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeError {
    /// It is not reserved, not mapped, mapped already, or not where a mapping begins and ends.
    Unfit,
    /// The system has no such addresses or no memory for its tables.
    System,
}

/// The address ranges this process has reserved, by their first address.
#[derive(Default)]
pub struct Reservations(Mutex<BTreeMap<u64, Reservation>>);

impl Reservations {
    /// Reserves addresses: at `hint` if that is free and fits the alignment, else anywhere.
    pub fn reserve(&self, bytes: u64, align: u64, hint: u64) -> Result<u64, RangeError> {
        let length = usize::try_from(bytes).map_err(|_| RangeError::System)?;
        let at_hint = (hint != 0 && hint.is_multiple_of(align))
            .then(|| Mapping::reserve_at(hint, length).ok())
            .flatten();
        let range = match at_hint {
            Some(range) => range,
            None => Mapping::reserve(length, align as usize).map_err(|_| RangeError::System)?,
        };
        let address = range.address();
        let reservation = Reservation {
            range,
            bytes,
            mapped: BTreeMap::new(),
        };
        self.lock().insert(address, reservation);
        Ok(address)
    }

    /// Gives a whole reservation back; nothing may be mapped in it.
    pub fn free(&self, address: u64, bytes: u64) -> Result<(), RangeError> {
        let mut all = self.lock();
        match all.get(&address) {
            Some(found) if found.bytes == bytes && found.mapped.is_empty() => {
                all.remove(&address);
                Ok(())
            }
            _ => Err(RangeError::Unfit),
        }
    }

    /// Maps the first bytes of physical memory into a reserved range where nothing is mapped.
    pub fn map(&self, address: u64, bytes: u64, physical: Arc<Physical>) -> Result<(), RangeError> {
        let end = address.checked_add(bytes).ok_or(RangeError::Unfit)?;
        let mut all = self.lock();
        let reservation = within(&mut all, address).ok_or(RangeError::Unfit)?;
        let free = reservation
            .mapped
            .range(..end)
            .next_back()
            .is_none_or(|(_, other)| other.end() <= address);
        if end > reservation.range.address() + reservation.bytes || !free {
            return Err(RangeError::Unfit);
        }
        // SAFETY: the range is inside the reservation and nothing is mapped there, so no code uses it.
        unsafe { physical.map_at(address, bytes) }.map_err(|_| RangeError::System)?;
        let mapped = Mapped {
            address,
            bytes,
            physical,
            access: AtomicU32::new(0),
        };
        reservation.mapped.insert(address, Arc::new(mapped));
        Ok(())
    }

    /// The mapping that holds an address.
    pub fn find(&self, address: u64) -> Option<Arc<Mapped>> {
        let mut all = self.lock();
        let (_, mapped) = within(&mut all, address)?.mapped.range(..=address).next_back()?;
        (address < mapped.end()).then(|| Arc::clone(mapped))
    }

    /// The mappings that cover a range from end to end, in order; the range begins and ends where mappings do.
    pub fn covering(&self, address: u64, bytes: u64) -> Result<Vec<Arc<Mapped>>, RangeError> {
        let end = address.checked_add(bytes).ok_or(RangeError::Unfit)?;
        let mut all = self.lock();
        let (mut at, mut found) = (address, Vec::new());
        // Neighbouring reservations may be used as one.
        while at < end {
            let mapped = within(&mut all, at)
                .and_then(|reservation| reservation.mapped.get(&at))
                .ok_or(RangeError::Unfit)?;
            at = mapped.end();
            found.push(Arc::clone(mapped));
        }
        if at == end && bytes > 0 {
            Ok(found)
        } else {
            Err(RangeError::Unfit)
        }
    }

    /// Unmaps what [`Reservations::covering`] gave, after all work that used it has ended. Work that came in between
    /// holds its mapping for a moment; a mapping that is still used after that stays.
    pub fn unmap(&self, mappings: Vec<Arc<Mapped>>) -> Result<(), RangeError> {
        for mapped in mappings {
            let address = mapped.address;
            let mut tries_left = 10_000;
            // This reference and the table's.
            while Arc::strong_count(&mapped) > 2 {
                tries_left -= 1;
                if tries_left == 0 {
                    return Err(RangeError::System);
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            let mut all = self.lock();
            let gone = within(&mut all, address).and_then(|reservation| reservation.mapped.remove(&address));
            // Under the lock: the range must be clear before it can be mapped again.
            drop((mapped, gone));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Reservation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn within(all: &mut BTreeMap<u64, Reservation>, address: u64) -> Option<&mut Reservation> {
    let (start, reservation) = all.range_mut(..=address).next_back()?;
    (address < *start + reservation.bytes).then_some(reservation)
}
