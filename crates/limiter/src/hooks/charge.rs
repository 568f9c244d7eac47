//! Reserve, call the driver, commit or roll back; and the reverse for frees.

use divvy_abi::{CUDA_ERROR_OUT_OF_MEMORY, CUdeviceptr, CUresult};

use crate::account::{self, Account};
use crate::below::forward;
use crate::map::{Charge, PointerMap};

/// Bytes in which the ledger counts; a driver's own granularity is a multiple.
const UNIT: u64 = divvy_ledger::accounting::UNIT;

/// Every pointer that this process was charged for.
pub(super) static CHARGED: PointerMap = PointerMap::new();

/// `bytes` as the ledger counts them. Saturates below the top, where every limit refuses.
pub(super) fn rounded(bytes: u64) -> u64 {
    bytes
        .checked_next_multiple_of(UNIT)
        .unwrap_or(u64::MAX - UNIT + 1)
}

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
    let account = match account::current() {
        Ok(Some(account)) => account,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    let bytes = rounded(bytes);
    let result = account::allocating(account, bytes, "an allocation", call);
    if !result.is_success() {
        return result;
    }
    keep(account, pointer(), bytes)
}

/// Notes a charge that the driver has confirmed.
#[inline]
pub(super) fn keep(account: Account, pointer: CUdeviceptr, bytes: u64) -> CUresult {
    match CHARGED.insert(pointer, bytes, account.index()) {
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
            account.give_back(bytes);
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
        Some(charge) if result.is_success() => returned(charge),
        // Still allocated, then; there was room for it a moment ago.
        Some(charge) => drop(CHARGED.insert(pointer, charge.bytes, charge.account)),
        None => {}
    }
    result
}

/// Gives a charge back to the account that paid it.
#[inline]
pub(super) fn returned(charge: Charge) {
    if let Some(account) = account::paid(charge.account) {
        account.give_back(charge.bytes);
    }
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
