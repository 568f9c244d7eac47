//! How an arbiter is set: lengths of time, all in nanoseconds.

use crate::{MICROSECOND, MILLISECOND, Nanos, SECOND};

/// A change of holder takes this part of a quantum, at most, while the quantum may be longer for it.
const CHANGES_COST: u64 = 50;
/// Beside long launches the quantum is this part of one.
const LAUNCH_PARTS: u64 = 10;
/// How many times as long as the chosen one the quantum becomes for these reasons.
const STRETCH: u64 = 4;

/// Lengths of time that rule every device of one arbiter. [`Settings::default`] is what the project measures.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a tenant runs before the next may, when several want the device. 1 to 30 ms.
    pub quantum: Nanos,
    /// Work in flight that a tenant may have while others are registered on its device.
    pub in_flight: Nanos,
    /// The same for best-effort tenants while a latency-critical one is registered. It is at most this, and no more
    /// than half the tenant's own typical kernel. (One kernel may always be in flight.)
    pub in_flight_beside_latency: Nanos,
    /// The same for the only latency-critical tenant of a device, as far as its budget goes.
    pub in_flight_of_latency: Nanos,
    /// The least in-flight bound: what keeps a device fed while the host looks away for a moment.
    pub in_flight_floor: Nanos,
    /// Unused claim that a tenant keeps while it sleeps, in device time.
    pub lag: Nanos,
    /// A best-effort holder keeps a lease for at least this before one that wakes with a better claim takes it over.
    pub least_hold: Nanos,
    /// How long before its end a lease is renewed, when it is.
    pub renew_ahead: Nanos,
    /// How long after its end an unreleased lease no longer keeps others from the device, where no long launch is
    /// expected. A kernel that is still in flight then shares the device with them by the hardware's own time-slicing,
    /// if it has any. Three quarters of the way the lease is reported as overdue.
    pub expiry: Nanos,
    /// The most that this becomes where others are stuck on the device, and make its kernels slower.
    pub longest_expiry: Nanos,
    /// The longest launch that is waited for: a lease whose tenant's launches take longer expires.
    pub longest_launch: Nanos,
    /// While a lease is out, the arbiter wants to be woken at least this often. A step of the clock of more than twice
    /// this is a jump, and counts as nothing. The machine slept, or the agent was stopped, so no tenant could have had
    /// the device.
    pub heartbeat: Nanos,
    /// Nothing is granted for less than this while a gang's devices come together.
    pub least_backfill: Nanos,
    /// The longest quantum that a thrash hint leads to.
    pub longest_quantum: Nanos,
    /// The longest quantum that costly changes of holder and long launches lead to: see `stretched`.
    pub longest_stretch: Nanos,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            quantum: 5 * MILLISECOND,
            in_flight: 2 * MILLISECOND,
            in_flight_beside_latency: MILLISECOND,
            in_flight_of_latency: 10 * MILLISECOND,
            in_flight_floor: 400 * MICROSECOND,
            lag: 5 * MILLISECOND,
            least_hold: 1250 * MICROSECOND,
            renew_ahead: 200 * MICROSECOND,
            expiry: 40 * MILLISECOND,
            longest_expiry: 400 * MILLISECOND,
            longest_launch: 4 * SECOND,
            heartbeat: 100 * MILLISECOND,
            least_backfill: 500 * MICROSECOND,
            longest_quantum: 2 * SECOND,
            longest_stretch: 20 * MILLISECOND,
        }
    }
}

impl Settings {
    /// The quantums that may be chosen.
    pub const QUANTUM: std::ops::RangeInclusive<Nanos> = MILLISECOND..=30 * MILLISECOND;

    /// The default with another quantum, and what follows from it; `None` outside 1 to 30 ms.
    pub fn with_quantum(quantum: Nanos) -> Option<Self> {
        Self::QUANTUM.contains(&quantum).then(|| Self {
            quantum,
            lag: quantum,
            least_hold: quantum / 4,
            longest_stretch: (quantum * STRETCH).min(*Self::QUANTUM.end()),
            ..Self::default()
        })
    }

    /// The quantum of a device on which a change of holder idles it for `change`, and leases are outlasted by `overrun`.
    ///
    /// Changes should cost no more than a fiftieth of the time. And where tenants wait for launches of a tenth of a
    /// second anyway, a longer quantum makes no wait much longer.
    pub(crate) fn stretched(&self, change: Nanos, overrun: Nanos) -> Nanos {
        let wanted = change.saturating_mul(CHANGES_COST).max(overrun / LAUNCH_PARTS);
        wanted.min(self.longest_stretch).max(self.quantum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_and_least_hold_follow_the_quantum() {
        let settings = Settings::with_quantum(22 * MILLISECOND).expect("a quantum that may be chosen");
        assert_eq!(settings.quantum, 22 * MILLISECOND);
        assert_eq!(settings.lag, 22 * MILLISECOND);
        assert_eq!(settings.least_hold, 5500 * MICROSECOND);
        assert_eq!(settings.expiry, Settings::default().expiry);
    }

    #[test]
    fn a_quantum_is_1_to_30_milliseconds() {
        let taken = |nanos| Settings::with_quantum(nanos).is_some();
        assert!(taken(MILLISECOND) && taken(30 * MILLISECOND));
        assert!(!taken(MILLISECOND - 1) && !taken(30 * MILLISECOND + 1));
    }
}
