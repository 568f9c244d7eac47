//! The engine's page on stable Rust with the input of `fuzz/`: its corpus, and strokes drawn at random.

use divvy_device::fuzzing::engine_page;
use proptest::prelude::*;
use std::path::Path;

#[test]
fn the_corpus_is_survived() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/engine_page");
    let files = std::fs::read_dir(folder).expect("the corpus");
    let inputs: Vec<_> = files
        .flatten()
        .filter_map(|file| std::fs::read(file.path()).ok())
        .collect();
    assert!(inputs.len() >= 3, "seeds");
    for input in inputs {
        assert!(engine_page(&input) > 0, "an input without a stroke shows nothing");
    }
}

/// A word that breaks code which trusts words.
fn extreme() -> impl Strategy<Value = u64> {
    let edges = [
        0,
        1,
        2,
        7,
        8,
        255,
        256,
        u64::MAX,
        u64::MAX / 2,
        1 << 63,
        1 << 32,
        50_000,
        10_000,
    ];
    prop_oneof![prop::sample::select(edges.to_vec()), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn strokes_are_survived(strokes in prop::collection::vec((any::<u8>(), any::<u16>(), extreme()), 1..16)) {
        let mut input = Vec::new();
        for (region, word, value) in &strokes {
            input.extend([*region, 0]);
            input.extend(word.to_le_bytes());
            input.extend(value.to_le_bytes());
        }
        prop_assert_eq!(engine_page(&input), strokes.len());
    }
}
