//! The books: what this process was charged for, and who paid.
//!
//! A payer is an account, by its index, or a memory pool, which has an account of its own: [`POOLS`] and up; from [`MANAGED`] on, an
//! account for managed memory, which has no pages of its own; from [`SPILLED`] on, an account for what lies beyond its
//! share. Nothing here is looked at in a forked child, whose copy of the books is its parent's
//! ([`account::keeps_books`]).

pub(crate) mod apart;
pub(crate) mod arrays;
pub(crate) mod arriving;
pub(crate) mod contexts;
pub(crate) mod deferred;
pub(crate) mod grain;
pub(crate) mod graphs;
pub(crate) mod growth;
pub(crate) mod held;
pub(crate) mod holdings;
pub(crate) mod images;
pub(crate) mod imports;
pub(crate) mod lingering;
pub(crate) mod numbers;
pub(crate) mod parting;
pub(crate) mod physical;
pub(crate) mod pools;
pub(crate) mod shared;
pub(crate) mod small;
pub(crate) mod spilled;

use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_abi::{CUcontext, CUdeviceptr};

use crate::account::{self, Account};
use crate::gate;
use crate::map::{Charge, PAYERS, PointerMap};
use held::Piece;

/// Payers from here on are memory pools; those below are accounts.
pub(crate) const POOLS: u16 = 64;

/// Payers from here on are accounts again, by their index from here: of managed memory, charged by its size.
pub(crate) const MANAGED: u16 = PAYERS - 128;

/// And from here on, of what lies beyond the share.
pub(crate) const SPILLED: u16 = PAYERS - 64;

/// Whether a payer is a memory pool.
#[inline]
pub(crate) fn is_pool(payer: u16) -> bool {
    (POOLS..MANAGED).contains(&payer)
}

/// The account that pays as `payer`, if that is none of the others.
#[inline]
pub(crate) fn account_of(payer: u16) -> Option<Account> {
    match payer {
        0..POOLS => account::paid(payer as u8),
        MANAGED..SPILLED => account::paid((payer - MANAGED) as u8),
        _ => None,
    }
}

/// Every pointer that this process was charged for.
pub(crate) static CHARGED: PointerMap = PointerMap::new();

/// Bytes in which the ledger counts; a driver's own granularity is a multiple.
const UNIT: u64 = divvy_ledger::accounting::UNIT;

/// `bytes` as the ledger counts them. Saturates below the top, where every limit refuses.
#[inline]
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes
        .checked_next_multiple_of(UNIT)
        .unwrap_or(u64::MAX - UNIT + 1)
}

/// The allocation at `pointer` is gone: what was charged for it goes back to who paid.
#[inline]
pub(crate) fn returned(pointer: CUdeviceptr, charge: Charge) {
    let bytes = charge.bytes;
    returned_piece(charge.payer, Piece { pointer, bytes });
}

/// The same of an allocation that `payer` paid for.
#[inline]
pub(crate) fn returned_piece(payer: u16, piece: Piece) {
    if is_pool(payer) {
        pools::freed(payer, piece);
    } else if payer >= SPILLED {
        spilled::freed(payer - SPILLED, piece.bytes);
    } else if let Some(account) = account_of(payer) {
        let bytes = if payer >= MANAGED {
            piece.bytes
        } else {
            let left = held::leave(payer, account, piece);
            let left = left.saturating_sub(apart::kept(payer, account, piece));
            small::left(account, piece.bytes, left)
        };
        if bytes > 0 {
            account.give_back(bytes);
        }
    }
}

/// Brings the books up to what the driver below has done meanwhile: frees that their streams have come to, and memory
/// that pools have let go. Costs two loads where nothing is waited for.
#[inline]
pub(crate) fn follow() {
    if deferred::any() || pools::any_slack() || graphs::any() || lingering::any() {
        follow_now();
    }
}

#[cold]
fn follow_now() {
    if account::keeps_books() {
        deferred::settle();
        pools::follow();
        lingering::follow();
        graphs::follow();
    }
}

/// A context has ended, and everything that lives in one with it. `gone` says of a pointer that it is no longer valid.
pub(crate) fn context_ended(context: CUcontext, gone: impl Fn(CUdeviceptr) -> bool) {
    deferred::context_ended(context);
    gate::context_ended(context);
    for holdings in [&arrays::ARRAYS, &arrays::MIPMAPS, &images::MODULES] {
        holdings.context_ended(context as usize);
    }
    imports::context_ended(context as usize, &gone);
    contexts::ended(context);
    if graphs::any() {
        graphs::trimmed();
    }
}

/// A lock of the books. Nobody panics while holding one.
pub(crate) fn locked<T>(books: &Mutex<T>) -> MutexGuard<'_, T> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_and_never_wrap() {
        assert_eq!(rounded(0), 0);
        assert_eq!(rounded(1), 512);
        assert_eq!(rounded(512), 512);
        assert_eq!(rounded(u64::MAX), u64::MAX - 511);
        assert_eq!(rounded(u64::MAX) % UNIT, 0);
    }
}
