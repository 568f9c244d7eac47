//! The fuzz target's corpus on stable, each input as it is and mutated.

#[path = "../../../fuzz/src/claim.rs"]
mod claim;
#[path = "../../../fuzz/src/pods.rs"]
mod pods;

const WORDS: [&str; 10] = [
    "\"class\"",
    "\"onOom\"",
    "\"wait=1h\"",
    "\"wait=\"",
    "\"1e9x\"",
    "-1",
    "{}",
    "null",
    "\"\\u001b[31m\"",
    "99999999999999999999",
];

/// The inputs of a fuzz target, by their names.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let read = |path| std::fs::read(path).expect("an input");
    paths.iter().map(read).collect()
}

#[test]
fn parameters() {
    let inputs = corpus("claim_parameters");
    let read: Vec<bool> = inputs.iter().map(|input| claim::parameters(input)).collect();
    assert_eq!(read, [true, false, false, true], "all, other, unknown, weight");
    let mut dice = 29_u64;
    let mut below = |end: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        usize::try_from(dice % end.max(1) as u64).unwrap_or(0)
    };
    for input in &inputs {
        for _ in 0..2000 {
            let text = String::from_utf8_lossy(input).into_owned();
            // A value or a name in the place of another.
            let parts: Vec<&str> = text.split_inclusive([':', ',', '{', '}']).collect();
            let mut parts: Vec<String> = parts.into_iter().map(str::to_owned).collect();
            for _ in 0..=below(2) {
                let at = below(parts.len());
                let end: String = parts[at]
                    .chars()
                    .last()
                    .filter(|c| ":,{}".contains(*c))
                    .into_iter()
                    .collect();
                parts[at] = format!("{}{end}", WORDS[below(WORDS.len())]);
            }
            claim::parameters(parts.concat().as_bytes());
        }
    }
}

#[test]
fn pods_and_manifests() {
    let inputs = corpus("pods");
    let read: Vec<bool> = inputs.iter().map(|input| pods::any(input)).collect();
    assert_eq!(read, [false, true], "a manifest, a review");
    let mut dice = 31_usize;
    for input in &inputs {
        for _ in 0..150 {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let mut changed = input.clone();
            let at = (dice >> 20) % changed.len();
            changed[at] = b"{}[]:,#-\n\"0x "[(dice >> 40) % 13];
            pods::any(&changed);
            changed.truncate(at);
            pods::any(&changed);
        }
    }
}
