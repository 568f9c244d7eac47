//! Memory pools: charged for the memory that they hold, not only for the part in use.
//!
//! A pool takes memory from the device when it must, and releases it when it is trimmed or its streams are
//! synchronised. Before an allocation the pool's possible growth is reserved. Afterwards the driver reports how much
//! the pool holds, and the rest of the reservation is given back. [`Growth`] learns the driver's steps.
//!
//! The manual says that importers free an exported pointer before its owner does. If the owner frees it first, it stays
//! in its pool, which cannot release memory that importers have open. It counts as part of the pool's memory as long as
//! the pool lives. When the pool is destroyed, memory that importers have open stays charged by itself
//! ([`crate::detached`]).

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use divvy_abi::{CUDA_ERROR_OUT_OF_MEMORY, CUresult};

use crate::environment::{Account, Environment};
use crate::extents::Extents;
use crate::growth::Growth;
use crate::lock::locked;
use crate::owner::{Extent, Owned, Owner, POOLS};
use crate::units::rounded;

/// How many times in a row reuse must be observed before it is relied on.
const PROOF: u32 = 8;

#[derive(Default)]
struct Pool {
    /// The program's handle; 0 if the pool is destroyed, or its entry is free.
    handle: usize,
    /// Its handle before the device was reset.
    former: usize,
    /// Index of the account that is charged.
    account: u8,
    /// Bytes charged for the pool: the memory that it holds or is about to take.
    charged: u64,
    /// Of those, bytes reserved for allocations in progress.
    promised: u64,
    /// How many allocations are in progress.
    begun: u32,
    /// Bytes allocated from it and not freed.
    live: u64,
    /// Bytes freed in streams that have not reached the free.
    freeing: u64,
    /// Bytes of the pages that both of them lie in.
    pages: u64,
    /// Bytes of other pages that were freed and that importers have open. Below 0 for a moment only.
    detached: i64,
    /// How often in a row memory freed in a stream was observed to be reused in the same stream before the stream
    /// reached the free. One observation proves nothing: the stream may have reached the free, but not yet our event
    /// behind it.
    reused: u32,
    /// Counts the changes of the pool.
    changes: u64,
}

/// The pools that this process has allocated from, over the pages of their allocations.
pub(crate) struct Pools<E> {
    pub extents: Extents<E>,
    all: Mutex<Vec<Pool>>,
    /// Whether a pool may hold more than is in use.
    slack: AtomicBool,
    growth: Growth,
}

/// The state that an allocation keeps from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Begun {
    pool: u16,
    bytes: u64,
    /// Bytes reserved for the pool's possible growth.
    promised: u64,
    /// The bytes that the pool held before, if known.
    held: u64,
    /// No other allocation was in progress.
    alone: bool,
    /// It lacked space for these bytes beside the live memory and pending frees.
    full: bool,
    /// The pool's change count at the beginning.
    changes: u64,
}

/// Bytes by which a pool may grow for one allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// In whole pages.
    pub least: u64,
    /// In the driver's known or assumed steps.
    pub most: u64,
    /// The driver was observed to take more than whole pages.
    pub is_coarse: bool,
}

impl<E> Pools<E> {
    pub const fn new(env: E) -> Self {
        Self {
            extents: Extents::new(env),
            all: Mutex::new(Vec::new()),
            slack: AtomicBool::new(false),
            growth: Growth::new(),
        }
    }
}

impl<E: Environment> Pools<E> {
    #[inline]
    pub fn env(&self) -> &E {
        &self.extents.env
    }

    /// Whether a pool may hold more than is in use.
    #[inline]
    pub fn any_slack(&self) -> bool {
        self.slack.load(Ordering::Relaxed)
    }

