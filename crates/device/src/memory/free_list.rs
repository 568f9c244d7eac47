//! A first-fit allocator of granules inside one slab: offsets only, no memory.

use std::collections::BTreeMap;

/// Free extents of a slab, by offset; neighbours are always merged.
#[derive(Debug)]
pub struct FreeList {
    extents: BTreeMap<u64, u64>,
    size: u64,
}

impl FreeList {
    /// Everything free.
    pub fn new(size: u64) -> FreeList {
        FreeList {
            extents: BTreeMap::from([(0, size)]),
            size,
        }
    }

    /// Takes the first extent of at least `bytes`; gives its offset.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &length) = self.extents.iter().find(|&(_, &length)| length >= bytes)?;
        self.extents.remove(&offset);
        if length > bytes {
            self.extents.insert(offset + bytes, length - bytes);
        }
        Some(offset)
    }

    /// Gives back what [`FreeList::take`] gave.
    pub fn give(&mut self, mut offset: u64, mut bytes: u64) {
        if let Some((&before, &length)) = self.extents.range(..offset).next_back()
            && before + length == offset
        {
            self.extents.remove(&before);
            (offset, bytes) = (before, bytes + length);
        }
        if let Some(length) = self.extents.remove(&(offset + bytes)) {
            bytes += length;
        }
        self.extents.insert(offset, bytes);
    }

    /// Nothing is taken.
    pub fn is_whole(&self) -> bool {
        self.extents.get(&0) == Some(&self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_never_overlap_and_all_come_back(sizes in prop::collection::vec((1u64..20, any::<bool>()), 1..200)) {
            let mut list = FreeList::new(1024);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (size, free_oldest) in sizes {
                if free_oldest && !live.is_empty() {
                    let (offset, bytes) = live.remove(0);
                    list.give(offset, bytes);
                }
                if let Some(offset) = list.take(size) {
                    prop_assert!(offset + size <= 1024);
                    prop_assert!(live.iter().all(|&(other, bytes)| offset + size <= other || other + bytes <= offset));
                    live.push((offset, size));
                }
            }
            for (offset, bytes) in live {
                list.give(offset, bytes);
            }
            prop_assert!(list.is_whole());
        }
    }
}
