//! The device memory of a connection, by address: what the driver below is asked to read and write lies in it.
//!
//! With unified addressing the driver takes an address of its own process's memory where a device's is meant. So an
//! address counts only where a call of this connection made the memory.

use std::collections::BTreeMap;

use crate::handle::Id;

/// The memory.
#[derive(Default)]
pub struct Ranges {
    by_start: BTreeMap<u64, Range>,
}

struct Range {
    bytes: u64,
    parent: Option<Id>,
}

impl Ranges {
    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Enters memory that a call made.
    pub fn insert(&mut self, start: u64, bytes: u64, parent: Option<Id>) {
        if start != 0 && bytes != 0 && start.checked_add(bytes).is_some() {
            self.by_start.insert(start, Range { bytes, parent });
        }
    }

    /// Whether these bytes are memory of the connection. Ranges that adjoin count as one; no bytes are, where the
    /// address is in a range, at its end, or null.
    pub fn hold(&self, start: u64, bytes: u64) -> bool {
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
            if last < at || (last == at && bytes != 0) {
                return false;
            }
            if last >= end {
                return true;
            }
            at = last;
        }
    }

    /// Whether a range begins here.
    pub fn begins(&self, start: u64) -> bool {
        self.by_start.contains_key(&start)
    }

    /// Forgets the range that begins here.
    pub fn remove(&mut self, start: u64) {
        self.by_start.remove(&start);
    }

    /// Forgets what went with these objects.
    pub fn remove_of(&mut self, parents: &[Id]) {
        self.by_start
            .retain(|_, range| range.parent.is_none_or(|parent| !parents.contains(&parent)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::{Kind, Origin};

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
        ranges.remove(0x2000);
        assert_eq!(ranges.len(), 0);
        ranges.insert(u64::MAX, 16, None);
        ranges.insert(0x3000, 0, None);
        assert_eq!(ranges.len(), 0, "no such memory");
    }
}
