//! The device memory of allocations and objects, in pages.

use divvy_abi::CUresult;
use divvy_ledger::shared::Residual;

use crate::detached::{Detached, Groups};
use crate::environment::{Account, Environment, Reserve};
use crate::granularity::{Granularity, taken, whole_pages};
use crate::owner::{Owned, Owner};
use crate::page_numbers::{Numbered, PageNumbers};
use crate::pages::{PageMap, Parts};
use crate::small::{SmallObjects, is_small};
use crate::table::Exhausted;
use crate::units::{UNIT, rounded_to};

/// The held pages, and the environment.
pub(crate) struct Extents<E> {
    pub env: E,
    granularity: Granularity,
    pages: PageMap,
    detached: Groups,
    small: SmallObjects,
    pub numbers: PageNumbers,
}

impl<E> Extents<E> {
    pub const fn new(env: E) -> Self {
        Self {
            env,
            granularity: Granularity::new(),
            pages: PageMap::new(),
            detached: Groups::new(),
            small: SmallObjects::new(),
            numbers: PageNumbers::new(),
        }
    }
}

impl<E: Environment> Extents<E> {
    /// Bytes of a page of the account's device.
    #[inline]
    pub fn page(&self, account: E::Account) -> u64 {
        self.granularity.page(&self.env, account.index())
    }

    #[inline]
    fn settled_page(&self, account: E::Account) -> u64 {
        self.granularity.settled_page(&self.env, account.index())
    }

    /// Bytes that an object of `bytes` takes from the account's device.
    #[inline]
    pub fn taken(&self, account: E::Account, bytes: u64) -> u64 {
        taken(self.page(account), bytes)
    }

    /// The most bytes of pages that an allocation of `bytes` can take from the account's device.
    #[inline]
    pub fn most(&self, account: E::Account, bytes: u64) -> u64 {
        rounded_to(bytes, self.page(account))
    }

    /// The whole pages of the account's device that are in `bytes`.
    pub fn whole_pages(&self, account: E::Account, bytes: u64) -> u64 {
        whole_pages(self.page(account), bytes)
    }

    fn parts(&self, account: E::Account, owned: Owned) -> Parts {
        match self.settled_page(account) {
            UNIT => Parts {
                whole: owned.extent.bytes,
                shared: [None; 2],
            },
            page => Parts::of(owned, page),
        }
    }

    /// An allocation is charged to `account`, by itself or for a pool. Returns how many more bytes of pages the owner
    /// holds now.
    ///
    /// # Errors
    /// [`Exhausted`]; nothing is changed then.
    #[inline]
    pub fn enter(&self, account: E::Account, owned: Owned) -> Result<u64, Exhausted> {
        match self.settled_page(account) {
            UNIT => Ok(owned.extent.bytes),
            page => self.pages.enter(owned, page),
        }
    }

    /// Removes an allocation. Returns how many bytes of pages its owner no longer holds.
    #[inline]
    pub fn leave(&self, account: E::Account, owned: Owned) -> u64 {
        match self.settled_page(account) {
            UNIT => owned.extent.bytes,
            page => self.pages.leave(owned, page),
        }
    }

    /// Removes an allocation of an account. Returns the bytes to give back.
    #[inline]
    pub fn freed(&self, account: E::Account, owned: Owned) -> u64 {
        let page = self.settled_page(account);
        if page == UNIT {
            return owned.extent.bytes;
        }
        let mut left = self.pages.leave(owned, page);
        if self.any_detached() {
            left = left.saturating_sub(self.detached.kept(&self.pages, Parts::of(owned, page), page));
        }
        self.small.left(account.index(), page, owned.extent.bytes, left)
    }

    /// Of `bytes` of pages that an allocation has left, those that no small object can be in.
    #[inline]
    pub fn left(&self, account: E::Account, owned: Owned, bytes: u64) -> u64 {
        let page = self.settled_page(account);
        self.small.left(account.index(), page, owned.extent.bytes, bytes)
    }

