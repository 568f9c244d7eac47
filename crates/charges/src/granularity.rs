//! The driver's pages: their size, and how many of them an allocation can take.
//!
//! The size of a page is the driver's granularity of physical memory. [`crate::pages`] tracks which pages an allocation
//! with an address holds. Objects without an address are charged in whole pages if they are larger than half a page,
//! and otherwise by [`crate::small`].

use core::sync::atomic::{AtomicU64, Ordering};

use crate::environment::Driver;
use crate::owner::ACCOUNTS;
use crate::pages::LEAST_PAGE;
use crate::units::{UNIT, begin_of_page, rounded, rounded_to};

/// Bytes of a page by account.
pub(crate) struct Granularity {
    /// 0 until the driver is asked.
    pages: [AtomicU64; ACCOUNTS as usize],
}

impl Granularity {
    pub const fn new() -> Self {
        Self {
            pages: [const { AtomicU64::new(0) }; ACCOUNTS as usize],
        }
    }

    fn of(&self, account: u8) -> &AtomicU64 {
        &self.pages[usize::from(account) % self.pages.len()]
    }

    /// Bytes of a page of the account's device. All earlier charges agree with it: from the first allocation on it does
    /// not change any more.
    #[inline]
    pub fn settled_page(&self, driver: &impl Driver, account: u8) -> u64 {
        let page = self.page(driver, account);
        if page == UNIT {
            self.of(account).store(UNIT, Ordering::Relaxed);
        }
        page
    }

    /// Bytes of a page of the account's device.
    #[inline]
    pub fn page(&self, driver: &impl Driver, account: u8) -> u64 {
        match self.of(account).load(Ordering::Relaxed) {
            0 => self.ask(driver, account),
            page => page,
        }
    }

    #[cold]
    fn ask(&self, driver: &impl Driver, account: u8) -> u64 {
        let Some(told) = driver.granularity() else {
            return UNIT;
        };
        let usable = told.is_power_of_two() && told >= LEAST_PAGE;
        let page = if usable { told } else { UNIT };
        self.of(account).store(page, Ordering::Relaxed);
        page
    }
}

/// Bytes that an object of `bytes` takes from a device with pages of `page` bytes.
#[inline]
pub(crate) fn taken(page: u64, bytes: u64) -> u64 {
    if bytes > page / 2 {
        rounded_to(bytes, page)
    } else {
        rounded(bytes)
    }
}

/// The bytes of `bytes` that are whole pages.
pub(crate) fn whole_pages(page: u64, bytes: u64) -> u64 {
    begin_of_page(bytes, page)
}
