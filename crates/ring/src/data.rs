//! Which parts of a region's data area are in use. One side alone decides it: the client's.
//!
//! The state is private memory. What the other side writes into the data area cannot change it, and a forked child's copy
//! has no effect on its parent's. The other side checks each offset that it is sent by itself, with [`Extent::is_in`].

use std::collections::{BTreeMap, BTreeSet};

/// Sizes are rounded up to a multiple of this, and each extent begins at one, in bytes.
pub const GRANULARITY: u64 = 512;

/// A part of the data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins, in bytes from the data area's start.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl Extent {
    /// Whether it lies inside a data area of so many bytes, whatever its numbers are.
    #[must_use]
    pub fn is_in(&self, area_bytes: u64) -> bool {
        self.offset
            .checked_add(self.bytes)
            .is_some_and(|end| end <= area_bytes)
    }
}

/// The extents of one data area: each byte is free or belongs to one extent in use.
#[derive(Debug)]
pub struct Extents {
    /// Length of each free extent by its offset. No two of them touch.
    free: BTreeMap<u64, u64>,
    /// The same, by length.
    by_length: BTreeSet<(u64, u64)>,
    /// Length of each extent in use by its offset.
    used: BTreeMap<u64, u64>,
    used_bytes: u64,
    /// Most extents in use.
    most: usize,
}

impl Extents {
    /// Of a data area of `bytes`, of which a rest that is no multiple of [`GRANULARITY`] stays unused. It gives out `most`
    /// extents at once, which bounds its own memory.
    #[must_use]
    pub fn new(bytes: u64, most: usize) -> Self {
        let mut extents = Self {
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            used: BTreeMap::new(),
            used_bytes: 0,
            most,
        };
        extents.add_free(0, bytes - bytes % GRANULARITY);
        extents
    }

    /// Takes an extent of at least `bytes` at a multiple of `align`, from the smallest free extent that has it. `None` if
    /// none has, if `most` are in use, if `bytes` is 0, or if `align` is no power of two.
    pub fn allocate(&mut self, bytes: u64, align: u64) -> Option<Extent> {
        if bytes == 0 || !align.is_power_of_two() || self.used.len() >= self.most {
            return None;
        }
        let bytes = bytes.checked_next_multiple_of(GRANULARITY)?;
        let (length, start, offset) = self.by_length.range((bytes, 0)..).find_map(|&(length, start)| {
            let offset = start.checked_next_multiple_of(align.max(GRANULARITY))?;
            let fits = Extent { offset, bytes }.is_in(start + length);
            fits.then_some((length, start, offset))
        })?;
        self.free.remove(&start);
        self.by_length.remove(&(length, start));
        self.add_free(start, offset - start);
        self.add_free(offset + bytes, start + length - offset - bytes);
        self.used.insert(offset, bytes);
        self.used_bytes += bytes;
        Some(Extent { offset, bytes })
    }

    /// Gives back the extent that begins at `offset`, and joins it with free ones beside it. `None` if none in use begins
    /// there.
    pub fn release(&mut self, offset: u64) -> Option<Extent> {
        let bytes = self.used.remove(&offset)?;
        self.used_bytes -= bytes;
        let (mut start, mut end) = (offset, offset + bytes);
        if let Some((&before, &length)) = self.free.range(..offset).next_back()
            && before + length == offset
        {
            self.take_free(before, length);
            start = before;
        }
        if let Some(&length) = self.free.get(&end) {
            self.take_free(end, length);
            end += length;
        }
        self.add_free(start, end - start);
        Some(Extent { offset, bytes })
    }

    /// The extent in use that has the byte at `offset`.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<Extent> {
        let (&start, &bytes) = self.used.range(..=offset).next_back()?;
        (offset - start < bytes).then_some(Extent { offset: start, bytes })
    }

    /// Bytes in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn add_free(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.free.insert(start, length);
            self.by_length.insert((length, start));
        }
    }

    fn take_free(&mut self, start: u64, length: u64) {
        self.free.remove(&start);
        self.by_length.remove(&(length, start));
    }
}
