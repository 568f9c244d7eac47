//! Memory pools: charged for what they hold, not only for what is in use.
//!
//! A pool takes memory from the device when it must, and lets it go when it is trimmed or its streams are synchronised.
//! Before an allocation all that the pool may grow by is reserved; afterwards the driver says how much the pool holds,
//! and the rest of the reservation goes back. What a driver grows a pool by, `growth` learns.
//!
//! An exported pointer is to be freed by who imported it before it is freed here, says the manual. Freed before, it stays with
//! its pool, which cannot let go of what others have open: among what the pool holds, for as long as it lives. When it is
//! destroyed, what others have open stays charged apart.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use divvy_abi::{CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CUDA_ERROR_OUT_OF_MEMORY, CUmemoryPool, CUresult};

use super::growth::GROWTH;
use super::held::{self, Piece};
use super::{MANAGED, POOLS, apart, deferred, grain, locked};
use crate::account::{self, Account};
use crate::below::forward;
use crate::log;

/// How often in a row reuse must be seen to be counted on.
const PROOF: u32 = 8;

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
    waiting: u64,
    /// Bytes of the pages that both of them lie in.
    pages: u64,
    /// Bytes of other pages that were freed, and that others have open ([`apart`]). Below 0 for a moment only.
    apart: i64,
    /// How often in a row memory freed in a stream was seen to be handed out again in the same stream before the stream got
    /// there. Once is no proof: the free may have come to pass, and our event behind it not yet.
    reused: u32,
    /// Counts what happens to the pool.
    changes: u64,
}

static ALL: Mutex<Vec<Pool>> = Mutex::new(Vec::new());
/// Whether a pool may hold more than is in use.
static SLACK: AtomicBool = AtomicBool::new(false);

/// What an allocation must know between its beginning and its end.
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
            promised: 0,
            begun: 0,
            live: 0,
            waiting: 0,
            pages: 0,
            apart: 0,
            reused: 0,
            changes: 0,
        };
        let unused = |pool: &Pool| {
            pool.handle == 0
                && pool.former == 0
                && pool.charged == 0
                && pool.live == 0
                && pool.waiting == 0
                && pool.pages == 0
                && pool.apart == 0
        };
        match all.iter().position(unused) {
            Some(at) => all[at] = fresh,
            None if all.len() >= usize::from(MANAGED - POOLS) => return None,
            None => all.push(fresh),
        }
        all.iter().position(|pool| pool.handle == handle as usize)
    });
    at.map(|at| POOLS + at as u16).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
}

/// Reserves what the pool may grow by for `bytes` more, of which `same_stream` wait to be freed in the same stream.
///
/// # Errors
/// As [`account::reserve`].
pub(crate) fn begin(payer: u16, bytes: u64, same_stream: u64) -> Result<Begun, CUresult> {
    let account = account_of(payer).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    account::look_around(bytes)?;
    let least = grain::most(account, bytes);
    let most = GROWTH.most(least, grain::page(account));
    if account.try_reserve(most) {
        return Ok(begun(payer, bytes, same_stream, most));
    }
    if reuses(payer, bytes, same_stream) {
        return Ok(begun(payer, bytes, same_stream, 0));
    }
    // What was freed and has not come back, and then what the pools keep: no more of that than it takes.
    deferred::settle();
    follow();
    let had = account.try_reserve(most) || {
        trim_for(account, most);
        account.try_reserve(most)
    };
    if had {
        return Ok(begun(payer, bytes, same_stream, most));
    }
    if is_idle(payer, bytes) {
        return Ok(begun(payer, bytes, same_stream, 0));
    }
    // A driver that was not seen to take more than whole pages is not suspected of it where that would be a refusal.
    let least = if GROWTH.is_coarse() { most } else { least };
    account::take(account, least, "memory of a pool")?;
    Ok(begun(payer, bytes, same_stream, least))
}

