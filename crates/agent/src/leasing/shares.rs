//! Each slice's part while all slices of a device want it.

use divvy_arbiter::{Cap, Part, Terms};

/// A whole device.
const WHOLE: u64 = 10_000;

/// For each of these tenants of one device, in order, its part of the device in parts of 10,000 while all of them have
/// work without end. Together they are at most a whole.
pub(super) fn effective(all: &[Terms]) -> Vec<u32> {
    let share = |terms: &Terms| terms.share().map_or(0, |share| u64::from(share.parts()));
    let weight = |terms: &Terms| match terms.part {
        Part::Share(_) => 0,
        Part::Weight(weight) => u64::from(weight),
    };
    let promised: u64 = all.iter().map(share).sum();
    let weights: u64 = all.iter().map(weight).sum();
    let left = WHOLE.saturating_sub(promised);
    let soft: u64 = all.iter().filter(|terms| terms.cap == Cap::Soft).map(share).sum();
    let of = |terms: &Terms| {
        let mine = share(terms);
        match terms.part {
            Part::Weight(weight) => left * u64::from(weight) / weights.max(1),
            // The shares add up to more than the device: they are weights.
            Part::Share(_) if promised > WHOLE => mine * WHOLE / promised,
            Part::Share(_) if terms.cap == Cap::Hard || weights > 0 => mine,
            // No other slice wants the part without a promise.
            Part::Share(_) => mine + left * mine / soft.max(1),
        }
    };
    all.iter().map(|terms| of(terms) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_arbiter::Share;

    fn share(percent: u16) -> Share {
        Share::new(percent * 100).expect("a share")
    }

    #[test]
    fn shares_are_kept_weights_divide_the_rest_and_what_is_left_goes_to_the_soft() {
        for (all, parts) in [
            (vec![Terms::weight(100)], vec![10_000]),
            (
                vec![Terms::soft(share(30)), Terms::soft(share(70))],
                vec![3000, 7000],
            ),
            (
                vec![Terms::soft(share(20)), Terms::soft(share(30))],
                vec![4000, 6000],
            ),
            (
                vec![Terms::hard(share(30)), Terms::soft(share(30))],
                vec![3000, 7000],
            ),
            (
                vec![Terms::hard(share(30)), Terms::hard(share(30))],
                vec![3000, 3000],
            ),
            (
                vec![Terms::soft(share(40)), Terms::weight(100), Terms::weight(200)],
                vec![4000, 2000, 4000],
            ),
            (
                vec![Terms::soft(share(80)), Terms::soft(share(80))],
                vec![5000, 5000],
            ),
            (vec![Terms::hard(Share::WHOLE), Terms::weight(1)], vec![10_000, 0]),
        ] {
            assert_eq!(effective(&all), parts, "{all:?}");
        }
        assert!(effective(&[]).is_empty());
    }
}
