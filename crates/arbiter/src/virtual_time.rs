//! Virtual time: device time over weight. The tenant with the least of it is owed most.

use crate::Nanos;
use crate::admission::Promises;
use crate::terms::{Part, Share, Terms};

/// Binary places below one part per 10 000, for weights that divide what is left of a device among thousands.
const FINE: u32 = 20;
/// Binary places of a virtual nanosecond.
const PLACES: u32 = 10;

/// A tenant's virtual time on one device, or a device's own: the nanoseconds a whole share would have run.
///
/// 128 bits: the lightest weight there is, charged for five centuries, stays below 2¹⁰⁸.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VirtualTime(u128);

/// A weight at which virtual time passes; a whole device is 10 000 × 2²⁰.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace(u64);

impl Pace {
    /// The weight of a tenant with these terms beside the promises on its device. Promised shares count as they are;
    /// the others divide what is not promised, at least one part in a hundred.
    pub fn of(terms: &Terms, promises: &Promises) -> Self {
        match terms.part {
            Part::Share(share) => Self(u64::from(share.parts()) << FINE),
            Part::Weight(weight) => {
                let left = u64::from(promises.free()).max(u64::from(Share::WHOLE.parts()) / 100) << FINE;
                let all = u64::from(promises.weights()).max(u64::from(weight));
                Self((left * u64::from(weight) / all).max(1))
            }
        }
    }

    /// This weight as parts per 10 000 of the device, at least one.
    pub fn parts(self) -> u32 {
        let parts = (self.0 >> FINE).clamp(1, u64::from(Share::WHOLE.parts()));
        parts as u32
    }

    /// Virtual time that passes in `run` nanoseconds of device time.
    fn virtual_of(self, run: Nanos) -> u128 {
        let whole = u128::from(Share::WHOLE.parts()) << (FINE + PLACES);
        u128::from(run) * whole / u128::from(self.0)
    }
}

impl VirtualTime {
    pub fn later(self, run: Nanos, pace: Pace) -> Self {
        Self(self.0.saturating_add(pace.virtual_of(run)))
    }

    pub fn earlier(self, run: Nanos, pace: Pace) -> Self {
        Self(self.0.saturating_sub(pace.virtual_of(run)))
    }

    /// Device time that a tenant of this pace has had beyond `other`: 0 when it has not.
    pub fn beyond(self, other: Self, pace: Pace) -> Nanos {
        let whole = u128::from(Share::WHOLE.parts()) << FINE;
        let virtual_nanos = self.0.saturating_sub(other.0) >> PLACES;
        (virtual_nanos.saturating_mul(u128::from(pace.0)) / whole)
            .try_into()
            .unwrap_or(Nanos::MAX)
    }

    /// The same distance from `floor` in device time, at another pace: what a resize keeps.
    pub fn repaced(self, floor: Self, old: Pace, new: Pace) -> Self {
        if self >= floor {
            floor.later(self.beyond(floor, old), new)
        } else {
            floor.earlier(floor.beyond(self, old), new)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    fn pace(parts: u16) -> Pace {
        Pace::of(
            &Terms::soft(Share::new(parts).expect("a share")),
            &Promises::default(),
        )
    }

    #[test]
    fn a_third_of_the_weight_ages_three_times_as_fast() {
        let zero = VirtualTime::default();
        assert_eq!(zero.later(900, pace(9000)), zero.later(300, pace(3000)));
        assert!(zero.later(900, pace(9000)) < zero.later(301, pace(3000)));
    }

    #[test]
    fn years_of_the_lightest_weight_do_not_overflow() {
        let lightest = Pace(1);
        let century = 100 * 366 * 86_400 * SECOND;
        let late = VirtualTime::default()
            .later(century, lightest)
            .later(century, lightest);
        assert!(late > VirtualTime::default().later(century, lightest));
        assert_eq!(
            late.beyond(VirtualTime::default().later(century, lightest), lightest),
            century
        );
    }

    #[test]
    fn a_resize_keeps_what_is_owed_in_device_time() {
        let floor = VirtualTime::default().later(SECOND, pace(10_000));
        let ahead = floor.later(7_000_000, pace(3000));
        let moved = ahead.repaced(floor, pace(3000), pace(6000));
        assert!(moved.beyond(floor, pace(6000)).abs_diff(7_000_000) <= 1);
        let behind = floor.earlier(7_000_000, pace(3000));
        let moved = behind.repaced(floor, pace(3000), pace(6000));
        assert!(floor.beyond(moved, pace(6000)).abs_diff(7_000_000) <= 1);
    }

    #[test]
    fn weights_divide_what_no_share_claims() {
        let (one, three) = (Terms::weight(1), Terms::weight(3));
        let half = Terms::soft(Share::new(5000).expect("half"));
        let promises = Promises::of(&[one, three, half]);
        assert_eq!(Pace::of(&one, &promises).0 * 3, Pace::of(&three, &promises).0);
        assert_eq!(
            Pace::of(&one, &promises).0 + Pace::of(&three, &promises).0,
            Pace::of(&half, &promises).0
        );
    }
}
