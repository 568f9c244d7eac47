//! Reserve, call the driver, commit or roll back; and the reverse for frees.

use divvy_abi::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUdeviceptr, CUresult};

use crate::account::{self, Account};
use crate::below::forward;
use crate::books::{CHARGED, SPILLED, deferred, grain, imports, is_pool, pools, returned};
use crate::map::Charge;

/// Allocates under the slice's limit: reserves `bytes`, calls the driver, and keeps the charge under the pointer that
/// `pointer` reads after a success.
///
/// Over the limit the answer is `CUDA_ERROR_OUT_OF_MEMORY` and the driver is not called: out-parameters stay untouched.
#[inline]
pub(super) fn charged(
    bytes: u64,
    mut call: impl FnMut() -> CUresult,
    pointer: impl FnOnce() -> CUdeviceptr,
) -> CUresult {
    match account::current() {
        Ok(Some(account)) => charged_to(account, bytes, call, pointer),
        Ok(None) => call(),
        Err(code) => code,
    }
}

/// [`charged`], where it is known who pays.
#[inline]
pub(super) fn charged_to(
    account: Account,
    bytes: u64,
    call: impl FnMut() -> CUresult,
    pointer: impl FnOnce() -> CUdeviceptr,
) -> CUresult {
    let bytes = grain::taken(account, bytes);
    let result = account::allocating(account, bytes, "an allocation", call);
    if !result.is_success() {
        return result;
    }
    keep(account.index().into(), pointer(), bytes)
}

/// Notes a charge that the driver has confirmed.
#[inline]
pub(super) fn keep(payer: u16, pointer: CUdeviceptr, bytes: u64) -> CUresult {
    match CHARGED.insert(pointer, bytes, payer) {
        Ok(None) => CUresult::default(),
        // The address was freed in a way that we did not see: its old charge goes.
        Ok(Some(old)) => {
            returned(old);
            CUresult::default()
        }
        // The charge cannot be remembered, so the memory cannot be had.
        Err(_) => {
            // SAFETY: the driver has just handed this pointer out, and nobody else has seen it.
            let _freed = unsafe { forward::cuMemFree_v2(pointer) };
            returned(Charge {
                bytes,
                payer,
                stamp: 0,
            });
            CUDA_ERROR_OUT_OF_MEMORY
        }
    }
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
    let result = call();
    match charge {
        Some(charge) if result.is_success() => {
            if let Some(charge) = released(pointer, charge) {
                returned(charge);
            }
        }
        // Still allocated, then; there was room for it a moment ago.
        Some(charge) => drop(CHARGED.insert(pointer, charge.bytes, charge.payer)),
        None => {}
    }
    if imports::any() && result.is_success() {
        imports::freed(pointer);
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
    let result = call();
    if let Some(charge) = charge
        && charge.payer >= SPILLED
        && result == CUDA_ERROR_INVALID_VALUE
    {
        return freed_at_once(pointer, charge);
    }
    if let Some(charge) = charge {
        if !result.is_success() {
            let _room_was_there = CHARGED.insert(pointer, charge.bytes, charge.payer);
        } else if let Some(charge) = released(pointer, charge) {
            if is_pool(charge.payer) {
                pools::will_be_freed(charge.payer, charge.bytes);
            }
            deferred::defer(stream, charge.payer, charge.bytes);
        }
    }
    if imports::any() && result.is_success() {
        imports::freed(pointer);
    }
    result
}

/// What may be given back of the charge of a freed pointer.
#[inline]
fn released(pointer: CUdeviceptr, charge: Charge) -> Option<Charge> {
    if imports::any() {
        imports::released(pointer, charge)
    } else {
        Some(charge)
    }
}

/// Frees managed memory that the program holds for device memory: drivers do not free that in stream order. Waits for
/// what uses it, as cuMemFree does.
#[cold]
fn freed_at_once(pointer: CUdeviceptr, charge: Charge) -> CUresult {
    // SAFETY: a pointer that the program frees, and has the right to.
    let result = unsafe { forward::cuMemFree_v2(pointer) };
    if result.is_success() {
        returned(charge);
    } else {
        let _room_was_there = CHARGED.insert(pointer, charge.bytes, charge.payer);
    }
    result
}
