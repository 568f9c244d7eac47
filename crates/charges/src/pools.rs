//! Memory pools: charged for what they hold, not only for what is in use.
//!
//! A pool takes memory from the device when it must, and lets it go when it is trimmed or its streams are synchronised.
//! Before an allocation all that the pool may grow by is reserved; afterwards the driver says how much the pool holds,
//! and the rest of the reservation goes back. What a driver grows a pool by, [`Growth`] learns.
//!
//! The manual says that importers free an exported pointer before its owner does. Freed before, it stays with its pool,
//! which cannot let go of what importers have open: it is among what the pool holds, for as long as the pool lives. When
//! the pool is destroyed, what importers have open stays charged by itself ([`crate::detached`]).

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use divvy_abi::{CUDA_ERROR_OUT_OF_MEMORY, CUresult};

use crate::environment::{Account, Environment};
use crate::extents::Extents;
use crate::growth::Growth;
use crate::lock::locked;
use crate::owner::{Extent, Owned, Owner, POOLS};
use crate::units::rounded;

/// How often in a row reuse must be seen to be counted on.
const PROOF: u32 = 8;

#[derive(Default)]
struct Pool {
    /// What the program holds; 0 when the pool is destroyed, or its place is free.
    handle: usize,
    /// What it was before the device was reset.
    former: usize,
    /// Index of the account that pays.
    account: u8,
    /// Bytes charged for the pool: what it holds, and what it is about to take.
    charged: u64,
    /// Of that, reserved for allocations that the driver is at.
    promised: u64,
    /// How many those are.
    begun: u32,
    /// Bytes allocated from it and not freed.
    live: u64,
    /// Bytes freed in streams that have not come to the free.
    freeing: u64,
    /// Bytes of the pages that both of them lie in.
    pages: u64,
    /// Bytes of other pages that were freed, and that importers have open. Below 0 for a moment only.
    detached: i64,
    /// How often in a row memory freed in a stream was seen to be handed out again in the same stream before the stream
    /// got there. Once is no proof: the stream may have come to the free, and not yet to our event behind it.
    reused: u32,
    /// Counts what happens to the pool.
    changes: u64,
}

/// The pools that this process has allocated from, over the pages that their allocations hold.
pub(crate) struct Pools<E> {
    pub extents: Extents<E>,
    all: Mutex<Vec<Pool>>,
    /// Whether a pool may hold more than is in use.
    slack: AtomicBool,
    growth: Growth,
}

/// What an allocation must know between its beginning and its end.
#[derive(Debug)]
pub(crate) struct Begun {
    pool: u16,
    bytes: u64,
    /// Reserved for what the pool may grow by.
    promised: u64,
    /// What the pool held before, as far as that is known.
    held: u64,
    /// The driver was at no other allocation.
    alone: bool,
    /// It had no room for these bytes beside what is live or waits to be freed.
    full: bool,
    /// What had happened to the pool by then.
    changes: u64,
}

