//! Open addressing with linear probing, in memory that does not come from the program's allocator.

pub use divvy_ledger::private::Exhausted;
use divvy_ledger::private::Zeroed;
use zerocopy::FromZeros;

/// Entries of a first table: one page of 16-byte entries.
const FIRST_CAPACITY: u32 = 256;

/// An entry of a table. All zeros mean a free entry.
pub(crate) trait Entry: Copy + FromZeros {
    /// Its key; 0 marks a free entry.
    fn key(&self) -> u64;
}

/// Entries by their keys. Takes no memory before the first insertion.
pub(crate) struct Table<E: Entry> {
    /// Their number is a power of two, or 0 before the first insertion.
    entries: Zeroed<E>,
    live: u32,
}

/// Spreads keys, which end in zeros, over shards (top bits) and positions (the bits below).
#[inline]
pub(crate) fn hash(key: u64) -> u64 {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl<E: Entry> Table<E> {
    pub const fn new() -> Self {
        Self {
            entries: Zeroed::empty(),
            live: 0,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = E> + '_ {
        self.entries.iter().copied().filter(|entry| entry.key() != 0)
    }

    /// The position of the entry with this key.
    #[inline]
    pub fn find(&self, key: u64) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        let place = self.place_of(key);
        (self.entries[place].key() != 0).then_some(place)
    }

    /// The position of the entry with this key, or its future one. The table has space for one more entry.
    ///
    /// # Errors
    /// [`Exhausted`]; nothing is changed then.
    #[inline]
    pub fn place_for(&mut self, key: u64) -> Result<usize, Exhausted> {
        if self.len() >= self.entries.len() / 2 {
            self.grow()?;
        }
        Ok(self.place_of(key))
    }

    #[inline]
    pub fn get(&self, place: usize) -> E {
        self.entries[place]
    }

    /// The entry itself. If a key is written to a free entry, [`Table::count_one`] has to be called.
    #[inline]
    pub fn at(&mut self, place: usize) -> &mut E {
        &mut self.entries[place]
    }

    /// A free entry was taken.
    #[inline]
    pub fn count_one(&mut self) {
        self.live += 1;
    }

    /// Puts an entry at the position from [`Table::place_for`] or [`Table::find`]. Returns the previous entry.
    #[inline]
    pub fn put(&mut self, place: usize, entry: E) -> Option<E> {
        let old = core::mem::replace(&mut self.entries[place], entry);
        if old.key() != 0 {
            return Some(old);
        }
        self.live += 1;
        None
    }

    /// There is always a free entry.
    #[inline]
    fn place_of(&self, key: u64) -> usize {
        let entries = &*self.entries;
        let mask = entries.len() - 1;
        let mut place = hash(key) as usize & mask;
        loop {
            let found = entries[place].key();
            if found == key || found == 0 {
                return place;
            }
            place = (place + 1) & mask;
        }
    }

    /// Frees an entry, and moves displaced entries back. There are no tombstones, so lookups stay short.
    pub fn remove(&mut self, mut hole: usize) {
        let entries = &mut *self.entries;
        let mask = entries.len() - 1;
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let entry = entries[place];
            if entry.key() == 0 {
                break;
            }
            let home = hash(entry.key()) as usize & mask;
            // May the entry move to the hole without passing its home position?
            if (place.wrapping_sub(home) & mask) >= (place.wrapping_sub(hole) & mask) {
                entries[hole] = entry;
                hole = place;
            }
        }
        entries[hole] = E::new_zeroed();
        self.live -= 1;
    }

    #[cold]
    fn grow(&mut self) -> Result<(), Exhausted> {
        let capacity = (self.entries.len() as u32 * 2).max(FIRST_CAPACITY);
        let mut larger = Self {
            entries: Zeroed::new(capacity)?,
            live: 0,
        };
        for entry in self.iter() {
            let place = larger.place_of(entry.key());
            larger.put(place, entry);
        }
        *self = larger;
        Ok(())
    }
}
