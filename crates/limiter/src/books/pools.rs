//! Memory pools: charged for what they hold, not only for what is in use.
//!
//! A pool takes memory from the device when it must, and lets it go when it is trimmed or its streams are synchronised.
//! Before an allocation the bytes that the pool may have to grow by are reserved; afterwards the driver says how much
//! the pool holds, and the charge follows that, never below what the program has allocated and not freed.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use divvy_abi::{CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CUDA_ERROR_OUT_OF_MEMORY, CUmemoryPool, CUresult};

use super::{POOLS, SPILLED, locked};
use crate::account::{self, Account};
use crate::below::forward;

/// Rounds to reserve what a pool needs while other threads change what it has.
const ROUNDS: u32 = 16;

struct Pool {
    /// What the program holds; 0 when the pool is destroyed, or its place is free.
    handle: usize,
    /// What it was before the device was reset.
    former: usize,
    /// Index of the account that pays.
    account: u8,
    /// Bytes charged for the pool.
    charged: u64,
    /// Bytes allocated from it and not freed.
    live: u64,
    /// Bytes freed in streams that have not come to the free.
    waiting: u64,
    /// Memory freed in a stream was seen to be handed out again in the same stream before the stream got there.
    reuses: bool,
    /// Counts what happens to the pool.
    changes: u64,
}

static ALL: Mutex<Vec<Pool>> = Mutex::new(Vec::new());
/// Whether a pool may hold more than is in use.
static SLACK: AtomicBool = AtomicBool::new(false);

/// What an allocation must know between its beginning and its end.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    pool: u16,
    bytes: u64,
    /// Charged before, where it cannot hold these bytes beside what is live or waits to be freed.
    full: Option<u64>,
    /// Bytes that wait to be freed in the same stream.
    same_stream: u64,
    /// What had happened to the pool by then.
    changes: u64,
}

/// Whether a pool may hold more than is in use.
#[inline]
pub(crate) fn any_slack() -> bool {
    SLACK.load(Ordering::Relaxed)
}

fn place(payer: u16) -> usize {
    usize::from(payer - POOLS)
}