/// Bytes that a pool may grow by for one allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// In whole pages.
    pub least: u64,
    /// In the steps that the driver is known or assumed to take.
    pub most: u64,
    /// The driver was seen to take more than whole pages.
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

    /// The number of the pool with this handle, noted now if it was not, with `account` to pay.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where there are too many.
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

    /// Index of the account that pays for a pool.
    pub fn account_of(&self, pool: u16) -> Option<u8> {
        locked(&self.all).get(usize::from(pool)).map(|pool| pool.account)
    }

    /// What a pool may grow by for `bytes` more.
    pub fn need(&self, account: E::Account, bytes: u64) -> Need {
        let least = self.extents.most(account, bytes);
        Need {
            least,
            most: self.growth.most(least, self.extents.page(account)),
            is_coarse: self.growth.is_coarse(),
        }
    }

    /// The driver is about to be asked for `bytes` more, with `promised` reserved for what the pool may grow by.
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

    /// Whether the driver was seen to serve this from what waits in the same stream.
    pub fn reuses(&self, pool: u16, bytes: u64, same_stream: u64) -> bool {
        let all = locked(&self.all);
        let pool = &all[usize::from(pool)];
        pool.reused >= PROOF && same_stream.min(pool.freeing) >= bytes
    }

    /// Whether the driver takes memory in larger steps than pages, which cannot be trimmed while anything lies in them, and
    /// the pool can be expected to serve this from what is left of those.
    pub fn is_idle(&self, pool: u16, bytes: u64) -> bool {
        let all = locked(&self.all);
        let pool = &all[usize::from(pool)];
        let used = pool.promised + pool.live + pool.freeing;
        self.growth.is_coarse() && pool.charged.saturating_sub(used) >= bytes
    }

    /// The driver has refused what was begun.
    pub fn failed(&self, begun: &Begun) {
        self.change(begun.pool, |pool| {
            pool.live = pool.live.saturating_sub(begun.bytes);
            pool.ended(begun);
        });
    }

    /// The driver has allocated what was begun: now the pool holds what it holds. `still_waiting` bytes still wait to be
    /// freed in the same stream.
    ///
    /// # Errors
    /// Where the pool has grown by more than there is room for, or it cannot be noted: the allocation must be undone. Tells
    /// whether it was noted.
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

    /// A detached allocation of a pool is free: `bytes`, for which a stream was waited for or not.
    pub fn freed_detached(&self, pool: u16, bytes: u64, in_stream: bool) {
        self.change(pool, |pool| pool.free(bytes, in_stream));
    }

    /// Bytes of pages of a pool's allocations are counted for detached ones from now on; below 0, no longer.
    pub fn detach(&self, pool: u16, bytes: i64) {
        if let Some(pool) = locked(&self.all).get_mut(usize::from(pool)) {
            pool.pages = pool.pages.saturating_add_signed(-bytes);
            pool.detached += bytes;
        }
    }

    /// These bytes of pages are free, some of which were counted for detached allocations.
    pub fn let_go(&self, pool: u16, pages: u64, detached: u64) {
        self.change(pool, |pool| {
            pool.pages = pool.pages.saturating_sub(pages);
            pool.detached -= detached as i64;
        });
    }

    /// Allocations of a pool are free: now, or since a stream has come to where it frees them.
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

    /// `bytes` of a pool will be free when a stream gets there.
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
            // What could not be charged is tried again at the next change.
            let _short = self.adjust(pool);
        }
    }

    /// Has every charge follow what its pool holds.
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

    /// Has the account's pools let go of what is unused.
    pub fn trim(&self, account: u8) {
        for pool in locked(&self.all).iter_mut() {
            self.trim_one(pool, account, |_| 0);
        }
    }

    /// Has them let go of as much of it as `bytes` more need.
    pub fn trim_for(&self, account: E::Account, bytes: u64) {
        for pool in locked(&self.all).iter_mut() {
            let missing = bytes.saturating_sub(account.room_bytes());
            if missing == 0 {
                return;
            }
            self.trim_one(pool, account.index(), |held| held.saturating_sub(missing));
        }
    }

    /// If the account pays for a pool, has it let go of what is unused beyond `keep` of what it holds.
    fn trim_one(&self, pool: &mut Pool, account: u8, keep: impl FnOnce(u64) -> u64) {
        let before = pool.charged.saturating_sub(pool.promised);
        if pool.handle != 0 && pool.account == account && before > pool.live {
            self.env().trim_pool(pool.handle, keep(before));
            let _short = self.adjust(pool);
        }
    }

    /// Destroys a pool by `call`. From before that on it is asked nothing here.
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

    /// The device was reset. Whether a pool is still there shows when the program names it again; until then it is asked
    /// nothing, and counts as keeping what is in use.
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

    /// Learns from an allocation what the driver grows a pool by, and whether it hands memory out again before its stream
    /// has come to the free. It does where the pool, with nothing else happening to it, gave what it had no room for,
    /// and did not grow.
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

    /// Has a pool's charge follow what it holds, or tells how much more should be charged and is not to be had.
    ///
    /// What allocations that the driver is at have reserved stays reserved: the figure may or may not contain it by now.
    fn adjust(&self, pool: &mut Pool) -> Result<(), u64> {
        let Some(account) = self.env().account(pool.account) else {
            return Ok(());
        };
        // A destroyed pool keeps what is in use, here or elsewhere.
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

    /// Bytes that the pool has taken from the device, if the driver says. A pool that is being destroyed has no handle
    /// here, and is not asked.
    fn held(&self, env: &impl Environment) -> Option<u64> {
        let handle = (self.handle != 0).then_some(self.handle)?;
        env.pool_reserved(handle).map(rounded)
    }

    /// Bytes of it are free: now, or since a stream has come to where it frees them.
    fn free(&mut self, bytes: u64, in_stream: bool) {
        let used = if in_stream {
            &mut self.freeing
        } else {
            &mut self.live
        };
        *used = used.saturating_sub(bytes);
    }

    /// The driver has answered.
    fn ended(&mut self, begun: &Begun) {
        self.promised = self.promised.saturating_sub(begun.promised);
        self.begun = self.begun.saturating_sub(1);
    }
}
