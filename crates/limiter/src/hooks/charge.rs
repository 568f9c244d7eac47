//! Reserve, call the driver, commit or roll back; and the reverse for frees.

use divvy_abi::{
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_SYSTEM_NOT_READY, CUdeviceptr, CUresult,
};
use divvy_ledger::ReserveError;
use divvy_ledger::attach::Attached;

use crate::below::forward;
use crate::log;
use crate::map::PointerMap;
use crate::tenant::{self, Tenant};

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
    call: impl FnOnce() -> CUresult,
    pointer: impl FnOnce() -> CUdeviceptr,
) -> CUresult {
    let member = match tenant::join() {
        Ok(Tenant::Member(member)) => member,
        Ok(Tenant::Unlimited) => return call(),
        Err(code) => return code,
    };
    let bytes = rounded(bytes);
    if let Err(refusal) = member.reserve(bytes) {
        return refused(bytes, refusal);
    }
    let result = call();
    if !result.is_success() {
        give_back(member, bytes);
        return result;
    }
    keep(member, pointer(), bytes)
}

/// Notes a charge that the driver has confirmed.
#[inline]
pub(super) fn keep(member: &Attached, pointer: CUdeviceptr, bytes: u64) -> CUresult {
    match CHARGED.insert(pointer, bytes) {
        Ok(None) => CUresult::default(),
        // The address was freed in a way that we did not see: its old charge goes.
        Ok(Some(old)) => {
            give_back(member, old.bytes);
            CUresult::default()
        }
        // The charge cannot be remembered, so the memory cannot be had.
        Err(_) => {
            // SAFETY: the driver has just handed this pointer out, and nobody else has seen it.
            let _freed = unsafe { forward::cuMemFree_v2(pointer) };
            give_back(member, bytes);
            CUDA_ERROR_OUT_OF_MEMORY
        }
    }
}

/// Frees `pointer` by `call`; what it was charged goes back if the driver agrees.
#[inline]
pub(super) fn freed(pointer: CUdeviceptr, call: impl FnOnce() -> CUresult) -> CUresult {
    let member = match tenant::known() {
        Some(Tenant::Member(member)) if member.is_ours() => member,
        // Nothing was ever charged to this process, or it is a forked child with a copy of its parent's map.
        _ => return call(),
    };
    // Forgotten before the call: afterwards the address may already be another thread's new allocation.
    let charge = CHARGED.take(pointer);
    let result = call();
    match charge {
        Some(charge) if result.is_success() => give_back(member, charge.bytes),
        // Still allocated, then; there was room for it a moment ago.
        Some(charge) => drop(CHARGED.insert(pointer, charge.bytes)),
        None => {}
    }
    result
}

/// Returns bytes to the slice.
#[inline]
pub(super) fn give_back(member: &Attached, bytes: u64) {
    if let Err(error) = member.release(bytes) {
        log::line(format_args!("{bytes} bytes cannot be returned: {error}"));
    }
}

/// The driver's code for a reservation that was not granted.
#[cold]
pub(super) fn refused(bytes: u64, refusal: ReserveError) -> CUresult {
    log::line(format_args!(
        "An allocation of {bytes} bytes is refused: {refusal}"
    ));
    match refusal {
        ReserveError::Refused { .. } => CUDA_ERROR_OUT_OF_MEMORY,
        // As CUDA has it: a context does not survive a fork.
        ReserveError::Forked => CUDA_ERROR_NOT_INITIALIZED,
        // Strict: what cannot be counted is not granted.
        _ => CUDA_ERROR_SYSTEM_NOT_READY,
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