fn begun(payer: u16, bytes: u64, same_stream: u64, promised: u64) -> Begun {
    let mut all = locked(&ALL);
    let pool = &mut all[place(payer)];
    let before = pool.charged.saturating_sub(pool.promised);
    // Whoever reserved nothing leaves nothing to learn from but that it needed nothing.
    let held = if GROWTH.is_known() { None } else { pool.held() };
    let full = (pool.live + pool.waiting).saturating_add(bytes) > before;
    pool.charged += promised;
    pool.promised += promised;
    let alone = pool.begun == 0;
    pool.begun += 1;
    pool.live += bytes;
    pool.changes += 1;
    Begun {
        pool: payer,
        bytes,
        promised,
        held: held.unwrap_or(before),
        alone,
        full,
        same_stream,
        changes: pool.changes,
    }
}

/// Whether the driver was seen to serve this from what waits in the same stream.
fn reuses(payer: u16, bytes: u64, same_stream: u64) -> bool {
    let all = locked(&ALL);
    let pool = &all[place(payer)];
    pool.reused >= PROOF && same_stream.min(pool.waiting) >= bytes
}

/// Whether the driver takes memory in larger pieces than pages, which cannot be trimmed while anything lies in them, and the
/// pool can be expected to serve this from what is left of those.
fn is_idle(payer: u16, bytes: u64) -> bool {
    let all = locked(&ALL);
    let pool = &all[place(payer)];
    let idle = pool
        .charged
        .saturating_sub(pool.promised + pool.live + pool.waiting);
    GROWTH.is_coarse() && idle >= bytes
}

/// Who pays for a pool.
pub(crate) fn account_of(payer: u16) -> Option<Account> {
    let index = locked(&ALL).get(place(payer))?.account;
    account::paid(index)
}

/// The driver has refused what was begun.
pub(crate) fn failed(begun: Begun) {
    changed(begun.pool, |pool| {
        pool.live = pool.live.saturating_sub(begun.bytes);
        pool.ended(&begun);
    });
}

/// The driver has allocated what was begun: now the pool holds what it holds. `still_waiting` tells how many bytes still
/// wait to be freed in the same stream.
///
/// # Errors
/// Where the pool has grown by more than there is room for, or it cannot be noted: the allocation must be undone. Tells
/// whether it was noted.
pub(crate) fn finish(begun: Begun, piece: Piece, still_waiting: impl Fn() -> u64) -> Result<(), bool> {
    let still_waiting = if begun.same_stream >= begun.bytes {
        still_waiting()
    } else {
        0
    };
    let mut all = locked(&ALL);
    let pool = &mut all[place(begun.pool)];
    pool.learn(&begun, still_waiting);
    pool.ended(&begun);
    if let Some(account) = account::paid(pool.account) {
        match held::enter(begun.pool, account, piece) {
            Ok(more) => {
                pool.pages += more;
                pool.apart -= apart::inhabited(begun.pool, account, piece) as i64;
            }
            Err(_) => {
                pool.live = pool.live.saturating_sub(begun.bytes);
                return Err(false);
            }
        }
    }
    adjust(pool).map_err(|short| {
        log::line(format_args!(
            "A pool has grown by {short} bytes more than there is room for, for {} bytes with {} reserved: undone",
            begun.bytes, begun.promised
        ));
        true
    })
}

/// A piece of a pool is free whose pages are counted apart: `bytes`, of which `waiting` says whether a stream was waited for.
pub(crate) fn freed_apart(payer: u16, bytes: u64, waiting: bool) {
    changed(payer, |pool| {
        let used = if waiting {
            &mut pool.waiting
        } else {
            &mut pool.live
        };
        *used = used.saturating_sub(bytes);
    });
}

/// Bytes of pages that a pool's pieces lay in are counted apart from now on.
pub(crate) fn parted(payer: u16, bytes: u64) {
    if let Some(pool) = locked(&ALL).get_mut(place(payer)) {
        pool.pages = pool.pages.saturating_sub(bytes);
        pool.apart += bytes as i64;
    }
}

