//! Any bytes as a fatbin container: read, and every file in it decompressed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| divvy_emulator::fuzzing::fatbin(data));
