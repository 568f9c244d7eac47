//! The data area's extents against a map of its granules.

use divvy_ring::data::{Extent, Extents, GRANULARITY};
use proptest::prelude::*;

const GRANULES: usize = 256;
const MOST: usize = 40;

#[derive(Clone, Debug)]
enum Step {
    /// So many bytes, at a multiple of 2 to this.
    Allocate(u64, u32),
    /// The extent in use of this number, modulo how many there are.
    Release(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![0_u64..2000, 0_u64..40_000, Just(u64::MAX), Just(GRANULARITY)];
    let step = prop_oneof![
        3 => (bytes, 0_u32..18).prop_map(|(bytes, align)| Step::Allocate(bytes, align)),
        2 => any::<usize>().prop_map(Step::Release),
    ];
    prop::collection::vec(step, 1..200)
}

/// Whether `granules` free ones follow each other from a multiple of `align` on.
fn has_room(map: &[bool; GRANULES], granules: usize, align: usize) -> bool {
    let starts = (0..GRANULES).step_by(align.max(1));
    starts
        .filter(|start| start + granules <= GRANULES)
        .any(|start| map[start..start + granules].iter().all(|used| !used))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_granule_belongs_to_one_extent_and_room_is_found(steps in steps()) {
        let mut extents = Extents::new(GRANULES as u64 * GRANULARITY + 100, MOST);
        let (mut map, mut used) = ([false; GRANULES], Vec::<Extent>::new());
        let range = |extent: Extent| {
            let first = (extent.offset / GRANULARITY) as usize;
            first..first + (extent.bytes / GRANULARITY) as usize
        };
        for step in steps {
            match step {
                Step::Allocate(bytes, align) => {
                    let align = 1_u64 << align;
                    let granules = usize::try_from(bytes.div_ceil(GRANULARITY)).expect("64 bits");
                    let fits = has_room(&map, granules, (align / GRANULARITY) as usize);
                    let expected = bytes > 0 && used.len() < MOST && fits;
                    let extent = extents.allocate(bytes, align);
                    prop_assert_eq!(extent.is_some(), expected, "{} at {}", bytes, align);
                    let Some(extent) = extent else { continue };
                    prop_assert!(extent.bytes >= bytes && extent.offset.is_multiple_of(align));
                    prop_assert!(extent.is_in(GRANULES as u64 * GRANULARITY));
                    for granule in range(extent) {
                        prop_assert!(!std::mem::replace(&mut map[granule], true), "given twice");
                    }
                    used.push(extent);
                }
                Step::Release(number) => {
                    let Some(number) = number.checked_rem(used.len()) else {
                        prop_assert_eq!(extents.release(0), None);
                        continue;
                    };
                    let extent = used.swap_remove(number);
                    let last = extent.offset + extent.bytes - 1;
                    prop_assert_eq!(extents.find(last), Some(extent));
                    prop_assert_eq!(extents.release(extent.offset), Some(extent));
                    prop_assert_eq!(extents.find(last), None);
                    prop_assert_eq!(extents.release(extent.offset), None);
                    map[range(extent)].fill(false);
                }
            }
            let expected: u64 = used.iter().map(|extent| extent.bytes).sum();
            prop_assert_eq!(extents.used_bytes(), expected);
        }
        for extent in used {
            prop_assert_eq!(extents.release(extent.offset), Some(extent));
        }
        // All of it is one extent again.
        let whole = extents.allocate(GRANULES as u64 * GRANULARITY, 1);
        prop_assert!(whole.is_some());
    }

    #[test]
    fn an_extent_of_any_numbers_is_judged_without_overflow(offset: u64, bytes: u64, area: u64) {
        let inside = u128::from(offset) + u128::from(bytes) <= u128::from(area);
        prop_assert_eq!(Extent { offset, bytes }.is_in(area), inside);
    }
}

#[test]
fn no_alignment_but_powers_of_two() {
    let mut extents = Extents::new(1 << 20, MOST);
    assert_eq!(extents.allocate(1, 0), None);
    assert_eq!(extents.allocate(1, 3), None);
    assert!(
        extents
            .allocate(1, 1 << 63)
            .is_some_and(|extent| extent.offset == 0)
    );
    assert_eq!(extents.allocate(1, 1 << 63), None);
}
