//! The fuzzers' corpus on a stable compiler: every kept input, then a few thousand mutations of them, always the same.
//!
//! The inputs and their handling are those of the targets under `fuzz/`.

#[path = "../../../fuzz/src/drive.rs"]
mod drive;
#[path = "../../../fuzz/src/mutate.rs"]
mod mutate;

use std::path::{Path, PathBuf};

/// Mutants of each kind. A fuzzer makes millions; this number guards what it found.
const MUTANTS: u64 = 3000;

/// The kept inputs of `target`, in the order of their names.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no corpus in {}", folder.display());
    paths
        .into_iter()
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

#[test]
fn kept_inputs_parse_or_fail_politely() {
    for (_, bytes) in corpus("ptx_parse").iter().chain(&corpus("ptx_run")) {
        drive::parse(bytes);
        // Cut anywhere, too.
        for part in 1..8 {
            drive::parse(&bytes[..bytes.len() * part / 8]);
        }
    }
}

#[test]
fn mutated_texts_parse_or_fail_politely() {
    let seeds = [corpus("ptx_parse"), corpus("ptx_run")].concat();
    let parsed = (0..MUTANTS)
        .filter(|seed| {
            let (_, text) = &seeds[*seed as usize % seeds.len()];
            drive::parse(&mutate::mutate(text, 1 << 20, *seed)).is_some()
        })
        .count();
    assert!(
        parsed > 100,
        "only {parsed} mutants parsed: the mutations are too rough to test anything"
    );
}

#[test]
fn kept_kernels_end() {
    for (path, bytes) in corpus("ptx_run") {
        let ends = drive::run(&bytes);
        let launched = ends.well + ends.faults + ends.cancelled + ends.refused;
        println!("{}: {launched} launches, {ends:?}", path.display());
    }
}

#[test]
fn mutated_kernels_end() {
    let seeds = corpus("ptx_run");
    let mut total = drive::Ends::default();
    for seed in 0..MUTANTS {
        let (_, text) = &seeds[seed as usize % seeds.len()];
        let ends = drive::run(&mutate::mutate(text, 1 << 20, seed));
        total.well += ends.well;
        total.faults += ends.faults;
        total.cancelled += ends.cancelled;
        total.refused += ends.refused;
    }
    println!("{MUTANTS} mutants: {total:?}");
    assert!(
        total.well > 100 && total.faults > 20,
        "{total:?}: the mutations are too rough to test anything"
    );
}
