//! Device memory that the program was given. A copy whose sides may be of either kind must not take it for the program's own,
//! whatever a server says: one that gives an address of the program's for device memory would read or write there.
//!
//! What the program frees is forgotten, and so is what went with a module or library. Memory of a context that ended may be
//! there or not, and the address may be the program's later on: then the server is asked.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::fork::OfProcess;
use crate::handle::Kind;

/// Where it ends, and the module or library that it goes with; 0 for memory of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    end: u64,
    owner: u64,
}

/// Ranges by their starts. None overlaps another.
#[derive(Debug, Default)]
struct Given(BTreeMap<u64, Range>);

static ALL: OfProcess<Mutex<Given>> = OfProcess::new();

fn all() -> MutexGuard<'static, Given> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Given {
    fn containing(&self, address: u64) -> Option<u64> {
        let (start, range) = self.0.range(..=address).next_back()?;
        (address < range.end).then_some(*start)
    }

    fn add(&mut self, address: u64, bytes: u64, owner: u64) {
        if address == 0 {
            return;
        }
        // One byte at least: a variable's length need not be asked for.
        let mut end = address.saturating_add(bytes.max(1));
        let start = self.containing(address).unwrap_or(address);
        // No device gives memory twice. Where a server does, all of it is the device's.
        let owner = self.0.get(&start).map_or(owner, |known| known.owner);
        while let Some((&other, range)) = self.0.range(start..end).next_back() {
            end = end.max(range.end);
            self.0.remove(&other);
        }
        self.0.insert(start, Range { end, owner });
    }

    fn end(&mut self, kind: Kind, handle: u64) {
        match kind {
            Kind::Context => self.0.retain(|_, range| range.owner != 0),
            Kind::Module | Kind::Library => self.0.retain(|_, range| range.owner != handle),
            _ => {}
        }
    }
}

/// The program was given this memory, which goes with a module or library; 0 for a context.
pub fn add(address: u64, bytes: u64, owner: u64) {
    all().add(address, bytes, owner);
}

/// It was freed.
pub fn freed(address: u64) {
    all().0.remove(&address);
}

/// An object of this kind is gone, and what went with it.
#[inline]
pub fn ended(kind: Kind, handle: u64) {
    // Events and streams come and go often, and have no memory.
    if matches!(kind, Kind::Context | Kind::Module | Kind::Library) {
        all().end(kind, handle);
    }
}

/// Whether the byte at this address is such memory.
pub fn holds(address: u64) -> bool {
    all().containing(address).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_known_until_it_is_freed_or_its_owner_ends() {
        let mut given = Given::default();
        let holds = |given: &Given, address| given.containing(address).is_some();
        given.add(0, 100, 0);
        given.add(0x1000, 0x100, 0);
        given.add(0x2000, 0, 7);
        given.add(u64::MAX, 8, 0);
        for (address, held) in [
            (0, false),
            (0xfff, false),
            (0x1000, true),
            (0x10ff, true),
            (0x1100, false),
            (0x2000, true),
            (0x2001, false),
        ] {
            assert_eq!(holds(&given, address), held, "{address:#x}");
        }
        given.end(Kind::Stream, 7);
        given.end(Kind::Module, 8);
        assert!(holds(&given, 0x2000));
        given.end(Kind::Module, 7);
        assert!(!holds(&given, 0x2000) && holds(&given, 0x1000));
        given.end(Kind::Context, 1);
        assert!(!holds(&given, 0x1000));
    }

    /// A server that gives a small range within a large one, or around it, hides nothing by that.
    #[test]
    fn ranges_that_overlap_are_one() {
        let mut given = Given::default();
        given.add(0x1000, 0x100, 0);
        given.add(0x1010, 1, 0);
        assert_eq!(given.0.len(), 1);
        assert!(given.containing(0x1080).is_some());
        given.add(0x2010, 1, 0);
        given.add(0x2000, 0x100, 0);
        assert!(given.containing(0x2080).is_some());
        given.add(0x10ff, 0x1000, 0);
        assert_eq!(
            given.0,
            BTreeMap::from([(
                0x1000,
                Range {
                    end: 0x2100,
                    owner: 0
                }
            )])
        );
        given.add(0x1000, 4, 0);
        assert_eq!(given.0.len(), 1);
        assert!(given.containing(0x20ff).is_some());
    }
}
