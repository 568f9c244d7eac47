//! Waiting for room instead of answering out-of-memory, in a slice whose terms say so (`--on-oom wait=30s`).
//!
//! No lock is held and no byte is charged while an allocation waits. See [`divvy_ledger::attach::Waiting`] for who goes
//! first, and docs/adr/0009 for why not in strict order.

use core::time::Duration;

use divvy_abi::{CUDA_ERROR_OUT_OF_MEMORY, CUresult};
use divvy_ledger::ReserveError;

use crate::account::Account;
use crate::room;

/// How long after a dead process's bytes came back the driver below may still hold them.
const AFTERMATH: Duration = Duration::from_millis(100);
/// How often, and after which pauses, the driver is asked again meanwhile. The moment is a hint in a page that tenants
/// can write, so the tries are counted as well.
const AFTERMATH_TRIES: u32 = 10;
const AFTERMATH_PAUSE: Duration = Duration::from_millis(10);

/// Takes `bytes` from `account` as soon as the slice has room for them, if that is while its terms would wait.
///
/// # Errors
/// `refusal`, or a later one.
#[cold]
pub(crate) fn reserve(account: Account, bytes: u64, refusal: ReserveError) -> Result<(), ReserveError> {
    let mut refusal = refusal;
    if !matches!(refusal, ReserveError::Refused { .. }) {
        return Err(refusal);
    }
    let Some(mut waiting) = account.attached().begin_waiting(bytes) else {
        return Err(refusal);
    };
    loop {
        room::look(account);
        match account.attached().reserve(bytes) {
            Ok(()) => return Ok(()),
            Err(again) => refusal = again,
        }
        if !matches!(refusal, ReserveError::Refused { .. }) || !waiting.pause() {
            return Err(refusal);
        }
    }
}

/// The driver below has no room for what the slice has: asks again, for a moment where a process has just died, and for
/// as long as the slice's terms wait. `bytes` are charged to `account` exactly if this answers success.
#[cold]
pub(crate) fn ask_again(account: Account, bytes: u64, call: &mut dyn FnMut() -> CUresult) -> CUresult {
    let mut attempt = || -> Option<CUresult> {
        room::look(account);
        account.attached().reserve(bytes).ok()?;
        let result = call();
        if !result.is_success() {
            account.give_back(bytes);
        }
        (result != CUDA_ERROR_OUT_OF_MEMORY).then_some(result)
    };
    for _ in 0..AFTERMATH_TRIES {
        if account
            .attached()
            .since_return()
            .is_none_or(|since| since > AFTERMATH)
        {
            break;
        }
        std::thread::sleep(AFTERMATH_PAUSE);
        if let Some(result) = attempt() {
            return result;
        }
    }
    if let Some(mut waiting) = account.attached().begin_waiting(bytes) {
        while waiting.pause() {
            if let Some(result) = attempt() {
                return result;
            }
        }
    }
    CUDA_ERROR_OUT_OF_MEMORY
}
