//! The owner of an allocation's charge.

use divvy_abi::CUdeviceptr;

/// The owner of an allocation's charge, and the measure of the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The account with this index, by the pages that the allocation lies in.
    Account(u8),
    /// The memory pool with this number. Its account is charged for the memory that the pool holds.
    Pool(u16),
    /// The account with this index, by size: managed memory has no pages of its own.
    Managed(u8),
    /// The account with this index, for memory beyond its share.
    Spilled(u8),
}

/// Bits of an owner's code.
pub(crate) const CODE_BITS: u32 = 12;
const CODES: u16 = 1 << CODE_BITS;
/// The number of accounts that a code can distinguish.
pub(crate) const ACCOUNTS: u16 = 64;
/// The number of pools that a code can distinguish.
pub(crate) const POOLS: u16 = CODES - 3 * ACCOUNTS;
const MANAGED: u16 = ACCOUNTS + POOLS;
const SPILLED: u16 = MANAGED + ACCOUNTS;

const _: () = assert!(divvy_ledger::MAX_ACCOUNTS <= ACCOUNTS as u32);

impl Owner {
    /// A number below 4096 that stands for this owner and no other.
    #[inline]
    pub(crate) const fn code(self) -> u16 {
        match self {
            Self::Account(index) => index as u16,
            Self::Pool(number) => ACCOUNTS + number,
            Self::Managed(index) => MANAGED + index as u16,
            Self::Spilled(index) => SPILLED + index as u16,
        }
    }

    /// The owner with this code.
    #[inline]
    pub(crate) const fn of_code(code: u16) -> Self {
        match code % CODES {
            code @ 0..ACCOUNTS => Self::Account(code as u8),
            code @ ACCOUNTS..MANAGED => Self::Pool(code - ACCOUNTS),
            code @ MANAGED..SPILLED => Self::Managed((code - MANAGED) as u8),
            code => Self::Spilled((code - SPILLED) as u8),
        }
    }

    /// Whether it is a memory pool.
    #[inline]
    #[must_use]
    pub const fn is_pool(self) -> bool {
        matches!(self, Self::Pool(_))
    }
}

/// An allocation by its address and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    pub pointer: CUdeviceptr,
    /// Its size in bytes, a multiple of [`crate::UNIT`].
    pub bytes: u64,
}

/// An allocation that its owner is charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The owner of the charge.
    pub owner: Owner,
    /// The allocation.
    pub extent: Extent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_stands_for_one_owner() {
        for code in 0..CODES {
            assert_eq!(Owner::of_code(code).code(), code);
        }
        assert_eq!(Owner::of_code(CODES - 1), Owner::Spilled(63));
        assert_eq!(Owner::Pool(POOLS - 1).code() + 1, Owner::Managed(0).code());
    }
}
