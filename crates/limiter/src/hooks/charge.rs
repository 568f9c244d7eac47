//! Reserve, call the driver, commit or roll back; and the reverse for frees.

use divvy_abi::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUdeviceptr, CUresult};

use crate::account::{self, Account};
use crate::below::forward;
use crate::books::deferred::{self, Freed};
use crate::books::held::{self, Piece};
use crate::books::parting::Parting;
use crate::books::{CHARGED, SPILLED, apart, grain, is_pool, pools, returned, returned_piece, rounded};
use crate::log;
use crate::map::Charge;

/// Allocates under the slice's limit: reserves what `bytes` may take, calls the driver, and keeps the charge under the
/// pointer that `pointer` reads after a success.
///
/// Over the limit the answer is `CUDA_ERROR_OUT_OF_MEMORY` and the driver is not called: out-parameters stay untouched.
#[inline]
pub(super) fn charged(
    bytes: u64,
    mut call: impl FnMut() -> CUresult,
    pointer: impl Fn() -> CUdeviceptr,
) -> CUresult {
    match account::current() {
        Ok(Some(account)) => charged_to(account, bytes, call, pointer),
        Ok(None) => call(),
        Err(code) => code,
    }
}

/// [`charged`], where it is known who pays.
///
/// Pages for all of it are reserved first. Where the driver has put it into pages that are held already, they go back.
#[inline]
pub(super) fn charged_to(
    account: Account,
    bytes: u64,
    call: impl FnMut() -> CUresult,
    pointer: impl FnOnce() -> CUdeviceptr,
) -> CUresult {
    if let Err(code) = account::look_around(bytes) {
        return code;
    }
    let (bytes, most) = (rounded(bytes), grain::most(account, bytes));
    if let Err(code) = account::take(account, most, "an allocation") {
        return code;
    }
    let result = account::calling(account, most, call);
    if !result.is_success() {
        return result;
    }
    kept(
        account,
        Piece {
            pointer: pointer(),
            bytes,
        },
        most,
    )
}

/// Notes an allocation that the driver has made, for whose pages `reserved` bytes were reserved. What it takes less goes
/// back; where it takes more than there is room for, it is undone.
#[inline]
pub(super) fn kept(account: Account, piece: Piece, reserved: u64) -> CUresult {
    let payer = account.index().into();
    if apart::any() {
        // A page that others have open, and that has emptied here, is another one when its address comes back.
        deferred::settle();
    }
    let Ok(taken) = held::enter(payer, account, piece) else {
        free_again(piece.pointer);
        account.give_back(reserved);
        return CUDA_ERROR_OUT_OF_MEMORY;
    };
    if taken < reserved {
        account.give_back(reserved - taken);
    } else if taken > reserved && !account.try_reserve(taken - reserved) {
        free_again(piece.pointer);
        log::line(format_args!(
            "{} bytes took {taken} of pages, with {reserved} reserved: undone",
            piece.bytes
        ));
        // Others may be in the same pages by now.
        let left = taken - held::leave(payer, account, piece).min(taken);
        account.give_back(reserved.saturating_sub(left));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    noted(payer, piece)
}

/// Notes who pays for an allocation.
#[inline]
pub(super) fn noted(payer: u16, piece: Piece) -> CUresult {
    match CHARGED.insert(piece.pointer, piece.bytes, payer) {
        Ok(None) => CUresult::default(),
        // The address was freed in a way that we did not see: its old charge goes.
        Ok(Some(old)) => {
            returned(piece.pointer, old);
            CUresult::default()
        }
        // The charge cannot be remembered, so the memory cannot be had.
        Err(_) => {
            free_again(piece.pointer);
            returned_piece(payer, piece);
            CUDA_ERROR_OUT_OF_MEMORY
        }
    }
}

#[cold]
fn free_again(pointer: CUdeviceptr) {
    // SAFETY: the driver has just handed this pointer out, and nobody else has seen it.
    let _freed = unsafe { forward::cuMemFree_v2(pointer) };
}

/// Frees `pointer` by `call`; what it was charged goes back if the driver agrees.
#[inline]
pub(super) fn freed(pointer: CUdeviceptr, call: impl FnOnce() -> CUresult) -> CUresult {
    if !account::keeps_books() {
        // Nothing was ever charged to this process, or it is a forked child with a copy of its parent's map.
        return call();
    }
    // Forgotten before the call: afterwards the address may already be another thread's new allocation.
    let charge = CHARGED.take(pointer);
    if let Some(parting) = Parting::begin(pointer, charge) {
        let result = call();
        if result.is_success() {
            parting.done();
        } else {
            parting.refused();
        }
        return result;
    }
    let result = call();
    match charge {
        Some(charge) if result.is_success() => returned(pointer, charge),
        // Still allocated, then; there was room for it a moment ago.
        Some(charge) => drop(CHARGED.insert(pointer, charge.bytes, charge.payer)),
        None => {}
    }
    result
}

/// Frees `pointer` in stream order by `call`; what it was charged goes back when the stream gets there.
#[inline]
pub(super) fn freed_in(
    stream: deferred::StreamName,
    pointer: CUdeviceptr,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    if !account::keeps_books() {
        return call();
    }
    let charge = CHARGED.take(pointer);
    let parting = Parting::begin_in_stream(pointer, charge);
    let result = call();
    if let Some(charge) = charge
        && charge.payer >= SPILLED
        && result == CUDA_ERROR_INVALID_VALUE
    {
        return freed_at_once(pointer, charge);
    }
    if result.is_success()
        && let Some(charge) = charge
        && is_pool(charge.payer)
    {
        pools::will_be_freed(charge.payer, charge.bytes);
    }
    match (parting, charge) {
        (Some(parting), _) if result.is_success() => {
            deferred::defer(stream, Freed::Parting(Box::new(parting)));
        }
        (Some(parting), _) => parting.refused(),
        (None, Some(charge)) if result.is_success() => {
            let bytes = charge.bytes;
            deferred::defer(stream, Freed::Piece(charge.payer, Piece { pointer, bytes }));
        }
        (None, Some(charge)) => drop(CHARGED.insert(pointer, charge.bytes, charge.payer)),
        (None, None) => {}
    }
    result
}

/// Frees managed memory that the program holds for device memory: drivers do not free that in stream order. Waits for
/// what uses it, as cuMemFree does.
#[cold]
fn freed_at_once(pointer: CUdeviceptr, charge: Charge) -> CUresult {
    // SAFETY: a pointer that the program frees, and has the right to.
    let result = unsafe { forward::cuMemFree_v2(pointer) };
    if result.is_success() {
        returned(pointer, charge);
    } else {
        let _room_was_there = CHARGED.insert(pointer, charge.bytes, charge.payer);
    }
    result
}
