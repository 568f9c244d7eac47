//! The driver's figures of a slice's use of a device, shown to people beside the leased time. A lease is time in which
//! no other slice may run; how much of it is used is up to the program.

use std::collections::HashMap;

use divvy_arbiter::Nanos;

use super::figures::{Figures, Window};
use super::meter::Use;

/// The driver's figures of a slice on one device.
#[derive(Clone, Debug, Default)]
pub(super) struct Metered {
    /// The total of each process at the last look.
    totals: HashMap<u32, Nanos>,
    pub looked_at: Option<Nanos>,
    busy: Nanos,
    figures: Figures,
}

impl Metered {
    /// Takes the driver's present figures.
    pub fn take(&mut self, uses: &[(u32, Use)], now: Nanos) {
        let time = self.looked_at.map_or(0, |before| now.saturating_sub(before));
        let mut totals = HashMap::with_capacity(uses.len());
        let mut more: Nanos = 0;
        for (pid, used) in uses {
            more = more.saturating_add(match used {
                Use::Total(total) => {
                    totals.insert(*pid, *total);
                    // A process that was not there before has started since.
                    total.saturating_sub(self.totals.get(pid).copied().unwrap_or(0))
                }
                Use::Rate(parts) => (u128::from(time) * u128::from(*parts) / 10_000) as Nanos,
            });
        }
        // Use before the first look is left out.
        if self.looked_at.is_some() {
            self.busy = self.busy.saturating_add(more.min(time));
        }
        self.totals = totals;
        self.looked_at = Some(now);
        self.figures.take(now, self.busy, 0);
    }

    /// Its use in the last `seconds`, in parts of 10,000; none before the second look.
    pub fn window(&self, seconds: u64) -> Option<u32> {
        let Window { used, .. } = self.figures.window(seconds);
        (self.figures.count() > 1).then_some(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_arbiter::SECOND;

    #[test]
    fn totals_and_rates_become_parts_of_the_time() {
        let mut metered = Metered::default();
        assert_eq!(metered.window(1), None);
        metered.take(&[(1, Use::Total(7 * SECOND))], SECOND);
        assert_eq!(metered.window(1), None, "nothing is known of before");
        metered.take(&[(1, Use::Total(7 * SECOND + SECOND / 4))], 2 * SECOND);
        assert_eq!(metered.window(1), Some(2500));
        // One process has come, and one has gone.
        metered.take(&[(2, Use::Total(SECOND / 2))], 3 * SECOND);
        assert_eq!((metered.window(1), metered.window(10)), (Some(5000), Some(3750)));
        metered.take(&[(2, Use::Rate(1000)), (3, Use::Rate(500))], 4 * SECOND);
        assert_eq!(metered.window(1), Some(1500));
        metered.take(&[(2, Use::Total(900 * SECOND))], 5 * SECOND);
        assert_eq!(metered.window(1), Some(10_000), "no more than there was time for");
        metered.take(&[], 6 * SECOND);
        assert_eq!(metered.window(1), Some(0));
    }
}
