//! The fuzz target's corpus on stable, each input as it is and mutated: what the fuzzer would do, a little of it, always.

#[path = "../../../fuzz/src/oci.rs"]
mod drive;
#[path = "../../../fuzz/src/nri.rs"]
mod nri;

use std::path::PathBuf;

/// A small generator of numbers (xorshift64): what fails, fails again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end.max(1) as u64).unwrap_or(0)
    }
}

/// Words that mean something in a configuration.
const WORDS: [&str; 14] = [
    "\"NVIDIA_VISIBLE_DEVICES=all\"",
    "\"AMD_VISIBLE_DEVICES=0-99999999999\"",
    "\"DIVVY_MEMORY=1GiB\"",
    "\"divvy.dev/memory\"",
    "\"divvy.dev/slice\"",
    "\"CAP_SYS_ADMIN\"",
    "\"process\"",
    "\"linux\"",
    "\"Mounts\"",
    "{}",
    "[]",
    "null",
    "-1e999",
    "\"\\ud800\"",
];

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target]
        .iter()
        .collect();
    let entries = std::fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() > 2);
    paths
        .iter()
        .map(|path| std::fs::read(path).expect("an input"))
        .collect()
}

/// What a real containerd said (recorded), and mutations of it.
#[test]
fn nri() {
    let (mut dice, mut answers) = (Dice(29), 0);
    for input in inputs("nri") {
        let whole = nri::runtime(&input);
        assert!(whole > 0, "a recorded conversation has answers");
        answers += whole;
        for _ in 0..300 {
            let mut mutant = input.clone();
            for _ in 0..=dice.below(4) {
                let at = dice.below(mutant.len());
                match dice.below(4) {
                    0 => mutant[at] ^= 1 << dice.below(8),
                    1 => mutant.truncate(at.max(2)),
                    2 => mutant[at] = [0, 0x7f, 0x80, 0xff][dice.below(4)],
                    _ => {
                        let until = at + dice.below(mutant.len() - at).min(16);
                        mutant.drain(at..until);
                    }
                }
            }
            answers += nri::runtime(&mutant);
        }
    }
    assert!(answers > 300, "{answers} answers");
}

#[test]
fn oci_config() {
    let (mut dice, mut read) = (Dice(23), 0);
    for input in inputs("oci_config") {
        read += u32::from(drive::config(&input));
        for _ in 0..2000 {
            let mut mutant = input.clone();
            for _ in 0..=dice.below(3) {
                let at = dice.below(mutant.len());
                match dice.below(5) {
                    0 => mutant[at] ^= 1 << dice.below(8),
                    1 => mutant.truncate(at.max(2)),
                    2 => {
                        // A value's place: another string's.
                        let quotes: Vec<usize> = (0..mutant.len()).filter(|at| mutant[*at] == b'"').collect();
                        let first = dice.below(quotes.len() / 2) * 2;
                        if let Some([begin, end]) = quotes.get(first..first + 2) {
                            let word = WORDS[dice.below(WORDS.len())];
                            mutant.splice(begin..=end, word.bytes());
                        }
                    }
                    3 => {
                        let word = WORDS[dice.below(WORDS.len())];
                        mutant.splice(at..at, word.bytes());
                    }
                    _ => {
                        let until = at + dice.below(mutant.len() - at);
                        mutant.drain(at..until);
                    }
                }
                if mutant.is_empty() {
                    mutant.push(b'{');
                }
            }
            read += u32::from(drive::config(&mutant));
        }
    }
    assert!(read > 1000, "{read} of them were configurations");
}
