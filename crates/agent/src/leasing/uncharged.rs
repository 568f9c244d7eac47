//! The earlier findings of the compute audit, and a slice's use beyond its charge.

use std::collections::HashMap;

use divvy_arbiter::{MILLISECOND, Nanos};

use super::meter::Use;

/// The tolerance for a stretch of time: kernels that outlast their leases between two looks, and rounding by drivers.
/// Figures that the driver samples have a larger tolerance.
const FORGIVEN_OF_TOTAL: u32 = 500;
const FORGIVEN_OF_RATE: u32 = 2500;

/// A shorter stretch proves nothing.
pub(super) const LEAST: Nanos = 500 * MILLISECOND;

/// For how long work goes on that was launched while the gate was open.
pub(super) const IN_FLIGHT: Nanos = 5000 * MILLISECOND;

/// The figures of the last look at a slice on a device.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub at: Nanos,
    /// The time that it may have used, in nanoseconds: see `charges::entitled`.
    pub charged: u128,
    pub totals: HashMap<u32, Nanos>,
    /// The use was beyond the tolerance then already: one look in two may hit a long kernel's end.
    pub beyond: bool,
}

/// The figures of earlier looks, by tenant and device.
#[derive(Debug, Default)]
pub(super) struct Audited {
    pub seen: HashMap<(u64, u32), Seen>,
    /// Until when a tenant's use may be of launches that it made while its gate was open.
    pub in_flight: HashMap<(u64, u32), Nanos>,
}

/// The total of each process, where the driver tells.
pub(super) fn totals(uses: &[(u32, Use)]) -> HashMap<u32, Nanos> {
    uses.iter()
        .filter_map(|(pid, used)| match used {
            Use::Total(total) => Some((*pid, *total)),
            Use::Rate(_) => None,
        })
        .collect()
}

/// The use beyond the charge and the tolerance.
pub(super) fn uncharged(before: &Seen, after: &Seen, uses: &[(u32, Use)]) -> Nanos {
    let time = after.at.saturating_sub(before.at);
    let of_time = |parts: u32| (u128::from(time) * u128::from(parts) / 10_000) as Nanos;
    // A process that was not there at the last look has started since: all of its time counts.
    let totals = after.totals.iter().map(|(pid, total)| {
        let at_first = before.totals.get(pid).copied().unwrap_or(0);
        total.saturating_sub(at_first)
    });
    let rates = uses.iter().map(|(_, used)| match used {
        Use::Total(_) => 0,
        Use::Rate(parts) => of_time(*parts),
    });
    let sampled = uses.iter().any(|(_, used)| matches!(used, Use::Rate(_)));
    let used = totals.chain(rates).fold(0, Nanos::saturating_add);
    let charged = u64::try_from(after.charged.saturating_sub(before.charged)).unwrap_or(u64::MAX);
    let forgiven = of_time(if sampled {
        FORGIVEN_OF_RATE
    } else {
        FORGIVEN_OF_TOTAL
    });
    used.saturating_sub(charged).saturating_sub(forgiven)
}
