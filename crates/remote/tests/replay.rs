//! The corpora of the fuzz targets on stable, each input as it is and mutated: what the fuzzer would do, a little of it,
//! always.

#[path = "../../../fuzz/src/codec.rs"]
mod codec;
#[path = "../../../fuzz/src/nvml.rs"]
mod nvml;
#[path = "../../../fuzz/src/wire.rs"]
mod wire;

use std::path::PathBuf;

use divvy_remote::fuzzing::{Done, Source, generate};
use divvy_remote::nvml::queries;
use divvy_remote::wire::message::encode;
use divvy_remote::wire::{Writer, by_hand, shapes};

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

/// Runs each input of a corpus as it is, and so many mutations of it. `DIVVY_WRITE_CORPUS` writes the seeds there first.
fn replay(name: &str, seeds: &[(String, Vec<u8>)], mutants: usize, run: fn(&[u8]) -> Done) -> Done {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", name]
        .iter()
        .collect();
    if std::env::var_os("DIVVY_WRITE_CORPUS").is_some() {
        std::fs::create_dir_all(&folder).expect("a folder");
        for (name, input) in seeds {
            std::fs::write(folder.join(name), input).expect("written");
        }
    }
    let entries = std::fs::read_dir(folder).expect("DIVVY_WRITE_CORPUS=1 writes it");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() >= seeds.len());
    let (mut dice, mut all) = (Dice(31), Done::default());
    for path in paths {
        let input = std::fs::read(&path).expect("an input");
        for round in 0..=mutants {
            let mut mutant = input.clone();
            let changes = 1 + dice.below(1 + mutant.len().min(800) / 4);
            for _ in 0..if round == 0 { 0 } else { changes } {
                let at = dice.below(mutant.len());
                let known = [0, 1, 0x7f, 0xff][dice.below(4)];
                match (dice.below(4), mutant.get_mut(at)) {
                    (0, Some(byte)) => *byte ^= 1 << dice.below(8),
                    (1, Some(byte)) => *byte = dice.below(256) as u8,
                    (2, Some(byte)) => *byte = known,
                    _ => mutant.insert(at, [0, 2, 3, 0xff][dice.below(4)]),
                }
            }
            let done = run(&mutant);
            all.made += done.made;
            all.refused += done.refused;
            all.calls += done.calls;
        }
    }
    println!("{name}: {all:?}");
    all
}

/// Inputs that make every call once: with small arguments, and with zeros.
fn calls() -> Vec<(String, Vec<u8>)> {
    let calls = shapes().len() + by_hand::ALL.len();
    let mut dice = Dice(17);
    let mut seed = |round: usize| {
        let mut input = Vec::new();
        for call in 0..calls as u16 {
            let arguments: Vec<u8> = (0..24 * round).map(|_| dice.below(16) as u8).collect();
            input.extend_from_slice(&[0, arguments.len() as u8 + 2]);
            input.extend_from_slice(&call.to_le_bytes());
            input.extend_from_slice(&arguments);
        }
        (format!("every-call-{round}"), input)
    };
    (0..4).map(&mut seed).collect()
}

/// Inputs that make every query, by their kinds of arguments and with small bodies.
fn all_queries() -> Vec<(String, Vec<u8>)> {
    let mut dice = Dice(17);
    let mut seed = |round: usize| {
        let mut input = Vec::new();
        for which in 0..queries::all().len() as u8 {
            let length = [0, 3, 40, 200][round];
            input.extend([which, u8::from(round != 0), length]);
            input.extend((0..length).map(|_| dice.below(256) as u8));
        }
        (format!("every-query-{round}"), input)
    };
    (0..4).map(&mut seed).collect()
}

/// Messages of calls of all kinds, well formed.
fn messages() -> Vec<(String, Vec<u8>)> {
    let mut dice = Dice(19);
    let mut seed = |which: usize| {
        let call = which * shapes().len() / 24;
        let (_, _, arguments) = shapes()[call];
        let source: Vec<u8> = (0..64).map(|_| dice.below(8) as u8).collect();
        let mut input = vec![0; 4096];
        let mut to = Writer::new(&mut input);
        to.plain(call as u16);
        encode(arguments, &generate(arguments, &mut Source(&source)), &mut to);
        let length = to.finish().expect("it is small");
        input.truncate(length);
        (format!("call-{which}"), input)
    };
    (0..24).map(&mut seed).collect()
}

#[test]
fn calls_touch_nothing_that_was_not_given() {
    let done = replay("wire", &calls(), 60, wire::messages);
    assert!(
        done.made > 20_000 && done.refused > 1000 && done.calls > 10_000,
        "{done:?}"
    );
}

#[test]
fn queries_touch_nothing_that_was_not_given() {
    let done = replay("nvml", &all_queries(), 20, nvml::queries);
    assert!(
        done.made > 2000 && done.refused > 500 && done.calls > 1000,
        "{done:?}"
    );
}

#[test]
fn messages_are_read_as_they_are_written() {
    let done = replay("codec", &messages(), 500, codec::messages);
    assert!(done.made > 100 && done.refused > 100, "{done:?}");
}
