//! The fuzz target's corpus on stable, each input as it is and mutated: what the fuzzer would do, a little of it, always.

#[path = "../../../fuzz/src/wire.rs"]
mod drive;

use std::path::PathBuf;

use divvy_remote::wire::shapes;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus/wire"]
        .iter()
        .collect()
}

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

/// Inputs that make every call once: with small arguments, and with zeros.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let calls = shapes().len() + divvy_remote::wire::by_hand::ALL.len();
    let mut dice = Dice(17);
    (0..4)
        .map(|round| {
            let mut input = Vec::new();
            for call in 0..calls as u16 {
                let arguments: Vec<u8> = (0..24 * round).map(|_| dice.below(16) as u8).collect();
                input.extend_from_slice(&[0, arguments.len() as u8 + 2]);
                input.extend_from_slice(&call.to_le_bytes());
                input.extend_from_slice(&arguments);
            }
            (format!("every-call-{round}"), input)
        })
        .collect()
}

#[test]
fn the_corpus_and_mutations_of_it_touch_nothing_that_was_not_given() {
    if std::env::var_os("DIVVY_WRITE_CORPUS").is_some() {
        std::fs::create_dir_all(folder()).expect("a folder");
        for (name, input) in seeds() {
            std::fs::write(folder().join(name), input).expect("written");
        }
    }
    let entries = std::fs::read_dir(folder()).expect("DIVVY_WRITE_CORPUS=1 writes it");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() >= seeds().len());
    let (mut dice, mut made, mut refused, mut calls) = (Dice(31), 0, 0, 0);
    for path in paths {
        let input = std::fs::read(&path).expect("an input");
        let done = drive::messages(&input);
        made += done.made;
        calls += done.calls;
        for _ in 0..60 {
            let mut mutant = input.clone();
            for _ in 0..=dice.below(200) {
                let at = dice.below(mutant.len());
                match dice.below(4) {
                    0 => mutant[at] ^= 1 << dice.below(8),
                    1 => mutant[at] = dice.below(256) as u8,
                    2 => mutant[at] = [0, 1, 0x7f, 0xff][dice.below(4)],
                    _ => mutant.insert(at, [0, 2, 3, 0xff][dice.below(4)]),
                }
            }
            let done = drive::messages(&mutant);
            made += done.made;
            refused += done.refused;
            calls += done.calls;
        }
    }
    let told = format!("{made} made, {refused} refused, {calls} calls");
    println!("{told}");
    assert!(made > 20_000 && refused > 1000 && calls > 10_000, "{told}");
}
