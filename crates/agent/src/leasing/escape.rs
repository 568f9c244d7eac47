//! What earlier looks of the audit of compute saw, and what a slice used beyond what it was charged.

use std::collections::HashMap;

use divvy_arbiter::{MILLISECOND, Nanos};

use super::meter::Use;

/// What is forgiven of a stretch of time: what kernels outlast their leases by between two looks, and what drivers round. A
/// rate that the driver samples is forgiven more.
const FORGIVEN_OF_TOTAL: u32 = 500;
const FORGIVEN_OF_RATE: u32 = 2500;

/// A shorter stretch says nothing.
pub(super) const LEAST: Nanos = 500 * MILLISECOND;

/// What the last look at a slice on a device saw.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub at: Nanos,
    pub charged: u128,
    pub totals: HashMap<u32, Nanos>,
    /// It was beyond what is forgiven then already: one look in two may hit a long kernel's end.
    pub beyond: bool,
}

/// What earlier looks saw, by tenant and device.
#[derive(Debug, Default)]
pub(super) struct Escapes {
    pub seen: HashMap<(u64, u32), Seen>,
}

/// What each process had in all, where the driver tells.
pub(super) fn totals(uses: &[(u32, Use)]) -> HashMap<u32, Nanos> {
    uses.iter()
        .filter_map(|(pid, used)| match used {
            Use::Total(total) => Some((*pid, *total)),
            Use::Rate(_) => None,
        })
        .collect()
}

/// What was used beyond what was charged and what is forgiven.
pub(super) fn escaped(before: &Seen, after: &Seen, uses: &[(u32, Use)]) -> Nanos {
    let time = after.at.saturating_sub(before.at);
    let of_time = |parts: u32| (u128::from(time) * u128::from(parts) / 10_000) as Nanos;
    // A process that was not there at the last look began since: all of its time counts.
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