/// Bytes that were counted apart are of pages that its pieces lie in again.
pub(crate) fn rejoined(payer: u16, bytes: u64) {
    if let Some(pool) = locked(&ALL).get_mut(place(payer)) {
        pool.pages += bytes;
        pool.apart -= bytes as i64;
    }
}

/// Nobody has these bytes of pages any more, some of which were counted apart.
pub(crate) fn ended(payer: u16, pages: u64, apart: u64) {
    changed(payer, |pool| {
        pool.pages = pool.pages.saturating_sub(pages);
        pool.apart -= apart as i64;
    });
}

/// A piece of a pool is free, now.
pub(crate) fn freed(payer: u16, piece: Piece) {
    changed(payer, |pool| {
        pool.live = pool.live.saturating_sub(piece.bytes);
        pool.left(payer, piece);
    });
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

/// A stream has come to where it frees these pieces of a pool.
pub(crate) fn arrived(payer: u16, pieces: &[Piece]) {
    changed(payer, |pool| {
        for piece in pieces {
            pool.waiting = pool.waiting.saturating_sub(piece.bytes);
            pool.left(payer, *piece);
        }
    });
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
        pool.trim(account, |_| 0);
    }
}

/// Has them let go of as much of it as `bytes` more need.
fn trim_for(account: Account, bytes: u64) {
    for pool in locked(&ALL).iter_mut() {
        let missing = bytes.saturating_sub(account.room_bytes());
        if missing == 0 {
            return;
        }
        pool.trim(account, |held| held.saturating_sub(missing));
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
    /// Learns from an allocation what the driver grows a pool by, and whether it hands memory out again before its stream
    /// has come to the free. It does where the pool, with nothing else happening to it, gave what it had no room for,
    /// and did not grow.
    fn learn(&mut self, begun: &Begun, still_waiting: u64) {
        let reusable = begun.full && still_waiting >= begun.bytes;
        if !begun.alone
            || self.changes != begun.changes
            || (GROWTH.is_known() && !reusable && begun.promised != 0)
        {
            return;
        }
        let Some(held) = self.held() else { return };
        if reusable {
            self.reused = if held <= begun.held {
                self.reused.saturating_add(1)
            } else {
                0
            };
        }
        if let Some(account) = account::paid(self.account) {
            let (page, least) = (grain::page(account), grain::most(account, begun.bytes));
            GROWTH.learn(held.saturating_sub(begun.held), least, page);
        }
    }

    /// The driver has answered.
    fn ended(&mut self, begun: &Begun) {
        self.promised = self.promised.saturating_sub(begun.promised);
        self.begun = self.begun.saturating_sub(1);
    }

    /// A piece of it is gone.
    fn left(&mut self, payer: u16, piece: Piece) {
        if let Some(account) = account::paid(self.account) {
            self.pages = self.pages.saturating_sub(held::leave(payer, account, piece));
            self.apart += apart::kept(payer, account, piece) as i64;
        }
    }

    /// If `account` pays for it, has it let go of what nobody uses beyond `keep` of what it holds.
    fn trim(&mut self, account: Account, keep: impl FnOnce(u64) -> u64) {
        let before = self.charged.saturating_sub(self.promised);
        if self.handle != 0 && self.account == account.index() && before > self.live {
            let keep = usize::try_from(keep(before)).unwrap_or(usize::MAX);
            // SAFETY: a live pool: who destroys it forgets it here first.
            let _trimmed = unsafe { forward::cuMemPoolTrimTo(self.handle as CUmemoryPool, keep) };
            let _short = adjust(self);
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
///
/// What allocations that the driver is at have reserved stays reserved: the figure may or may not contain it by now.
fn adjust(pool: &mut Pool) -> Result<(), u64> {
    let Some(account) = account::paid(pool.account) else {
        return Ok(());
    };
    // A destroyed pool keeps what is in use, here or elsewhere.
    let in_use = || pool.pages + u64::try_from(pool.apart).unwrap_or(0);
    let held = pool.held().unwrap_or_else(in_use);
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
        SLACK.store(true, Ordering::Relaxed);
    }
    Ok(())
}
