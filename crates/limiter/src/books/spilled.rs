//! What lies beyond the share: managed memory that the host backs, in a slice whose terms allow it.
//!
//! A slice thrashes when kernels keep being launched while much of what they may touch lies there. What they do touch
//! and what that moves over the bus, no interface of the driver tells: see docs/adr/0009.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::account::{self, Account};
use crate::log;

/// From this part of a slice's memory on, in parts of 10,000, launches are thrashing.
const THRASHING_AT: u64 = 2_500;
/// Launches from one look to the next.
const LAUNCHES: u32 = 64;

/// Whether this process has ever allocated beyond its share: launches are counted from then on.
static SPILLS: AtomicBool = AtomicBool::new(false);
static LAUNCHED: AtomicU32 = AtomicU32::new(0);

/// Notes that this process has memory beyond its share.
pub(crate) fn taken(account: Account) {
    SPILLS.store(true, Ordering::Relaxed);
    note(account, false);
}

/// Returns what was spilled, to the account with this index.
#[cold]
pub(crate) fn freed(account: u16, bytes: u64) {
    if let Some(account) = account::paid(account as u8) {
        if let Err(error) = account.attached().slot().release_spill(bytes) {
            log::line(format_args!(
                "{bytes} bytes beyond the share cannot be returned: {error}"
            ));
        }
        note(account, false);
    }
}

/// A kernel is launched. Costs a load where nothing is spilled.
#[inline]
pub(crate) fn launched() {
    if SPILLS.load(Ordering::Relaxed) {
        count();
    }
}

#[cold]
fn count() {
    // The first tells at once; lost counts between threads only make the next look a little later.
    if !LAUNCHED.fetch_add(1, Ordering::Relaxed).is_multiple_of(LAUNCHES) {
        return;
    }
    if account::keeps_books()
        && let Ok(Some(account)) = account::current()
    {
        note(account, true);
    }
}

/// Tells the agent how much of the slice's memory lies beyond its share, and whether it is being used.
fn note(account: Account, launching: bool) {
    let slot = account.attached().slot();
    let (Some(used), Some(spilled)) = (slot.total_used(), slot.total_spilled()) else {
        return;
    };
    let pressure = match used.saturating_add(spilled) {
        0 => 0,
        all => u64::try_from(u128::from(spilled) * 10_000 / u128::from(all)).unwrap_or(10_000),
    };
    let was = slot.thrash().is_some_and(|thrash| thrash.lasting.is_some());
    let thrashing = pressure >= THRASHING_AT && (launching || was);
    slot.note_thrash(pressure as u32, thrashing);
    if thrashing && !was {
        log::line(format_args!(
            "Thrashing: {spilled} of {} bytes lie beyond the share, and kernels run",
            used.saturating_add(spilled)
        ));
    }
}
