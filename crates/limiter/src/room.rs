//! Where bytes may be found before an allocation is refused: frees that streams have come to, memory that pools keep and
//! nobody uses, for a moment frees that streams are about to come to and what another process pays for and nobody has any
//! more, and what the driver no longer holds for itself.

use core::time::Duration;
use std::time::Instant;

use divvy_ledger::ReserveError;

use crate::account::Account;
use crate::books::{deferred, graphs, imports, lingering, physical, pools};

/// How long an allocation waits for frees before it, which a driver's own allocator waits for as well. No longer: what
/// the streams are doing may depend on this very thread.
const PATIENCE: Duration = Duration::from_secs(1);
/// What is reserved for a moment, by threads and processes whose allocation may take it or not, is back by then.
const MOMENTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// Gives back what the account is charged for and nobody uses any more.
pub(crate) fn look(account: Account) {
    deferred::settle();
    pools::follow();
    pools::trim(account);
    graphs::follow();
    graphs::trim(account);
    lingering::follow();
    physical::follow();
    imports::follow();
}

/// Takes `bytes` after a first `refusal`, if they are to be found here.
///
/// # Errors
/// `refusal`, or a later one.
#[cold]
pub(crate) fn reserve(account: Account, bytes: u64, refusal: ReserveError) -> Result<(), ReserveError> {
    if !matches!(refusal, ReserveError::Refused { .. }) {
        return Err(refusal);
    }
    let begin = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut moments = MOMENTS;
    let mut may_ask = true;
    loop {
        look(account);
        let refusal = match account.attached().reserve(bytes) {
            Ok(()) => return Ok(()),
            Err(refusal) => refusal,
        };
        // What everybody has let go of comes back as soon as who pays for it has looked.
        let called = account.attached().slot().call_payers();
        let coming = deferred::waiting_bytes().saturating_add(called);
        let soon = account.room_bytes().saturating_add(coming);
        let may_wait = deferred::any() || called > 0;
        if !may_wait || bytes > soon || begin.elapsed() > PATIENCE {
            if moments == 0 || bytes > account.limit_bytes() {
                // Last of all what the agent says that the driver holds, which is a moment old.
                if !std::mem::take(&mut may_ask) || !account.attached().look_afresh(bytes) {
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