/// The payer that is the pool of this handle, noted now if it was not, with `account` to pay.
pub(crate) fn payer(handle: CUmemoryPool, account: Account) -> Result<u16, CUresult> {
    let mut all = locked(&ALL);
    let known = all
        .iter()
        .position(|pool| pool.handle == handle as usize)
        .or_else(|| {
            let survivor = all.iter().position(|pool| pool.former == handle as usize)?;
            all[survivor].handle = handle as usize;
            all[survivor].former = 0;
            Some(survivor)
        });
    let at = known.or_else(|| {
        let fresh = Pool {
            handle: handle as usize,
            former: 0,
            account: account.index(),
            charged: 0,
            live: 0,
            waiting: 0,
            reuses: false,
            changes: 0,
        };
        let unused = |pool: &Pool| {
            pool.handle == 0 && pool.former == 0 && pool.charged == 0 && pool.live == 0 && pool.waiting == 0
        };
        match all.iter().position(unused) {
            Some(at) => all[at] = fresh,
            None if all.len() >= usize::from(SPILLED - POOLS) => return None,
            None => all.push(fresh),
        }
        all.iter().position(|pool| pool.handle == handle as usize)
    });
    at.map(|at| POOLS + at as u16).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Reserves what the pool may have to grow by for `bytes` more.
///
/// # Errors
/// As [`account::reserve`].
pub(crate) fn begin(payer: u16, bytes: u64, same_stream: u64) -> Result<Begun, CUresult> {
    let mut advance = 0;
    for _ in 0..ROUNDS {
        let mut all = locked(&ALL);
        let pool = &mut all[place(payer)];
        let account = account::paid(pool.account).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let reusable = if pool.reuses {
            same_stream.min(pool.waiting)
        } else {
            0
        };
        let needed = (pool.live + pool.waiting - reusable).saturating_add(bytes);
        let short = needed.saturating_sub(pool.charged).saturating_sub(advance);
        if short == 0 || account.try_reserve(short) {
            let full = (pool.live + pool.waiting).saturating_add(bytes) > pool.charged;
            let full = full.then_some(pool.charged);
            pool.charged += short + advance;
            pool.live += bytes;
            pool.changes += 1;
            return Ok(Begun {
                pool: payer,
                bytes,
                full,
                same_stream,
                changes: pool.changes,
            });
        }
        drop(all);
        // Makes room, which may trim this very pool.
        if let Err(code) = account::reserve(account, short, "memory of a pool") {
            account.give_back(advance);
            return Err(code);
        }
        advance += short;
    }
    // Threads that take turns at trimming and filling the pool for so long are out of memory.
    if let Some(account) = account_of(payer) {
        account.give_back(advance);
    }
    Err(CUDA_ERROR_OUT_OF_MEMORY)
}

fn account_of(payer: u16) -> Option<Account> {
    let index = locked(&ALL).get(place(payer))?.account;
    account::paid(index)
}

/// The driver has refused what was begun.
pub(crate) fn failed(begun: Begun) {
    freed(begun.pool, begun.bytes);
}

/// The driver has allocated what was begun: now the pool holds what it holds. `still_waiting` tells how many bytes still
/// wait to be freed in the same stream.
///
/// # Errors
/// As [`account::reserve`], where the pool has grown by more than there is room for; the allocation must be undone.
pub(crate) fn finish(begun: Begun, still_waiting: impl Fn() -> u64) -> Result<(), CUresult> {
    let still_waiting = if begun.same_stream >= begun.bytes {
        still_waiting()
    } else {
        0
    };
    for _ in 0..ROUNDS {
        let mut all = locked(&ALL);
        let pool = &mut all[place(begun.pool)];
        pool.learn(begun, still_waiting);
        let account = pool.account;
        let Err(short) = adjust(pool) else {
            return Ok(());
        };
        drop(all);
        let account = account::paid(account).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        account::reserve(account, short, "growth of a pool")?;
        let mut all = locked(&ALL);
        all[place(begun.pool)].charged += short;
    }
    Ok(())
}

/// `bytes` of a pool are free, now.
pub(crate) fn freed(payer: u16, bytes: u64) {
    changed(payer, |pool| pool.live = pool.live.saturating_sub(bytes));
}

/// `bytes` of a pool will be free when a stream gets there.
pub(crate) fn will_be_freed(payer: u16, bytes: u64) {
    let mut all = locked(&ALL);
    if let Some(pool) = all.get_mut(place(payer)) {
        pool.live = pool.live.saturating_sub(bytes);
        pool.waiting += bytes;
        pool.changes += 1;
        SLACK.store(true, Ordering::Relaxed);
    }
}

/// A stream has come to where it frees `bytes` of a pool.
pub(crate) fn arrived(payer: u16, bytes: u64) {
    changed(payer, |pool| pool.waiting = pool.waiting.saturating_sub(bytes));
}

fn changed(payer: u16, change: impl FnOnce(&mut Pool)) {
    let mut all = locked(&ALL);
    if let Some(pool) = all.get_mut(place(payer)) {
        change(pool);
        pool.changes += 1;
        // What could not be charged is tried again at the next change.
        let _short = adjust(pool);
    }
}

/// Has every charge follow what its pool holds.
pub(crate) fn follow() {
    let mut all = locked(&ALL);
    let mut slack = false;
    for pool in all.iter_mut() {
        slack |= adjust(pool).is_err() || pool.charged > pool.live;
    }
    SLACK.store(slack, Ordering::Relaxed);
}

/// A pool's threshold has changed, or it was trimmed.
pub(crate) fn follow_one(handle: CUmemoryPool) {
    if let Some(pool) = find(&mut locked(&ALL), handle) {
        let _short = adjust(pool);
    }
}

fn find<'a>(all: &'a mut MutexGuard<'_, Vec<Pool>>, handle: CUmemoryPool) -> Option<&'a mut Pool> {
    all.iter_mut()
        .find(|pool| pool.handle == handle as usize && pool.handle != 0)
}

/// Has the account's pools let go of what they hold and nobody uses.
pub(crate) fn trim(account: Account) {
    for pool in locked(&ALL).iter_mut() {
        if pool.handle != 0 && pool.account == account.index() && pool.charged > pool.live {
            // SAFETY: a live pool: who destroys it forgets it here first.
            let _trimmed = unsafe { forward::cuMemPoolTrimTo(pool.handle as CUmemoryPool, 0) };
            let _short = adjust(pool);
        }
    }
}

/// Destroys a pool by `call`. From before that on nobody here asks it anything.
pub(crate) fn destroyed(handle: CUmemoryPool, call: impl FnOnce() -> CUresult) -> CUresult {
    let forgotten =
        find(&mut locked(&ALL), handle).map(|pool| pool.former = core::mem::take(&mut pool.handle));
    let result = call();
    if forgotten.is_none() {
        return result;
    }
    let mut all = locked(&ALL);
    if let Some(pool) = all.iter_mut().find(|pool| pool.former == handle as usize) {
        pool.former = 0;
        if !result.is_success() {
            pool.handle = handle as usize;
        }
        let _short = adjust(pool);
    }
    result
}

/// The device was reset. Whether a pool is still there shows when the program names it again; until then it is asked
/// nothing, and counts as keeping what is in use.
pub(crate) fn reset(account: Account) {
    for pool in locked(&ALL)
        .iter_mut()
        .filter(|pool| pool.account == account.index())
    {
        if pool.handle != 0 {
            pool.former = core::mem::take(&mut pool.handle);
        }
        let _short = adjust(pool);
    }
}

impl Pool {
    /// Learns from an allocation whether the driver hands memory out again before its stream has come to the free. It
    /// does where the pool, with nothing else happening to it, gave what it had no room for, and did not grow.
    fn learn(&mut self, begun: Begun, still_waiting: u64) {
        if let Some(before) = begun.full
            && still_waiting >= begun.bytes
            && self.changes == begun.changes
            && let Some(held) = self.held()
        {
            self.reuses = held <= before;
        }
    }

    /// Bytes that the pool has taken from the device, if the driver says.
    fn held(&self) -> Option<u64> {
        if self.handle == 0 {
            return None;
        }
        let mut held: u64 = 0;
        // SAFETY: a live pool: who destroys it forgets it here first; the attribute is 8 bytes wide.
        let result = unsafe {
            forward::cuMemPoolGetAttribute(
                self.handle as CUmemoryPool,
                CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                (&raw mut held).cast(),
            )
        };
        result.is_success().then_some(super::rounded(held))
    }
}

/// Has a pool's charge follow what it holds, or answers how much more should be charged and is not to be had.
fn adjust(pool: &mut Pool) -> Result<(), u64> {
    let Some(account) = account::paid(pool.account) else {
        return Ok(());
    };
    let target = match pool.held() {
        Some(held) => held.max(pool.live),
        // A destroyed pool keeps what is in use.
        None => pool.live + pool.waiting,
    };
    if pool.charged > target {
        account.give_back(pool.charged - target);
    } else if pool.charged < target && !account.try_reserve(target - pool.charged) {
        return Err(target - pool.charged);
    }
    pool.charged = target;
    if pool.charged > pool.live {
        SLACK.store(true, Ordering::Relaxed);
    }
    Ok(())
}
