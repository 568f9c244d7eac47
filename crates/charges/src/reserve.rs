//! Finding free memory before an allocation is refused, and waiting for it.
//!
//! First, charged but unused memory is given back: frees that streams have reached, memory that pools keep, and
//! residual memory without importers. For a moment an allocation waits for memory that streams and other processes are
//! about to return. Last, if the slice's terms say so (`--on-oom wait=30s`), it waits for memory; docs/adr/0009 gives
//! the order. No lock is held and no byte is charged while an allocation waits.

use core::time::Duration;
use std::time::Instant;

use divvy_abi::{
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_SYSTEM_NOT_READY, CUresult,
};
use divvy_ledger::ReserveError;

use crate::environment::{Account, Accounts};

/// How long an allocation waits for earlier frees, as a driver's own allocator does. It waits no longer, since the
/// streams' work may depend on this very thread.
const FREES_WAIT: Duration = Duration::from_secs(1);
/// Short reservations, by threads and processes whose allocation may or may not take them, are back within so many
/// pauses.
const MOMENTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
/// How long the driver below may still hold a dead process's bytes after they came back.
const AFTERMATH: Duration = Duration::from_millis(100);
/// How often, and with which pauses, the driver is asked again meanwhile. The time is a hint in a page that tenants can
/// write, so the tries are counted as well.
const AFTERMATH_TRIES: u32 = 10;
const AFTERMATH_PAUSE: Duration = Duration::from_millis(10);

/// The source of memory that is charged and unused.
pub(crate) trait Reclaim<A> {
    /// Gives back charged but unused memory of the account.
    fn reclaim(&self, account: A);

    /// Bytes of frees that streams are about to reach; `None` if no free is pending.
    fn coming_bytes(&self) -> Option<u64>;
}

fn is_final(refusal: &ReserveError) -> bool {
    !matches!(refusal, ReserveError::Refused { .. })
}

/// Takes `bytes` after a first `refusal`, if they are found, or come while the slice's terms wait.
///
/// # Errors
/// `refusal`, or a later one.
#[cold]
pub(crate) fn find<A: Account>(
    reclaim: &impl Reclaim<A>,
    account: A,
    bytes: u64,
    refusal: ReserveError,
) -> Result<(), ReserveError> {
    if is_final(&refusal) {
        return Err(refusal);
    }
    reclaimed(reclaim, account, bytes).or_else(|again| awaited(reclaim, account, bytes, again))
}

fn reclaimed<A: Account>(reclaim: &impl Reclaim<A>, account: A, bytes: u64) -> Result<(), ReserveError> {
    let begin = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut moments = MOMENTS;
    let mut may_ask = true;
    loop {
        reclaim.reclaim(account);
        let refusal = match account.reserve(bytes) {
            Ok(()) => return Ok(()),
            Err(refusal) => refusal,
        };
        // Residual memory without importers comes back as soon as its owner has looked.
        let called = account.slot().map_or(0, divvy_ledger::Slot::call_owners);
        let coming = reclaim.coming_bytes();
        let may_wait = coming.is_some() || called > 0;
        let soon = coming.unwrap_or(0).saturating_add(called);
        let soon = account.room_bytes().saturating_add(soon);
        if !may_wait || bytes > soon || begin.elapsed() > FREES_WAIT {
            if moments == 0 || bytes > account.limit_bytes() {
                // The last resort is the agent's figure of the driver's own memory, which may be out of date.
                if !std::mem::take(&mut may_ask) || !account.look_afresh(bytes) {
                    return Err(refusal);
                }
                continue;
            }
            moments -= 1;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn awaited<A: Account>(
    reclaim: &impl Reclaim<A>,
    account: A,
    bytes: u64,
    mut refusal: ReserveError,
) -> Result<(), ReserveError> {
    if is_final(&refusal) {
        return Err(refusal);
    }
    let Some(mut pause) = account.begin_waiting(bytes) else {
        return Err(refusal);
    };
    loop {
        reclaim.reclaim(account);
        match account.reserve(bytes) {
            Ok(()) => return Ok(()),
            Err(again) => refusal = again,
        }
        if is_final(&refusal) || !pause() {
            return Err(refusal);
        }
    }
}

/// The driver below lacks memory that the slice still has. Asks again, for a moment if a process has just died, and for
/// as long as the slice's terms wait. `bytes` are charged to `account` exactly if this returns success.
#[cold]
pub(crate) fn ask_again<A: Account>(
    reclaim: &impl Reclaim<A>,
    account: A,
    bytes: u64,
    call: &mut dyn FnMut() -> CUresult,
) -> CUresult {
    let mut attempt = || -> Option<CUresult> {
        reclaim.reclaim(account);
        account.reserve(bytes).ok()?;
        let result = call();
        if !result.is_success() {
            account.give_back(bytes);
        }
        (result != CUDA_ERROR_OUT_OF_MEMORY).then_some(result)
    };
    for _ in 0..AFTERMATH_TRIES {
        if account.since_return().is_none_or(|since| since > AFTERMATH) {
            break;
        }
        std::thread::sleep(AFTERMATH_PAUSE);
        if let Some(result) = attempt() {
            return result;
        }
    }
    if let Some(mut pause) = account.begin_waiting(bytes) {
        while pause() {
            if let Some(result) = attempt() {
                return result;
            }
        }
    }
    CUDA_ERROR_OUT_OF_MEMORY
}

/// People are told of an allocation that did not fit.
pub(crate) fn note_refusal(account: impl Account, bytes: u64) {
    if let Some(slot) = account.slot() {
        slot.note_refusal(bytes);
    }
}

/// The driver's code for a refused reservation.
#[cold]
pub(crate) fn refused<A: Account>(
    accounts: &impl Accounts,
    account: A,
    bytes: u64,
    what: &'static str,
    refusal: ReserveError,
) -> CUresult {
    accounts.log(format_args!("{bytes} bytes for {what} are refused: {refusal}"));
    match refusal {
        ReserveError::Refused { .. } => {
            note_refusal(account, bytes);
            CUDA_ERROR_OUT_OF_MEMORY
        }
        // CUDA's rule: a context does not survive a fork.
        ReserveError::Forked => CUDA_ERROR_NOT_INITIALIZED,
        // It is strict: an allocation that cannot be counted is not granted.
        _ => CUDA_ERROR_SYSTEM_NOT_READY,
    }
}
