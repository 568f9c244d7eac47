//! The device memory of a connection, by address: what the driver below is asked to read and write lies in it.
//!
//! With unified addressing the driver takes an address of its own process's memory where a device's is meant. So an
//! address counts only where a call of this connection made the memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::uses::{Use, Uses};
use crate::handle::{Id, Kind};

/// The memory.
#[derive(Default)]
pub struct Ranges {
    by_start: BTreeMap<u64, Range>,
}

struct Range {
    bytes: u64,
    parent: Option<Id>,
    /// So many calls go on that free it, or destroy what it goes with.
    ending: u32,
    /// Cloned for each call that uses it.
    uses: Use,
}

/// Memory that a call frees: null, or where a range begins.
pub struct Freed {
    /// Where it begins.
    pub address: u64,
    range: Option<Use>,
}

/// Of these names, those of objects that memory can go with.
fn owners(of: &[Id]) -> BTreeSet<Id> {
    let owns = |id: &&Id| {
        matches!(
            id.kind(),
            Kind::Context | Kind::Module | Kind::Library | Kind::Graph
        )
    };
    of.iter().filter(owns).copied().collect()
}

impl Ranges {
    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Enters memory that a call made, or was told of: a module's variable is told of each time that it is asked for, and
    /// the calls that use it go on.
    pub fn insert(&mut self, start: u64, bytes: u64, parent: Option<Id>) {
        let known = self.by_start.get(&start);
        let is_same = |known: &Range| {
            known.ending == 0 && parent.is_some() && (known.bytes, known.parent) == (bytes, parent)
        };
        if known.is_some_and(is_same) {
            return;
        }
        if start != 0 && bytes != 0 && start.checked_add(bytes).is_some() {
            let range = Range {
                bytes,
                parent,
                ending: 0,
                uses: Use::default(),
            };
            self.by_start.insert(start, range);
        }
    }

    /// Whether these bytes are memory of the connection. Ranges that adjoin count as one; no bytes are, where the
    /// address is in a range, at its end, or null.
    pub fn hold(&self, start: u64, bytes: u64) -> bool {
        self.cover(start, bytes, |_| {})
    }

    /// The same, and uses of these ranges are added to a call's.
    pub fn take(&self, start: u64, bytes: u64, uses: &mut Vec<Use>) -> bool {
        self.cover(start, bytes, |range| uses.push(Arc::clone(&range.uses)))
    }

    fn cover(&self, start: u64, bytes: u64, mut each: impl FnMut(&Range)) -> bool {
        let Some(end) = start.checked_add(bytes) else {
            return false;
        };
        if start == 0 {
            return bytes == 0;
        }
        let mut at = start;
        loop {
            let Some((first, range)) = self.by_start.range(..=at).next_back() else {
                return false;
            };
            let last = first + range.bytes;
            if last < at || (last == at && bytes != 0) || range.ending != 0 {
                return false;
            }
            each(range);
            if last >= end {
                return true;
            }
            at = last;
        }
    }

    /// The memory that begins here, for a call that frees it. None where no range begins here.
    pub fn beginning(&self, address: u64) -> Option<Freed> {
        if address == 0 {
            return Some(Freed { address, range: None });
        }
        let range = self.by_start.get(&address).filter(|range| range.ending == 0)?;
        Some(Freed {
            address,
            range: Some(Arc::clone(&range.uses)),
        })
    }

    /// A call that frees this memory begins: no other call finds it from now on. Gives what it has to wait for, with one
    /// use of its own. None where another thread's call frees it already, or has done so.
    pub fn begin_end(&mut self, freed: &Freed) -> Option<Uses> {
        let range = self.of(freed).filter(|range| range.ending == 0)?;
        range.ending = 1;
        Some(Uses::new(&range.uses))
    }

    /// That call failed: the memory is there as before.
    pub fn keep(&mut self, freed: &Freed) {
        if let Some(range) = self.of(freed) {
            range.ending = range.ending.saturating_sub(1);
        }
    }

    /// Forgets memory that was freed. Other memory may begin at the same address already.
    pub fn remove(&mut self, freed: &Freed) {
        if self.of(freed).is_some() {
            self.by_start.remove(&freed.address);
        }
    }

    fn of(&mut self, freed: &Freed) -> Option<&mut Range> {
        let own = freed.range.as_ref()?;
        let range = self.by_start.get_mut(&freed.address);
        range.filter(|range| Arc::ptr_eq(&range.uses, own))
    }

    /// A call that destroys these objects begins: no other call finds their memory from now on, and the uses of it are to
    /// be waited for.
    pub fn begin_end_of(&mut self, parents: &[Id], uses: &mut Uses) {
        self.mark_of(parents, |range| {
            range.ending += 1;
            uses.add(&range.uses);
        });
    }

    /// That call failed.
    pub fn keep_of(&mut self, parents: &[Id]) {
        self.mark_of(parents, |range| range.ending = range.ending.saturating_sub(1));
    }

