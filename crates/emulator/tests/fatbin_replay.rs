//! The fatbin reader on hostile bytes, on stable Rust: real containers, then those cut, flipped and filled with
//! extremes. `fuzz/` goes on from the same containers.

use divvy_emulator::fuzzing::{FATBIN_MOST, fatbin};
use proptest::prelude::*;
use std::path::Path;

/// `fuzz/corpus/fatbin/bomb-zstd.fatbin`: five texts of 256 MiB of zeros each, for five devices, in 41 KB.
#[test]
fn a_bomb_costs_what_one_load_may() {
    const TEXT: u64 = 256 << 20;
    let bomb = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/fatbin/bomb-zstd.fatbin");
    let bomb = std::fs::read(bomb).expect("the corpus");
    assert!(bomb.len() < 1 << 17);
    assert_eq!(fatbin(&bomb), [0, TEXT, FATBIN_MOST]);
    let peak = std::fs::read_to_string("/proc/self/status").expect("a process");
    let peak = peak.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: u64 = peak
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .expect("a number");
    // Two texts, and the second one's vector while it doubles.
    assert!(peak << 10 < 2 * FATBIN_MOST, "{peak} kB");
}

#[test]
fn the_corpus_is_survived() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/fatbin");
    let mut texts = 0;
    let files = std::fs::read_dir(folder).expect("the corpus").flatten();
    // Those have a test of their own.
    let seeds = files.filter(|file| !file.file_name().to_string_lossy().starts_with("bomb-"));
    for file in seeds {
        let bytes = std::fs::read(file.path()).expect("an input");
        let [loaded, _, all] = fatbin(&bytes);
        assert!(loaded == 0 && all <= FATBIN_MOST);
        texts += u32::from(all > 0);
    }
    assert!(texts >= 4, "seeds");
}

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
