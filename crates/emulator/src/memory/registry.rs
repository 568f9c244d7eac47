//! Every range of addresses a device may touch, found by any address inside it.

use super::allocation::Allocation;
use crate::check;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

type Ranges = BTreeMap<u64, Arc<Allocation>>;

/// The addresses of this process.
#[derive(Default)]
pub struct Addresses {
    /// What a device may touch now.
    pub live: Registry,
    /// Memory of allocation nodes of graphs: it has its address from the node's creation on, and bytes from a launch
    /// on.
    pub reserved: Registry,
}

/// Allocations by their first address; they never overlap.
#[derive(Default)]
pub struct Registry {
    ranges: RwLock<Ranges>,
}

impl Registry {
    /// Adds an allocation; refuses one that overlaps another.
    pub fn insert(&self, allocation: Arc<Allocation>) -> Result<(), Overlap> {
        let mut ranges = self.write();
        let (start, end) = (allocation.base, allocation.end());
        if ranges
            .range(..end)
            .next_back()
            .is_some_and(|(_, other)| other.end() > start)
        {
            return Err(Overlap);
        }
        ranges.insert(start, Arc::clone(&allocation));
        drop(ranges);
        if let Some(checker) = check::on() {
            checker.allocated(&allocation);
        }
        Ok(())
    }

    /// The allocation that holds this address.
    pub fn find(&self, address: u64) -> Option<Arc<Allocation>> {
        let ranges = self.read();
        let (_, allocation) = ranges.range(..=address).next_back()?;
        (address < allocation.end()).then(|| Arc::clone(allocation))
    }

    /// Any allocation that satisfies `wanted`.
    pub fn find_where(&self, mut wanted: impl FnMut(&Allocation) -> bool) -> Option<Arc<Allocation>> {
        self.read()
            .values()
            .find(|allocation| wanted(allocation))
            .cloned()
    }

    /// The mappings of cuMemMap that hold `bytes` from an address one after the other: programs use neighbours as one
    /// range. None if there is a gap, or memory of another kind.
    pub fn find_mapped(&self, address: u64, bytes: u64) -> Option<Vec<Arc<Allocation>>> {
        let end = address.checked_add(bytes)?;
        let ranges = self.read();
        let (_, first) = ranges.range(..=address).next_back()?;
        let (mut at, mut found) = (address, Vec::new());
        for (&base, allocation) in ranges.range(first.base..end) {
            if base > at || at >= allocation.end() || allocation.mapped().is_none() {
                return None;
            }
            at = allocation.end();
            found.push(Arc::clone(allocation));
        }
        (at >= end).then_some(found)
    }

    /// The allocation that starts at this address and satisfies `wanted`, taken out.
    pub fn remove(&self, base: u64, wanted: impl Fn(&Allocation) -> bool) -> Option<Arc<Allocation>> {
        let mut ranges = self.write();
        let removed = ranges
            .get(&base)
            .is_some_and(|allocation| wanted(allocation))
            .then(|| ranges.remove(&base))?;
        drop(ranges);
        if let (Some(checker), Some(removed)) = (check::on(), &removed) {
            checker.freed(removed);
        }
        removed
    }

    /// All allocations that satisfy `wanted`, taken out.
    pub fn remove_all(&self, wanted: impl Fn(&Allocation) -> bool) -> Vec<Arc<Allocation>> {
        let mut ranges = self.write();
        let bases: Vec<u64> = ranges
            .values()
            .filter(|allocation| wanted(allocation))
            .map(|allocation| allocation.base)
            .collect();
        let removed: Vec<_> = bases.iter().filter_map(|base| ranges.remove(base)).collect();
        drop(ranges);
        if let Some(checker) = check::on() {
            removed.iter().for_each(|removed| checker.freed(removed));
        }
        removed
    }

    fn read(&self) -> RwLockReadGuard<'_, Ranges> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Ranges> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The range is already known to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::allocation::{Backing, Kind};

    fn at(base: u64, bytes: u64) -> Arc<Allocation> {
        Arc::new(Allocation::new(
            base,
            bytes,
            Kind::Registered { flags: 0 },
            0,
            0,
            Backing::Program,
        ))
    }

    #[test]
    fn found_by_any_inner_address_and_by_no_other() {
        let registry = Registry::default();
        registry.insert(at(0x1000, 0x200)).unwrap();
        registry.insert(at(0x1200, 0x10)).unwrap();
        assert_eq!(registry.find(0xfff).map(|found| found.base), None);
        assert_eq!(registry.find(0x1000).map(|found| found.base), Some(0x1000));
        assert_eq!(registry.find(0x11ff).map(|found| found.base), Some(0x1000));
        assert_eq!(registry.find(0x1200).map(|found| found.base), Some(0x1200));
        assert_eq!(registry.find(0x1210).map(|found| found.base), None);
        assert_eq!(registry.find(u64::MAX).map(|found| found.base), None);
    }

    #[test]
    fn overlaps_are_refused() {
        let registry = Registry::default();
        registry.insert(at(0x1000, 0x200)).unwrap();
        for (base, bytes) in [(0x1000, 1), (0xf00, 0x101), (0x11ff, 1), (0x0, 0x10000)] {
            assert_eq!(registry.insert(at(base, bytes)), Err(Overlap), "{base:#x}");
        }
        assert!(registry.remove(0x1000, |_| false).is_none());
        assert!(registry.remove(0x1000, |_| true).is_some());
        registry.insert(at(0xf00, 0x200)).unwrap();
    }
}
