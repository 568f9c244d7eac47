//! Contexts: each is charged the cost that the grant states, and the growth of its heaps beyond their first size.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use divvy_abi::{CUcontext, CUdevice, CUlimit, CUresult};

use crate::environment::{Account, Environment, Reserve};
use crate::lock::locked;
use crate::units::rounded;

/// A context that this process was charged for.
struct Context {
    handle: usize,
    /// Its device, if it is that device's primary context.
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
    /// Its previous size in bytes, which is part of the context's own cost.
    first: u64,
    /// Bytes charged beyond that.
    charged: u64,
}

/// The contexts of this process.
pub(crate) struct Contexts {
    all: Mutex<Vec<Context>>,
    /// How many contexts there ever were.
    ever: AtomicUsize,
}

/// A request to set a heap.
#[derive(Clone, Copy, Debug)]
pub struct HeapSize {
    /// Its context.
    pub context: CUcontext,
    /// Which heap.
    pub which: CUlimit,
    /// Its size so far, in bytes.
    pub before: u64,
    /// Its requested size, in bytes.
    pub wanted: u64,
}

/// The cost of a context, in bytes.
fn cost(account: impl Account) -> u64 {
    rounded(account.context_bytes())
}

fn find(all: &mut [Context], context: CUcontext) -> Option<&mut Context> {
    all.iter_mut().find(|known| known.handle == context as usize)
}

impl Contexts {
    pub const fn new() -> Self {
        Self {
            all: Mutex::new(Vec::new()),
            ever: AtomicUsize::new(0),
        }
    }

    fn add(
        &self,
        all: &mut Vec<Context>,
        handle: usize,
        primary: Option<CUdevice>,
        account: u8,
        charged: u64,
    ) {
        self.ever.fetch_add(1, Ordering::Relaxed);
        all.push(Context {
            handle,
            primary,
            account,
            charged,
            attached: 0,
            heaps: Vec::new(),
        });
    }

    /// Makes a context by `call`, charged to `account`; `handle` reads it after a success.
    pub fn created<A: Account>(
        &self,
        room: &impl Reserve<A>,
        account: A,
        call: impl FnOnce() -> CUresult,
        handle: impl FnOnce() -> CUcontext,
    ) -> CUresult {
        let bytes = cost(account);
        if let Err(code) = room.reserve(account, bytes, "a context") {
            return code;
        }
        let result = call();
        if result.is_success() {
            let handle = handle() as usize;
            self.add(&mut locked(&self.all), handle, None, account.index(), bytes);
        } else {
            account.give_back(bytes);
        }
        result
    }

    /// Ensures by `call` that a device has its primary context; `handle` reads it after a success, if it is known.
    pub fn primary_retained<A: Account>(
        &self,
        room: &impl Reserve<A>,
        device: CUdevice,
        account: A,
        call: impl FnOnce() -> CUresult,
        handle: impl FnOnce() -> Option<CUcontext>,
    ) -> CUresult {
        let bytes = if self.primary(device).is_some() {
            0
        } else {
            cost(account)
        };
        if let Err(code) = room.reserve(account, bytes, "a primary context") {
            return code;
        }
        let result = call();
        if !result.is_success() {
            account.give_back(bytes);
            return result;
        }
        let handle = handle().map(|handle| handle as usize);
        let mut all = locked(&self.all);
        match all.iter_mut().find(|known| known.primary == Some(device)) {
            Some(known) => {
                known.handle = handle.unwrap_or(known.handle);
                // Another thread was first.
                account.give_back(bytes);
            }
            None => self.add(
                &mut all,
                handle.unwrap_or(0),
                Some(device),
                account.index(),
                bytes,
            ),
        }
        result
    }

    /// The handle of a device's primary context, if this process was charged for it.
    pub fn primary(&self, device: CUdevice) -> Option<CUcontext> {
        let all = locked(&self.all);
        let known = all.iter().find(|known| known.primary == Some(device))?;
        Some(known.handle as CUcontext)
    }

    /// Devices whose primary context this process was charged for.
    pub fn primaries(&self) -> Vec<CUdevice> {
        locked(&self.all)
            .iter()
            .filter_map(|known| known.primary)
            .collect()
    }

    /// Handles of this account's contexts.
    pub fn of(&self, account: u8) -> Vec<usize> {
        let all = locked(&self.all);
        let ours = all
            .iter()
            .filter(|known| known.account == account && known.handle != 0);
        ours.map(|known| known.handle).collect()
    }

    /// Whether this process ever had more than one context.
    #[inline]
    pub fn are_several(&self) -> bool {
        self.ever.load(Ordering::Relaxed) > 1
    }

    /// A reference to the context was added.
    pub fn attached(&self, context: CUcontext) {
        if let Some(known) = find(&mut locked(&self.all), context) {
            known.attached += 1;
        }
    }

    /// Whether removing a reference to the context ends it.
    pub fn has_one_use(&self, context: CUcontext) -> bool {
        match find(&mut locked(&self.all), context) {
            Some(known) => known.attached == 0 && known.primary.is_none(),
            None => true,
        }
    }

    /// A reference to the context was removed. Returns whether that ended it.
    pub fn detached(&self, context: CUcontext) -> bool {
        let ended = self.has_one_use(context);
        if let Some(known) = find(&mut locked(&self.all), context) {
            known.attached = known.attached.saturating_sub(1);
        }
        ended
    }

    /// A context has ended: its charge and its heaps' charges are given back.
    pub fn ended(&self, env: &impl Environment, context: usize) {
        let mut all = locked(&self.all);
        let Some(at) = all.iter().position(|known| known.handle == context) else {
            return;
        };
        let known = all.swap_remove(at);
        drop(all);
        if let Some(account) = env.account(known.account) {
            let heaps: u64 = known.heaps.iter().map(|heap| heap.charged).sum();
            account.give_back(known.charged + heaps);
        }
    }

    /// Sets a heap of a context by `set`, and charges its growth beyond its first size. `after` returns its size in
    /// bytes once it is set.
    pub fn heap_set<A: Account>(
        &self,
        room: &impl Reserve<A>,
        account: A,
        size: HeapSize,
        set: impl FnOnce() -> CUresult,
        after: impl FnOnce() -> u64,
    ) -> CUresult {
        let which = size.which;
        let (first, charged) = match find(&mut locked(&self.all), size.context) {
            Some(known) => match known.heaps.iter().find(|heap| heap.which == which) {
                Some(heap) => (heap.first, heap.charged),
                None => (size.before, 0),
            },
            // The context was not made through the limiter: its heaps are unknown.
            None => return set(),
        };
        let target = rounded(size.wanted.saturating_sub(first));
        let advance = target.saturating_sub(charged);
        if let Err(code) = room.reserve(account, advance, "a heap") {
            return code;
        }
        let result = set();
        let taken = rounded(after().saturating_sub(first));
        let mut give_back = advance;
        if result.is_success()
            && let Some(known) = find(&mut locked(&self.all), size.context)
        {
            // The driver may round up slightly: any part of that which does not fit counts as the device's overhead.
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
}