    /// Whether any allocation is detached.
    #[inline]
    pub fn any_detached(&self) -> bool {
        self.detached.any()
    }

    /// Whether an allocation shares a page with a detached one.
    pub fn touches_detached(&self, account: E::Account, owned: Owned) -> bool {
        self.detached.touch(self.parts(account, owned))
    }

    /// Detaches an allocation.
    pub fn detach(&self, account: E::Account, owned: Owned) -> Detached {
        self.detached
            .add(owned, account.index(), self.parts(account, owned))
    }

    /// An allocation has left its pages by address. Returns how many bytes of them stay charged for detached ones.
    #[inline]
    pub fn kept(&self, account: E::Account, owned: Owned) -> u64 {
        if !self.any_detached() {
            return 0;
        }
        let page = self.settled_page(account);
        self.detached.kept(&self.pages, self.parts(account, owned), page)
    }

    /// An allocation has come to its pages by address. Returns how many bytes of them were charged for detached ones.
    #[inline]
    pub fn revived(&self, account: E::Account, owned: Owned) -> u64 {
        if !self.any_detached() {
            return 0;
        }
        self.detached.revived(self.parts(account, owned))
    }

    /// As [`Groups::leave_pages`].
    pub fn leave_pages(&self, detached: &mut Detached) -> u64 {
        match self.env.account(detached.account) {
            Some(account) => {
                let page = self.settled_page(account);
                self.detached.leave_pages(detached, &self.pages, page)
            }
            None => 0,
        }
    }

    /// The groups of detached allocations.
    pub fn groups(&self) -> (&Groups, &PageMap) {
        (&self.detached, &self.pages)
    }

    /// What stays charged for an exported allocation if this process dies, and the numbers of its pages.
    pub fn residual(&self, account: E::Account, owned: Owned) -> (Residual, Numbered) {
        if matches!(owned.owner, Owner::Managed(_) | Owner::Spilled(_)) {
            return (Residual::whole(owned.extent.bytes), Numbered::default());
        }
        let page = self.settled_page(account);
        let parts = self.parts(account, owned);
        let numbered = self.numbers.enter(parts.shared);
        // A page without a number counts for each allocation in it.
        let pages = parts.shared.iter().zip(numbered.0);
        let without = pages
            .filter(|(key, number)| key.is_some() && *number == 0)
            .count();
        let residual = Residual {
            own_bytes: parts.whole + without as u64 * page,
            pages: numbered.0,
            page_bytes: page,
        };
        (residual, numbered)
    }

    /// Reserves memory for an object of `bytes` without an address, of at most `allocations` allocations. Returns its
    /// charge.
    ///
    /// # Errors
    /// As [`Reserve::reserve`].
    pub fn enter_object(
        &self,
        room: &impl Reserve<E::Account>,
        account: E::Account,
        bytes: u64,
        allocations: u64,
        what: &'static str,
    ) -> Result<Object, CUresult> {
        let bytes = self.taken(account, bytes);
        let page = self.settled_page(account);
        let allocations = if is_small(page, bytes) {
            let allocations = allocations.clamp(1, (bytes / UNIT).max(1));
            self.small.enter(room, account, page, bytes, allocations, what)?;
            allocations
        } else {
            room.reserve(account, bytes, what)?;
            0
        };
        Ok(Object {
            account: account.index(),
            bytes,
            allocations,
        })
    }

    /// An object is gone.
    pub fn leave_object(&self, object: Object) {
        let Some(account) = self.env.account(object.account) else {
            return;
        };
        match object.allocations {
            0 => account.give_back(object.bytes),
            allocations => {
                let page = self.settled_page(account);
                self.small.leave(account, page, object.bytes, allocations);
            }
        }
    }
}

/// The charge of an object without an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    account: u8,
    bytes: u64,
    /// The most allocations that it can be, if it shares pages; 0 if it has pages of its own.
    allocations: u64,
}
