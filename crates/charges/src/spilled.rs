//! Memory beyond the share: managed memory on the host, in a slice whose terms allow it.
//!
//! A slice thrashes when kernels are launched repeatedly while much of the memory that they may touch lies there. No
//! interface of the driver reports which memory they do touch, and how much of it moves over the bus: see
//! docs/adr/0009.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::environment::{Account, Accounts};

/// From this part of a slice's memory on, in parts of 10,000, launches count as thrashing.
const THRASHING_AT: u64 = 2_500;
/// Launches from one check to the next.
const LAUNCHES: u32 = 64;

pub(crate) struct Spilled {
    /// Whether this process has ever allocated beyond its share: launches are counted from then on.
    ever: AtomicBool,
    launched: AtomicU32,
}

impl Spilled {
    pub const fn new() -> Self {
        Self {
            ever: AtomicBool::new(false),
            launched: AtomicU32::new(0),
        }
    }

    /// Notes that this process has memory beyond its share.
    pub fn taken<E: Accounts>(&self, env: &E, account: E::Account) {
        self.ever.store(true, Ordering::Relaxed);
        note(env, account, false);
    }

    /// Gives bytes beyond the share back to the account with this index.
    #[cold]
    pub fn freed(&self, env: &impl Accounts, account: u8, bytes: u64) {
        let Some(account) = env.account(account) else {
            return;
        };
        if let Some(Err(error)) = account.slot().map(|slot| slot.release_spill(bytes)) {
            env.log(format_args!(
                "{bytes} bytes beyond the share cannot be returned: {error}"
            ));
        }
        note(env, account, false);
    }

    /// A kernel is launched. Returns whether it is time for [`note`]. Costs one load if no memory lies beyond the
    /// share.
    #[inline]
    pub fn launched(&self) -> bool {
        self.ever.load(Ordering::Relaxed) && self.count()
    }

    /// The first launch reports at once. Lost counts between threads only delay the next check slightly.
    #[cold]
    fn count(&self) -> bool {
        self.launched
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(LAUNCHES)
    }
}

/// Tells the agent how much of the slice's memory lies beyond its share, and whether kernels may be using it.
pub(crate) fn note<E: Accounts>(env: &E, account: E::Account, launching: bool) {
    let Some(slot) = account.slot() else { return };
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
        env.log(format_args!(
            "Thrashing: {spilled} of {} bytes lie beyond the share, and kernels run",
            used.saturating_add(spilled)
        ));
    }
}
