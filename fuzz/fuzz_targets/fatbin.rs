//! Any bytes as a fatbin container: read, and the text for every device decompressed, within what a load may cost.
#![no_main]

use divvy_emulator::fuzzing::{FATBIN_MOST, fatbin};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [loaded, _, all] = fatbin(data);
    assert!(loaded == 0 && all <= FATBIN_MOST);
});
