//! The residual charge of a shared allocation, in one word beside the word that names the owner.
//!
//! `let go (1 bit) | page number (13) | page number (13) | log2 of a page (6) | own units (31)`. Small allocations
//! share pages, and a page counts once, however many allocations keep it. The owner gives each such page a number of
//! its own choice, and the sum of the residual charges counts a number once.

use crate::accounting::UNIT;

const OWN_BITS: u32 = 31;
const OWN: u64 = (1 << OWN_BITS) - 1;
const SIZE_BITS: u32 = 6;
const NUMBER_BITS: u32 = 13;
const _: () = assert!(OWN_BITS + SIZE_BITS + 2 * NUMBER_BITS + 1 == u64::BITS);

/// Page numbers are below this, and above 0.
pub const PAGE_NUMBERS: u16 = 1 << NUMBER_BITS;

/// An allocation's residual charge: what it takes from the device for as long as any process has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residual {
    /// Bytes that no other allocation shares; at most 1 TiB.
    pub own_bytes: u64,
    /// The owner's numbers of the pages that it shares with others; 0 for none.
    pub pages: [u16; 2],
    /// Bytes of such a page, a power of two.
    pub page_bytes: u64,
}

/// Set once the owner has let go of the allocation, and is charged only because importers have it open.
pub(crate) const LET_GO: u64 = 1 << 63;

impl Residual {
    /// An allocation with pages of its own.
    #[must_use]
    pub const fn whole(bytes: u64) -> Self {
        Self {
            own_bytes: bytes,
            pages: [0; 2],
            page_bytes: 0,
        }
    }

    /// The allocation's whole charge by itself, in bytes.
    pub(crate) fn bytes(self) -> u64 {
        let pages = self.pages.iter().filter(|number| **number != 0).count() as u64;
        self.own_bytes
            .saturating_add(self.page_bytes.saturating_mul(pages))
    }

    pub(crate) fn to_word(self) -> u64 {
        let own = self.own_bytes.div_ceil(UNIT).min(OWN);
        let size = u64::from(self.page_bytes.max(1).ilog2());
        let [first, second] = self
            .pages
            .map(|number| u64::from(number) & (u64::from(PAGE_NUMBERS) - 1));
        ((second << NUMBER_BITS | first) << SIZE_BITS | size) << OWN_BITS | own
    }

    pub(crate) fn of_word(word: u64) -> Self {
        let number = |at: u32| {
            let shift = OWN_BITS + SIZE_BITS + at * NUMBER_BITS;
            (word >> shift) as u16 & (PAGE_NUMBERS - 1)
        };
        Self {
            own_bytes: (word & OWN) * UNIT,
            pages: [number(0), number(1)],
            page_bytes: 1 << (word >> OWN_BITS & ((1 << SIZE_BITS) - 1)),
        }
    }
}

/// Adds up the residual charges of one owner's allocations, in bytes.
pub(crate) struct Sum {
    bytes: u64,
    counted: [u64; PAGE_NUMBERS as usize / 64],
}

impl Sum {
    pub const fn new() -> Self {
        Self {
            bytes: 0,
            counted: [0; PAGE_NUMBERS as usize / 64],
        }
    }

    pub fn add(&mut self, residual: Residual) {
        self.bytes = self.bytes.saturating_add(residual.own_bytes);
        for number in residual.pages.into_iter().filter(|number| *number != 0) {
            let (word, bit) = (usize::from(number / 64), 1 << (number % 64));
            if self.counted[word] & bit == 0 {
                self.counted[word] |= bit;
                self.bytes = self.bytes.saturating_add(residual.page_bytes);
            }
        }
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_residual_is_read_back_from_its_word() {
        for residual in [
            Residual {
                own_bytes: 0,
                pages: [1, PAGE_NUMBERS - 1],
                page_bytes: 2 << 20,
            },
            Residual {
                own_bytes: 512 << 30,
                pages: [0, 7],
                page_bytes: 1 << 62,
            },
        ] {
            assert_eq!(Residual::of_word(residual.to_word()), residual);
            assert_eq!(Residual::of_word(residual.to_word() | LET_GO), residual);
        }
        assert_eq!(Residual::of_word(Residual::whole(1).to_word()).bytes(), UNIT);
        // Whatever the word says, reading it is no more than that.
        let all = Residual::of_word(u64::MAX);
        assert_eq!(Residual::of_word(all.to_word()), all);
    }

    #[test]
    fn a_page_counts_once_for_all_that_lie_in_it() {
        let mut sum = Sum::new();
        let lies_in = |pages| Residual {
            own_bytes: 0,
            pages,
            page_bytes: 2 << 20,
        };
        for _ in 0..100 {
            sum.add(lies_in([3, 0]));
        }
        sum.add(lies_in([3, 4]));
        sum.add(Residual::whole(4 << 20));
        assert_eq!(sum.bytes(), 8 << 20);
    }
}
