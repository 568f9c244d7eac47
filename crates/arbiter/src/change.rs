//! What a change of holder costs a device: time in which a lease was held and nothing ran.

use crate::{MICROSECOND, Nanos};

/// How far one sample moves the figure: up by this much where it was more, down by twice as much where it was less. So
/// the figure comes to what a third of all changes stay below.
const STEP: Nanos = 3 * MICROSECOND;
/// So much is hidden on every machine: a gate says that it is done a little ahead of its last kernel's end.
const HIDDEN: Nanos = 50 * MICROSECOND;

/// The cost of a device's changes of holder of late.
///
/// A program that thinks between its kernels leaves the device idle in the middle of its lease as well, and looks as if
/// a change had cost all of that. A third of the samples is less than that as soon as one of three tenants always has
/// work. One sample counts as much as another, however large.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    idle: Nanos,
}

impl Change {
    /// Notes a lease that ended because others wanted the device: for so long it was held and idle.
    pub fn note(&mut self, idle: Nanos) {
        self.idle = if idle > self.idle {
            self.idle + STEP
        } else {
            self.idle.saturating_sub(2 * STEP)
        };
    }

    /// For how long the device idles at a change of holder.
    pub fn cost(&self) -> Nanos {
        self.idle.saturating_sub(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    fn after(samples: impl IntoIterator<Item = Nanos>) -> Nanos {
        let mut change = Change::default();
        samples.into_iter().for_each(|idle| change.note(idle));
        change.cost()
    }

    #[test]
    fn it_comes_to_what_changes_cost() {
        let cost = after([300 * MICROSECOND; 400]);
        assert!(cost.abs_diff(250 * MICROSECOND) < 20 * MICROSECOND, "{cost}");
    }

    #[test]
    fn a_program_that_thinks_in_its_lease_is_no_costly_change() {
        let thinks = (0..4000).map(|n| {
            if n % 2 == 0 {
                60 * MICROSECOND
            } else {
                3 * MILLISECOND
            }
        });
        let cost = after(thinks);
        assert!(cost < 40 * MICROSECOND, "{cost}");
    }

    #[test]
    fn what_is_always_hidden_costs_nothing() {
        assert_eq!(after([40 * MICROSECOND; 400]), 0);
    }
}
