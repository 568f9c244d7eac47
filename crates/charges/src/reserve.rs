//! Finding room before an allocation is refused, and waiting for it.
//!
//! First what is charged and unused is given back: frees that streams have come to, memory that pools keep, residual memory
//! without importers. For a moment an allocation waits for what streams and other processes are about to give back. Last,
//! in a slice whose terms say so (`--on-oom wait=30s`), it waits for room: docs/adr/0009 says in which order. No lock is
//! held and no byte is charged while an allocation waits.

use core::time::Duration;
use std::time::Instant;

use divvy_abi::{
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_SYSTEM_NOT_READY, CUresult,
};
use divvy_ledger::ReserveError;

use crate::environment::{Account, Accounts};

/// How long an allocation waits for frees before it, which a driver's own allocator waits for as well. No longer: what
/// the streams are doing may depend on this very thread.
const FREES_WAIT: Duration = Duration::from_secs(1);
/// What is reserved for a moment, by threads and processes whose allocation may take it or not, is back by then.
const MOMENTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
/// How long after a dead process's bytes came back the driver below may still hold them.
const AFTERMATH: Duration = Duration::from_millis(100);
/// How often, and after which pauses, the driver is asked again meanwhile. The moment is a hint in a page that tenants
/// can write, so the tries are counted as well.
const AFTERMATH_TRIES: u32 = 10;
const AFTERMATH_PAUSE: Duration = Duration::from_millis(10);

/// The source of memory that is charged and unused.
pub(crate) trait Reclaim<A> {
    /// Gives back what the account is charged for and is unused.
    fn reclaim(&self, account: A);

    /// Bytes of frees that streams are about to come to; none where no free is waited for.
    fn coming_bytes(&self) -> Option<u64>;
}

fn is_final(refusal: &ReserveError) -> bool {
    !matches!(refusal, ReserveError::Refused { .. })
}

/// Takes `bytes` after a first `refusal`, if they are to be found, or come while the slice's terms wait.
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
        // Residual memory without importers comes back as soon as the process that pays for it has looked.
        let called = account.slot().map_or(0, divvy_ledger::Slot::call_owners);
        let coming = reclaim.coming_bytes();
        let may_wait = coming.is_some() || called > 0;
        let soon = coming.unwrap_or(0).saturating_add(called);
        let soon = account.room_bytes().saturating_add(soon);
        if !may_wait || bytes > soon || begin.elapsed() > FREES_WAIT {
            if moments == 0 || bytes > account.limit_bytes() {
                // Last of all what the agent says that the driver holds, which is a moment old.
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

/// The driver below has no room for what the slice has: asks again, for a moment where a process has just died, and for
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

/// The driver's code for a reservation that was not granted.
#[cold]
pub(crate) fn refused(
    accounts: &impl Accounts,
    bytes: u64,
    what: &'static str,
    refusal: ReserveError,
) -> CUresult {
    accounts.log(format_args!("{bytes} bytes for {what} are refused: {refusal}"));
    match refusal {
        ReserveError::Refused { .. } => CUDA_ERROR_OUT_OF_MEMORY,
        // As CUDA has it: a context does not survive a fork.
        ReserveError::Forked => CUDA_ERROR_NOT_INITIALIZED,
        // Strict: what cannot be counted is not granted.
        _ => CUDA_ERROR_SYSTEM_NOT_READY,
    }
}