    /// The number of the pool with this handle. A new pool is recorded now, charged to `account`.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` if there are too many.
    pub fn number(&self, handle: usize, account: u8) -> Result<u16, CUresult> {
        let mut all = locked(&self.all);
        let known = all.iter().position(|pool| pool.handle == handle).or_else(|| {
            let survivor = all.iter().position(|pool| pool.former == handle)?;
            all[survivor].handle = handle;
            all[survivor].former = 0;
            Some(survivor)
        });
        if let Some(at) = known {
            return Ok(at as u16);
        }
        let fresh = Pool {
            handle,
            account,
            ..Pool::default()
        };
        match all.iter().position(Pool::is_unused) {
            Some(at) => {
                all[at] = fresh;
                Ok(at as u16)
            }
            None if all.len() >= usize::from(POOLS) => Err(CUDA_ERROR_OUT_OF_MEMORY),
            None => {
                all.push(fresh);
                Ok(all.len() as u16 - 1)
            }
        }
    }

    /// Index of the account that is charged for a pool.
    pub fn account_of(&self, pool: u16) -> Option<u8> {
        locked(&self.all).get(usize::from(pool)).map(|pool| pool.account)
    }

    /// The possible growth of a pool for `bytes` more.
    pub fn need(&self, account: E::Account, bytes: u64) -> Need {
        let least = self.extents.most(account, bytes);
        Need {
            least,
            most: self.growth.most(least, self.extents.page(account)),
            is_coarse: self.growth.is_coarse(),
        }
    }

    /// The driver is about to be asked for `bytes` more, with `promised` reserved for the pool's possible growth.
    pub fn begin(&self, pool: u16, bytes: u64, promised: u64) -> Begun {
        let number = pool;
        let mut all = locked(&self.all);
        let pool = &mut all[usize::from(number)];
        let before = pool.charged.saturating_sub(pool.promised);
        // An allocation without a reservation teaches only that it needed none.
        let held = if self.growth.is_known() {
            None
        } else {
            pool.held(self.env())
        };
        let full = (pool.live + pool.freeing).saturating_add(bytes) > before;
        pool.charged += promised;
        pool.promised += promised;
        let alone = pool.begun == 0;
        pool.begun += 1;
        pool.live += bytes;
        pool.changes += 1;
        Begun {
            pool: number,
            bytes,
            promised,
            held: held.unwrap_or(before),
            alone,
            full,
            changes: pool.changes,
        }
    }

    /// Whether the driver was observed to serve this from memory that waits in the same stream.
    pub fn reuses(&self, pool: u16, bytes: u64, same_stream: u64) -> bool {
        let all = locked(&self.all);
        let pool = &all[usize::from(pool)];
        pool.reused >= PROOF && same_stream.min(pool.freeing) >= bytes
    }

    /// Whether the driver takes memory in larger steps than pages, and the pool can be expected to serve this from the
    /// rest of a step. A step cannot be trimmed while any allocation lies in it.
    pub fn is_idle(&self, pool: u16, bytes: u64) -> bool {
        let all = locked(&self.all);
        let pool = &all[usize::from(pool)];
        let used = pool.promised + pool.live + pool.freeing;
        self.growth.is_coarse() && pool.charged.saturating_sub(used) >= bytes
    }

    /// The driver has refused an allocation that was begun.
    pub fn failed(&self, begun: &Begun) {
        self.change(begun.pool, |pool| {
            pool.live = pool.live.saturating_sub(begun.bytes);
            pool.ended(begun);
        });
    }

    /// The driver has made an allocation that was begun: the pool's charge follows its new size. `still_waiting` bytes
    /// still wait to be freed in the same stream.
    ///
    /// # Errors
    /// The pool has grown by more than fits, or the allocation cannot be recorded: it must be undone. The error tells
    /// whether it was recorded.
    pub fn finish(&self, begun: &Begun, extent: Extent, still_waiting: u64) -> Result<(), bool> {
        let mut all = locked(&self.all);
        let pool = &mut all[usize::from(begun.pool)];
        self.learn(pool, begun, still_waiting);
        pool.ended(begun);
        if let Some(account) = self.env().account(pool.account) {
            let owner = Owner::Pool(begun.pool);
            let owned = Owned { owner, extent };
            match self.extents.enter(account, owned) {
                Ok(more) => {
                    pool.pages += more;
                    pool.detached -= self.extents.revived(account, owned) as i64;
                }
                Err(_) => {
                    pool.live = pool.live.saturating_sub(begun.bytes);
                    return Err(false);
                }
            }
        }
        self.adjust(pool).map_err(|short| {
            self.env().log(format_args!(
                "A pool has grown by {short} bytes more than there is room for, for {} bytes with {} reserved: undone",
                begun.bytes, begun.promised
            ));
            true
        })
    }

