//! Mutants of valid kernels, run: they may fail in any way but one.
#![no_main]

use divvy_fuzz::{drive, mutate};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| {
    let _ = drive::run(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 4 == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let mutant = mutate::mutate(&data[..size], max_size, u64::from(seed));
    data[..mutant.len()].copy_from_slice(&mutant);
    mutant.len()
});
