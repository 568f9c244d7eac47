//! Contexts: each is charged what the grant says that one costs, and what its heaps are set to beyond their first size.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use divvy_abi::{CUcontext, CUdevice, CUlimit, CUresult};

use super::locked;
use crate::account::{self, Account};

/// A context that this process was charged for.
struct Known {
    handle: usize,
    /// Its device, where it is that device's primary context.
    primary: Option<CUdevice>,
    account: u8,
    /// Bytes charged for the context itself.
    charged: u64,
    /// cuCtxAttach calls without their cuCtxDetach.
    attached: u32,
    heaps: Vec<Heap>,
}

/// A heap of a context whose size the program has set.
struct Heap {
    which: CUlimit,
    /// The size in bytes that it had before, which is part of the context's own cost.
    first: u64,
    /// Bytes charged beyond that.
    charged: u64,
}

/// Contexts that there ever were.
static EVER: AtomicUsize = AtomicUsize::new(0);

static ALL: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// What a context costs on the account's device, in bytes.
fn cost(account: Account) -> u64 {
    super::rounded(account.attached().grant().terms().context_bytes)
}

/// Makes a context by `call`, charged to `account`; `handle` reads it after a success.
pub(crate) fn created(
    account: Account,
    call: impl FnOnce() -> CUresult,
    handle: impl FnOnce() -> CUcontext,
) -> CUresult {
    let bytes = cost(account);
    if let Err(code) = account::reserve(account, bytes, "a context") {
        return code;
    }
    let result = call();
    if result.is_success() {
        locked(&ALL).push(Known::new(handle() as usize, None, account, bytes));
    } else {
        account.give_back(bytes);
    }
    result
}

/// Makes sure by `call` that a device has its primary context; `handle` reads it after a success, where it is known.
pub(crate) fn primary_retained(
    device: CUdevice,
    account: Account,
    call: impl FnOnce() -> CUresult,
    handle: impl FnOnce() -> Option<CUcontext>,
) -> CUresult {
    let bytes = if primary(device).is_some() {
        0
    } else {
        cost(account)
    };
    if let Err(code) = account::reserve(account, bytes, "a primary context") {
        return code;
    }
    let result = call();
    if !result.is_success() {
        account.give_back(bytes);
        return result;
    }
    let handle = handle().map(|handle| handle as usize);
    let mut all = locked(&ALL);
    match all.iter_mut().find(|known| known.primary == Some(device)) {
        Some(known) => {
            known.handle = handle.unwrap_or(known.handle);
            // Another thread was first.
            account.give_back(bytes);
        }
        None => all.push(Known::new(handle.unwrap_or(0), Some(device), account, bytes)),
    }
    result
}

/// The handle of a device's primary context, if this process was charged for it.
pub(crate) fn primary(device: CUdevice) -> Option<CUcontext> {
    let all = locked(&ALL);
    let known = all.iter().find(|known| known.primary == Some(device))?;
    Some(known.handle as CUcontext)
}

/// Devices whose primary context this process was charged for.
pub(crate) fn primaries() -> Vec<CUdevice> {
    locked(&ALL).iter().filter_map(|known| known.primary).collect()
}

/// Handles of this account's contexts.
pub(crate) fn of(account: u8) -> Vec<usize> {
    let all = locked(&ALL);
    let ours = all
        .iter()
        .filter(|known| known.account == account && known.handle != 0);
    ours.map(|known| known.handle).collect()
}

/// Whether this process ever had more than one context.
#[inline]
pub(crate) fn are_several() -> bool {
    EVER.load(Ordering::Relaxed) > 1
}

/// A use of the context was added.
pub(crate) fn attached(context: CUcontext) {
    if let Some(known) = find(&mut locked(&ALL), context) {
        known.attached += 1;
    }
}

/// Whether to take a use of the context away ends it.
pub(crate) fn has_one_use(context: CUcontext) -> bool {
    match find(&mut locked(&ALL), context) {
        Some(known) => known.attached == 0 && known.primary.is_none(),
        None => true,
    }
}

/// A use of the context was taken away; answers whether that ended it.
pub(crate) fn detached(context: CUcontext) -> bool {
    let ended = has_one_use(context);
    if let Some(known) = find(&mut locked(&ALL), context) {
        known.attached = known.attached.saturating_sub(1);
    }
    ended
}

/// A context has ended: what it and its heaps were charged goes back.
pub(crate) fn ended(context: CUcontext) {
    let mut all = locked(&ALL);
    let Some(at) = all.iter().position(|known| known.handle == context as usize) else {
        return;
    };
    let known = all.swap_remove(at);
    drop(all);
    if let Some(account) = account::paid(known.account) {
        let heaps: u64 = known.heaps.iter().map(|heap| heap.charged).sum();
        account.give_back(known.charged + heaps);
    }
}

/// Sets a heap of a context by `set`, and charges what it takes beyond its first size. In bytes: `before` is what it
/// takes so far, `wanted` what it will take, and `after` tells what it takes once it is set.
pub(crate) fn heap_set(
    context: CUcontext,
    account: Account,
    which: CUlimit,
    before: u64,
    wanted: u64,
    set: impl FnOnce() -> CUresult,
    after: impl FnOnce() -> u64,
) -> CUresult {
    let (first, charged) = match find(&mut locked(&ALL), context) {
        Some(known) => match known.heaps.iter().find(|heap| heap.which == which) {
            Some(heap) => (heap.first, heap.charged),
            None => (before, 0),
        },
        // Not made through us: its heaps are not ours to know.
        None => return set(),
    };
    let target = super::rounded(wanted.saturating_sub(first));
    let advance = target.saturating_sub(charged);
    if let Err(code) = account::reserve(account, advance, "a heap") {
        return code;
    }
    let result = set();
    let taken = super::rounded(after().saturating_sub(first));
    let mut give_back = advance;
    if result.is_success()
        && let Some(known) = find(&mut locked(&ALL), context)
    {
        // The driver may round up, by little: what cannot be had of that is left to the device's overhead.
        let more = taken.saturating_sub(charged + advance);
        let now = if more == 0 || account.try_reserve(more) {
            taken
        } else {
            charged + advance
        };
        give_back = (charged + advance).saturating_sub(now);
        known.heaps.retain(|heap| heap.which != which);
        known.heaps.push(Heap {
            which,
            first,
            charged: now,
        });
    }
    account.give_back(give_back);
    result
}

fn find(all: &mut [Known], context: CUcontext) -> Option<&mut Known> {
    all.iter_mut().find(|known| known.handle == context as usize)
}

impl Known {
    fn new(handle: usize, primary: Option<CUdevice>, account: Account, charged: u64) -> Self {
        EVER.fetch_add(1, Ordering::Relaxed);
        Self {
            handle,
            primary,
            account: account.index(),
            charged,
            attached: 0,
            heaps: Vec::new(),
        }
    }
}
