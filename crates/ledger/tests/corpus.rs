//! The fuzz targets' corpus on stable Rust, each input unchanged and mutated: a short fuzzing run in every test run.

#[path = "../../../fuzz/src/ledger.rs"]
mod drive;
mod support;

use std::path::PathBuf;

use support::Dice;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target]
        .iter()
        .collect();
    let entries = std::fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths
        .iter()
        .map(|path| std::fs::read(path).expect("an input"))
        .collect();
    assert!(inputs.len() > 5);
    inputs
}

fn mutate(input: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut mutant = input.to_vec();
    for _ in 0..=dice.below(4) {
        let length = mutant.len() as u64;
        let at = dice.below(length + 1) as usize;
        match dice.below(4) {
            0 if length > 0 => {
                let at = dice.below(length) as usize;
                mutant[at] ^= 1 << dice.below(8);
            }
            1 => mutant.insert(at, dice.below(256) as u8),
            2 => mutant.truncate(at.max(8)),
            _ => mutant.extend_from_within(..at),
        }
    }
    mutant
}

#[test]
fn ledger_page() {
    let mut dice = Dice(17);
    for input in corpus("ledger_page") {
        drive::page(&input);
        for _ in 0..30 {
            drive::page(&mutate(&input, &mut dice));
        }
    }
}

#[test]
fn attach_message() {
    let mut dice = Dice(19);
    let mut replies = 0;
    for input in corpus("attach_message") {
        drive::message(&input);
        for _ in 0..300 {
            replies += usize::from(drive::message(&mutate(&input, &mut dice)) > 0);
        }
    }
    assert!(replies > 100, "mutants near enough to be understood: {replies}");
}
