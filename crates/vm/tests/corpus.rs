//! The fuzz targets' corpora on stable, each input as it is and mutated: what the fuzzer would do, a little of it, always.

#[path = "../../../fuzz/src/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/src/vm.rs"]
mod vm;

use std::path::PathBuf;

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

/// Runs a target on its corpus and on mutations of it; how many inputs it took.
fn replay(target: &str, mutants: u64, mut run: impl FnMut(&[u8]) -> bool) -> usize {
    let mut taken = 0;
    for (number, input) in (0..).zip(inputs(target)) {
        taken += usize::from(run(&input));
        for seed in 0..mutants {
            let mutant = mutate::mutate(&input, 1 << 16, number * mutants + seed);
            taken += usize::from(run(&mutant));
        }
    }
    taken
}

#[test]
fn loader() {
    assert!(replay("vm_loader", 500, vm::loader) > 2000);
}

#[test]
fn nova() {
    assert!(replay("vm_nova", 500, vm::nova) > 1000);
}

#[test]
fn domain() {
    assert!(replay("vm_domain", 500, vm::domain) > 300);
}

#[test]
fn tree() {
    let run = |input: &[u8]| {
        let folder = tempfile::tempdir().expect("a folder");
        vm::tree(input, folder.path()) > 0
    };
    assert!(replay("vm_tree", 12, run) > 18);
}