    fn mark_of(&mut self, parents: &[Id], how: impl FnMut(&mut Range)) {
        let parents = owners(parents);
        if !parents.is_empty() {
            let ranges = self.by_start.values_mut();
            ranges.filter(|range| range.goes_with(&parents)).for_each(how);
        }
    }

    /// Forgets what went with these objects.
    pub fn remove_of(&mut self, parents: &[Id]) {
        let parents = owners(parents);
        if !parents.is_empty() {
            self.by_start.retain(|_, range| !range.goes_with(&parents));
        }
    }
}

impl Range {
    fn goes_with(&self, parents: &BTreeSet<Id>) -> bool {
        self.parent.is_some_and(|parent| parents.contains(&parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Origin;

    #[test]
    fn bytes_are_held_where_ranges_cover_them() {
        let mut ranges = Ranges::default();
        ranges.insert(0x1000, 0x100, None);
        ranges.insert(0x1100, 0x100, None);
        ranges.insert(0x2000, 0x10, None);
        for (start, bytes) in [
            (0x1000, 0x200),
            (0x10ff, 2),
            (0x1100, 0),
            (0x1200, 0),
            (0x2000, 0x10),
        ] {
            assert!(ranges.hold(start, bytes), "{start:#x} {bytes}");
        }
        for (start, bytes) in [
            (0xfff, 1),
            (0x1000, 0x201),
            (0x1200, 1),
            (0x1fff, 2),
            (0x2008, 9),
            (0x1000, u64::MAX),
            (0x7fff_0000, 4),
            (u64::MAX, 1),
        ] {
            assert!(!ranges.hold(start, bytes), "{start:#x} {bytes}");
        }
    }

    #[test]
    fn what_an_object_owned_goes_with_it() {
        let module = Id::new(Kind::Module, Origin::Client, 1);
        let mut ranges = Ranges::default();
        ranges.insert(0x1000, 16, Some(module));
        ranges.insert(0x2000, 16, None);
        ranges.remove_of(&[module]);
        assert!(!ranges.hold(0x1000, 1) && ranges.hold(0x2000, 1));
        let freed = ranges.beginning(0x2000).expect("it begins here");
        ranges.remove(&freed);
        assert_eq!(ranges.len(), 0);
        ranges.insert(u64::MAX, 16, None);
        ranges.insert(0x3000, 0, None);
        assert_eq!(ranges.len(), 0, "no such memory");
    }

    #[test]
    fn memory_is_freed_by_one_call_that_waits_for_those_that_use_it() {
        let mut ranges = Ranges::default();
        ranges.insert(0x1000, 16, None);
        let mut used = Vec::new();
        assert!(ranges.take(0x1008, 8, &mut used));
        let freed = ranges.beginning(0x1000).expect("it begins here");
        let uses = ranges.begin_end(&freed).expect("its first end");
        assert!(!uses.are_over(1), "a copy goes on");
        assert!(!ranges.hold(0x1000, 1) && ranges.beginning(0x1000).is_none());
        assert!(ranges.begin_end(&freed).is_none(), "by another thread as well");
        used.clear();
        assert!(uses.are_over(1));
        ranges.keep(&freed);
        assert!(ranges.hold(0x1000, 1));
        assert!(ranges.beginning(0x1001).is_none());
        assert!(ranges.beginning(0).is_some_and(|freed| freed.address == 0));
    }

    #[test]
    fn a_variable_that_is_asked_for_again_is_still_in_use() {
        let module = Id::new(Kind::Module, Origin::Client, 1);
        let mut ranges = Ranges::default();
        ranges.insert(0x1000, 16, Some(module));
        let mut used = Vec::new();
        assert!(ranges.take(0x1000, 16, &mut used));
        ranges.insert(0x1000, 16, Some(module));
        let own = Use::default();
        let mut uses = Uses::new(&own);
        ranges.begin_end_of(&[module], &mut uses);
        assert!(!uses.are_over(0), "a copy goes on");
        used.clear();
        assert!(uses.are_over(0));
    }

    #[test]
    fn memory_at_an_address_that_was_freed_is_other_memory() {
        let mut ranges = Ranges::default();
        ranges.insert(0x1000, 16, None);
        let freed = ranges.beginning(0x1000).expect("it begins here");
        ranges.begin_end(&freed).expect("its end");
        // The driver has freed it, and gives the address to another thread before the first one says so.
        ranges.insert(0x1000, 32, None);
        ranges.remove(&freed);
        assert!(ranges.hold(0x1000, 32));
    }

    #[test]
    fn the_end_of_an_object_waits_for_calls_that_use_its_memory() {
        let context = Id::new(Kind::Context, Origin::Client, 1);
        let mut ranges = Ranges::default();
        ranges.insert(0x1000, 16, Some(context));
        let mut used = Vec::new();
        assert!(ranges.take(0x1000, 16, &mut used));
        let own = Use::default();
        let mut uses = Uses::new(&own);
        ranges.begin_end_of(&[context], &mut uses);
        assert!(!uses.are_over(0) && !ranges.hold(0x1000, 1));
        used.clear();
        assert!(uses.are_over(0));
        ranges.keep_of(&[context]);
        assert!(ranges.hold(0x1000, 1));
    }
}