    /// A detached allocation of a pool is free: `bytes`, after waiting for a stream or not.
    pub fn freed_detached(&self, pool: u16, bytes: u64, in_stream: bool) {
        self.change(pool, |pool| pool.free(bytes, in_stream));
    }

    /// Bytes of pages of a pool's allocations that count for detached ones from now on; below 0, bytes that no longer
    /// do.
    pub fn detach(&self, pool: u16, bytes: i64) {
        if let Some(pool) = locked(&self.all).get_mut(usize::from(pool)) {
            pool.pages = pool.pages.saturating_add_signed(-bytes);
            pool.detached += bytes;
        }
    }

    /// These bytes of pages are free, some of which counted for detached allocations.
    pub fn let_go(&self, pool: u16, pages: u64, detached: u64) {
        self.change(pool, |pool| {
            pool.pages = pool.pages.saturating_sub(pages);
            pool.detached -= detached as i64;
        });
    }

    /// Allocations of a pool are free: at once, or since a stream has reached their free.
    pub fn freed(&self, pool: u16, freed: &[Extent], in_stream: bool) {
        let number = pool;
        self.change(number, |pool| {
            for extent in freed.iter().copied() {
                pool.free(extent.bytes, in_stream);
                if let Some(account) = self.env().account(pool.account) {
                    let owner = Owner::Pool(number);
                    let owned = Owned { owner, extent };
                    pool.pages = pool.pages.saturating_sub(self.extents.leave(account, owned));
                    pool.detached += self.extents.kept(account, owned) as i64;
                }
            }
        });
    }

    /// `bytes` of a pool will be free when a stream reaches their free.
    pub fn will_be_freed(&self, pool: u16, bytes: u64) {
        if let Some(pool) = locked(&self.all).get_mut(usize::from(pool)) {
            pool.live = pool.live.saturating_sub(bytes);
            pool.freeing += bytes;
            pool.changes += 1;
            self.slack.store(true, Ordering::Relaxed);
        }
    }

    fn change(&self, pool: u16, change: impl FnOnce(&mut Pool)) {
        let mut all = locked(&self.all);
        if let Some(pool) = all.get_mut(usize::from(pool)) {
            change(pool);
            pool.changes += 1;
            // A charge that did not fit is tried again at the next change.
            let _short = self.adjust(pool);
        }
    }

    /// Updates every charge to the size of its pool.
    pub fn follow(&self) {
        let mut all = locked(&self.all);
        let mut slack = false;
        for pool in all.iter_mut() {
            slack |= self.adjust(pool).is_err() || pool.charged > pool.live;
        }
        self.slack.store(slack, Ordering::Relaxed);
    }

    /// A pool's threshold has changed, or it was trimmed.
    pub fn follow_one(&self, handle: usize) {
        if let Some(pool) = find(&mut locked(&self.all), handle) {
            let _short = self.adjust(pool);
        }
    }

    /// Makes the account's pools release their unused memory.
    pub fn trim(&self, account: u8) {
        for pool in locked(&self.all).iter_mut() {
            self.trim_one(pool, account, |_| 0);
        }
    }

    /// Makes them release as much of it as `bytes` more need.
    pub fn trim_for(&self, account: E::Account, bytes: u64) {
        for pool in locked(&self.all).iter_mut() {
            let missing = bytes.saturating_sub(account.room_bytes());
            if missing == 0 {
                return;
            }
            self.trim_one(pool, account.index(), |held| held.saturating_sub(missing));
        }
    }

    /// If the account is charged for a pool, makes the pool release its unused memory beyond `keep` bytes.
    fn trim_one(&self, pool: &mut Pool, account: u8, keep: impl FnOnce(u64) -> u64) {
        let before = pool.charged.saturating_sub(pool.promised);
        if pool.handle != 0 && pool.account == account && before > pool.live {
            self.env().trim_pool(pool.handle, keep(before));
            let _short = self.adjust(pool);
        }
    }

