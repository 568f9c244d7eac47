//! The fatbin reader on hostile bytes, on stable Rust: real containers, then those cut, flipped and filled with
//! extremes. `fuzz/` goes on from the same containers.

use divvy_emulator::fuzzing::fatbin;
use proptest::prelude::*;

const CONTAINERS: &[&[u8]] = &[
    include_bytes!("fixtures/scale-plain.fatbin"),
    include_bytes!("fixtures/scale-lz4.fatbin"),
    include_bytes!("fixtures/scale-zstd.fatbin"),
    include_bytes!("fixtures/scale-machine-code.fatbin"),
    include_bytes!("fixtures/scale-many.fatbin"),
];

#[test]
fn every_prefix_is_survived() {
    for container in CONTAINERS {
        for length in 0..container.len() {
            fatbin(&container[..length]);
        }
    }
}

#[test]
fn every_header_field_at_its_extremes_is_survived() {
    for container in CONTAINERS {
        for at in 0..container.len().min(160) {
            for extreme in [0, 1, 0x7f, 0x80, 0xff] {
                for width in [1, 2, 4, 8] {
                    let mut bytes = container.to_vec();
                    let end = (at + width).min(bytes.len());
                    bytes[at..end].fill(extreme);
                    fatbin(&bytes);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn flipped_bytes_are_survived(
        which in 0..CONTAINERS.len(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let mut bytes = CONTAINERS[which].to_vec();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        fatbin(&bytes);
    }

    #[test]
    fn any_bytes_behind_a_good_header_are_survived(tail in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = CONTAINERS[1][..16].to_vec();
        bytes[8..16].copy_from_slice(&(tail.len() as u64).to_le_bytes());
        bytes.extend(tail);
        fatbin(&bytes);
    }
}
