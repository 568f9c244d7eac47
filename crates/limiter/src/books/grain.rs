//! The driver's pages: their size, and how many of them an allocation can take.
//!
//! The size of a page is what the driver tells as the granularity of physical memory. Which pages an allocation with an
//! address holds, [`super::held`] knows. Of things without one, arrays and modules, what is larger than half a page is
//! charged in whole pages and the rest by [`super::small`].

use core::sync::atomic::{AtomicU64, Ordering};

use divvy_abi::{
    CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
    CUmemAllocationProp, Symbol,
};

use super::{POOLS, UNIT, rounded};
use crate::account::Account;
use crate::below::{self, ask, forward};
use crate::map::PAYERS;

/// Smaller pages are not told apart from the ledger's unit.
const LEAST: u64 = PAYERS as u64;

/// Bytes of a page by account; 0 until the driver was asked.
static PAGES: [AtomicU64; POOLS as usize] = [const { AtomicU64::new(0) }; POOLS as usize];

/// Bytes that an allocation of `bytes` takes from the account's device.
#[inline]
pub(crate) fn taken(account: Account, bytes: u64) -> u64 {
    let page = page(account);
    if bytes > page / 2 {
        bytes
            .checked_next_multiple_of(page)
            .unwrap_or(u64::MAX - UNIT + 1)
    } else {
        rounded(bytes)
    }
}

/// The most bytes of pages that an allocation of `bytes` can take from the account's device.
#[inline]
pub(crate) fn most(account: Account, bytes: u64) -> u64 {
    bytes
        .checked_next_multiple_of(page(account))
        .unwrap_or(u64::MAX - UNIT + 1)
}

/// The whole pages of the account's device that are in `bytes`.
pub(crate) fn whole_pages(account: Account, bytes: u64) -> u64 {
    let page = page(account);
    bytes / page * page
}

/// Bytes of a page of the account's device, to which everything that was charged so far agrees: from the first
/// allocation on it does not change any more.
#[inline]
pub(crate) fn settled_page(account: Account) -> u64 {
    let page = page(account);
    if page == UNIT {
        PAGES[usize::from(account.index() % POOLS as u8)].store(UNIT, Ordering::Relaxed);
    }
    page
}

/// Bytes of a page of the account's device.
#[inline]
pub(crate) fn page(account: Account) -> u64 {
    match PAGES[usize::from(account.index() % POOLS as u8)].load(Ordering::Relaxed) {
        0 => ask_page(account),
        page => page,
    }
}

#[cold]
fn ask_page(account: Account) -> u64 {
    let keep = |page| {
        PAGES[usize::from(account.index() % POOLS as u8)].store(page, Ordering::Relaxed);
        page
    };
    if !below::has(Symbol::cuMemGetAllocationGranularity) {
        return keep(UNIT);
    }
    let Some(device) = ask::current_device() else {
        return UNIT;
    };
    let mut properties = CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        ..Default::default()
    };
    properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.anonymous1.id = device;
    let mut page = 0;
    // SAFETY: valid in- and out-parameters.
    let result = unsafe {
        forward::cuMemGetAllocationGranularity(
            &raw mut page,
            &raw const properties,
            CU_MEM_ALLOC_GRANULARITY_MINIMUM,
        )
    };
    match page as u64 {
        page if result.is_success() && page.is_power_of_two() && page >= LEAST => keep(page),
        _ if result.is_success() => keep(UNIT),
        // Too early to ask, perhaps.
        _ => UNIT,
    }
}