    /// Destroys a pool by `call`. From the moment before the call on, it is not queried here.
    pub fn destroyed(&self, handle: usize, call: impl FnOnce() -> CUresult) -> CUresult {
        let forgotten =
            find(&mut locked(&self.all), handle).map(|pool| pool.former = core::mem::take(&mut pool.handle));
        let result = call();
        if forgotten.is_none() {
            return result;
        }
        let mut all = locked(&self.all);
        if let Some(pool) = all.iter_mut().find(|pool| pool.former == handle) {
            pool.former = 0;
            if !result.is_success() {
                pool.handle = handle;
            }
            let _short = self.adjust(pool);
        }
        result
    }

    /// The device was reset. Whether a pool still exists is known when the program names it again. Until then it is not
    /// queried, and counts as keeping its memory in use.
    pub fn reset(&self, account: u8) {
        for pool in locked(&self.all)
            .iter_mut()
            .filter(|pool| pool.account == account)
        {
            if pool.handle != 0 {
                pool.former = core::mem::take(&mut pool.handle);
            }
            let _short = self.adjust(pool);
        }
    }

    /// Learns from an allocation by which steps the driver grows a pool, and whether it reuses memory before its stream
    /// has reached the free. It does reuse memory if the pool lacked space for the allocation, had no other change, and
    /// yet did not grow.
    fn learn(&self, pool: &mut Pool, begun: &Begun, still_waiting: u64) {
        let reusable = begun.full && still_waiting >= begun.bytes;
        if !begun.alone
            || pool.changes != begun.changes
            || (self.growth.is_known() && !reusable && begun.promised != 0)
        {
            return;
        }
        let Some(held) = pool.held(self.env()) else {
            return;
        };
        if reusable {
            pool.reused = if held <= begun.held {
                pool.reused.saturating_add(1)
            } else {
                0
            };
        }
        if let Some(account) = self.env().account(pool.account) {
            let (page, least) = (
                self.extents.page(account),
                self.extents.most(account, begun.bytes),
            );
            self.growth.learn(held.saturating_sub(begun.held), least, page);
        }
    }

    /// Updates a pool's charge to its size. The error tells how many more bytes should be charged and do not fit.
    ///
    /// Reservations of allocations in progress stay: the driver's figure may or may not contain them by now.
    fn adjust(&self, pool: &mut Pool) -> Result<(), u64> {
        let Some(account) = self.env().account(pool.account) else {
            return Ok(());
        };
        // A destroyed pool keeps the memory in use, here or in other processes.
        let in_use = || pool.pages + u64::try_from(pool.detached).unwrap_or(0);
        let held = pool.held(self.env()).unwrap_or_else(in_use);
        if held > pool.charged && !account.try_reserve(held - pool.charged) {
            return Err(held - pool.charged);
        }
        pool.charged = pool.charged.max(held);
        let target = held.max(pool.live).saturating_add(pool.promised);
        if pool.charged > target {
            account.give_back(pool.charged - target);
            pool.charged = target;
        }
        if pool.charged.saturating_sub(pool.promised) > pool.live {
            self.slack.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn find(all: &mut [Pool], handle: usize) -> Option<&mut Pool> {
    all.iter_mut().find(|pool| pool.handle == handle && handle != 0)
}

impl Pool {
    fn is_unused(&self) -> bool {
        self.handle == 0
            && self.former == 0
            && self.charged == 0
            && self.live == 0
            && self.freeing == 0
            && self.pages == 0
            && self.detached == 0
    }

    /// Bytes that the pool has taken from the device, if the driver reports them. A pool that is being destroyed has no
    /// handle here, and is not queried.
    fn held(&self, env: &impl Environment) -> Option<u64> {
        let handle = (self.handle != 0).then_some(self.handle)?;
        env.pool_reserved(handle).map(rounded)
    }

    /// Bytes of it are free: at once, or since a stream has reached their free.
    fn free(&mut self, bytes: u64, in_stream: bool) {
        let used = if in_stream {
            &mut self.freeing
        } else {
            &mut self.live
        };
        *used = used.saturating_sub(bytes);
    }

    /// The driver has replied.
    fn ended(&mut self, begun: &Begun) {
        self.promised = self.promised.saturating_sub(begun.promised);
        self.begun = self.begun.saturating_sub(1);
    }
}
