//! Things that hold device memory under a handle: arrays, modules, external memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use divvy_abi::CUresult;

use super::{grain, locked};
use crate::account::{self, Account};
use crate::below::ask;

/// What one handle stands for.
#[derive(Clone, Copy)]
struct Holding {
    account: u8,
    bytes: u64,
    /// The context it goes with; 0 where it goes with none.
    context: usize,
}

/// All handles of one kind.
pub(crate) struct Holdings {
    what: &'static str,
    all: Mutex<BTreeMap<usize, Holding>>,
}

impl Holdings {
    pub const fn new(what: &'static str) -> Self {
        Self {
            what,
            all: Mutex::new(BTreeMap::new()),
        }
    }

    /// Makes something of `bytes` by `call`; `handle` reads its handle after a success, and `taken` tells what it takes
    /// where that is known better by then.
    pub fn made(
        &self,
        account: Account,
        bytes: u64,
        call: impl FnMut() -> CUresult,
        handle: impl FnOnce() -> usize,
        taken: impl FnOnce(usize) -> Option<u64>,
    ) -> CUresult {
        let bytes = grain::taken(account, bytes);
        let result = account::allocating(account, bytes, self.what, call);
        if !result.is_success() {
            return result;
        }
        let handle = handle();
        let mut charged = bytes;
        if let Some(taken) = taken(handle).map(|bytes| grain::taken(account, bytes)) {
            if taken < charged {
                account.give_back(charged - taken);
                charged = taken;
            } else if taken > charged && account.try_reserve(taken - charged) {
                charged = taken;
            }
        }
        let holding = Holding {
            account: account.index(),
            bytes: charged,
            context: ask::current_context(),
        };
        // A handle that comes back was given up in a way that we did not see.
        if let Some(old) = locked(&self.all).insert(handle, holding) {
            old.give_back();
        }
        result
    }

    /// Ends what has this handle by `call`.
    pub fn ended(&self, handle: usize, call: impl FnOnce() -> CUresult) -> CUresult {
        if !account::keeps_books() {
            return call();
        }
        // Before: afterwards the handle may already be another thread's.
        let holding = locked(&self.all).remove(&handle);
        let result = call();
        match holding {
            Some(holding) if result.is_success() => holding.give_back(),
            Some(holding) => drop(locked(&self.all).insert(handle, holding)),
            None => {}
        }
        result
    }

    /// A context has ended, and what was made in it.
    pub fn context_ended(&self, context: usize) {
        locked(&self.all).retain(|_, holding| {
            let gone = holding.context == context && context != 0;
            if gone {
                holding.give_back();
            }
            !gone
        });
    }
}

impl Holding {
    fn give_back(self) {
        if let Some(account) = account::paid(self.account) {
            account.give_back(self.bytes);
        }
    }
}
