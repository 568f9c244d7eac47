//! The allocations that this process is charged for, and the end of a charge.

use crate::detached::{Detached, Ended};
use crate::environment::{Account, Environment};
use crate::extents::Extents;
use crate::owner::{Owned, Owner};
use crate::pointers::{Charge, PointerMap};
use crate::pools::Pools;
use crate::spilled::Spilled;

/// Live allocations, the pages that they hold, and the pools that they come from.
pub(crate) struct Charged<E> {
    pub pools: Pools<E>,
    pub pointers: PointerMap,
    pub spilled: Spilled,
}

impl<E> Charged<E> {
    pub const fn new(env: E) -> Self {
        Self {
            pools: Pools::new(env),
            pointers: PointerMap::new(),
            spilled: Spilled::new(),
        }
    }
}

impl<E: Environment> Charged<E> {
    #[inline]
    pub fn env(&self) -> &E {
        self.pools.env()
    }

    #[inline]
    pub fn extents(&self) -> &Extents<E> {
        &self.pools.extents
    }

    /// The account that is charged for an owner, itself or for a pool, by pages or by size.
    pub fn account_of(&self, owner: Owner) -> Option<E::Account> {
        match owner {
            Owner::Account(index) | Owner::Managed(index) => self.env().account(index),
            Owner::Pool(pool) => self.env().account(self.pools.account_of(pool)?),
            Owner::Spilled(_) => None,
        }
    }

    /// The account that is charged for the pages of an owner, itself or for a pool.
    fn account_of_pages(&self, owner: Owner) -> Option<E::Account> {
        match owner {
            Owner::Account(_) | Owner::Pool(_) => self.account_of(owner),
            Owner::Managed(_) | Owner::Spilled(_) => None,
        }
    }

    /// An allocation is gone: its charge is removed.
    #[inline]
    pub fn give_back(&self, owned: Owned) {
        match owned.owner {
            Owner::Account(index) => {
                if let Some(account) = self.env().account(index) {
                    give_back(account, self.extents().freed(account, owned));
                }
            }
            Owner::Pool(pool) => self.pools.freed(pool, &[owned.extent], false),
            Owner::Managed(index) => {
                if let Some(account) = self.env().account(index) {
                    give_back(account, owned.extent.bytes);
                }
            }
            Owner::Spilled(index) => self.spilled.freed(self.env(), index, owned.extent.bytes),
        }
    }

    /// Restores a removed charge of an allocation that the driver has not freed.
    pub fn put_back(&self, pointer: u64, charge: Charge) {
        // Its space was free a moment ago.
        let _room_was_there = self.pointers.insert(charge.at(pointer));
    }

    /// Whether a page of an allocation is shared with a detached one: then it is detached as well.
    #[inline]
    pub fn touches_detached(&self, owned: Owned) -> bool {
        self.extents().any_detached()
            && self
                .account_of_pages(owned.owner)
                .is_some_and(|account| self.extents().touches_detached(account, owned))
    }

    /// Detaches an allocation from its pages: `at_once`, or at the call of [`Charged::leave_pages`]. `None` if it is
    /// charged by its size.
    pub fn detach(&self, owned: Owned, at_once: bool) -> Option<Detached> {
        let account = self.account_of_pages(owned.owner)?;
        let mut detached = self.extents().detach(account, owned);
        if at_once {
            self.leave_pages(&mut detached);
        }
        Some(detached)
    }

    /// A detached allocation is no longer in its pages by address.
    pub fn leave_pages(&self, detached: &mut Detached) {
        let emptied = self.extents().leave_pages(detached);
        if let Owner::Pool(pool) = detached.owned.owner {
            self.pools.detach(pool, emptied as i64);
        }
    }

    /// A detached allocation was freed, and still has importers.
    pub fn make_residual(&self, detached: &mut Detached) {
        detached.residual = true;
        if let Owner::Pool(pool) = detached.owned.owner {
            self.pools.detach(pool, detached.whole_bytes() as i64);
        }
    }

    /// A detached allocation was freed, and no longer has importers.
    pub fn end_detached(&self, detached: &Detached) {
        let Ended {
            by_address,
            detached: charged,
        } = self.extents().groups().0.remove(detached);
        if let Owner::Pool(pool) = detached.owned.owner {
            self.pools.let_go(pool, by_address, charged);
        } else if let Some(account) = self.env().account(detached.account) {
            give_back(
                account,
                self.extents().left(account, detached.owned, by_address + charged),
            );
        }
    }

    /// The driver has not freed a detached allocation.
    pub fn undo_detached(&self, detached: &Detached) {
        let Some(account) = self.env().account(detached.account) else {
            return;
        };
        let (groups, pages) = self.extents().groups();
        let (again, surplus) = groups.undo(detached, pages);
        if let Owner::Pool(pool) = detached.owned.owner {
            self.pools.detach(pool, -(again as i64));
            self.pools.let_go(pool, 0, surplus);
        } else {
            give_back(account, surplus);
        }
    }
}

#[inline]
fn give_back(account: impl Account, bytes: u64) {
    if bytes > 0 {
        account.give_back(bytes);
    }
}
