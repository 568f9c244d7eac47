//! Things that hold device memory under a handle: arrays, modules, external memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use divvy_abi::CUresult;

use super::{UNIT, grain, locked, small};
use crate::account::{self, Account};
use crate::below::ask;

/// What one handle stands for.
#[derive(Clone, Copy)]
struct Holding {
    account: u8,
    bytes: u64,
    /// Allocations that it can be, where it shares pages; 0 where it has pages of its own.
    pieces: u64,
    /// The context it goes with; 0 where it goes with none.
    context: usize,
}

/// All handles of one kind.
pub(crate) struct Holdings {
    what: &'static str,
    /// The most allocations that one is.
    pieces: u64,
    all: Mutex<BTreeMap<usize, Holding>>,
}

impl Holdings {
    pub const fn new(what: &'static str, pieces: u64) -> Self {
        Self {
            what,
            pieces,
            all: Mutex::new(BTreeMap::new()),
        }
    }

    /// Takes room for something of `bytes`.
    fn reserved(&self, account: Account, bytes: u64, pieces: u64) -> Result<Holding, CUresult> {
        let bytes = grain::taken(account, bytes);
        let pieces = if small::is(account, bytes) {
            let pieces = pieces.clamp(1, (bytes / UNIT).max(1));
            small::enter(account, bytes, pieces, self.what)?;
            pieces
        } else {
            account::reserve(account, bytes, self.what)?;
            0
        };
        Ok(Holding {
            account: account.index(),
            bytes,
            pieces,
            context: ask::current_context(),
        })
    }

    /// Makes something of `bytes` by `call`; `handle` reads its handle after a success.
    pub fn made(
        &self,
        account: Account,
        bytes: u64,
        call: impl FnMut() -> CUresult,
        handle: impl FnOnce() -> usize,
    ) -> CUresult {
        self.made_of(account, bytes, self.pieces, call, handle)
    }

    /// The same of something that is so many allocations at most.
    pub fn made_of(
        &self,
        account: Account,
        bytes: u64,
        pieces: u64,
        call: impl FnMut() -> CUresult,
        handle: impl FnOnce() -> usize,
    ) -> CUresult {
        let holding = match self.reserved(account, bytes, pieces) {
            Ok(holding) => holding,
            Err(code) => return code,
        };
        // What it takes is reserved; nothing comes with the call itself.
        let result = account::calling(account, 0, call);
        if !result.is_success() {
            holding.give_back();
            return result;
        }
        // A handle that comes back was given up in a way that we did not see.
        if let Some(old) = locked(&self.all).insert(handle(), holding) {
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
            match self.pieces {
                0 => account.give_back(self.bytes),
                pieces => small::leave(account, self.bytes, pieces),
            }
        }
    }
}
