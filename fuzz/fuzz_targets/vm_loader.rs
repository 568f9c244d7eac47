//! Any bytes as the files of a boot loader that a plan changes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::vm::loader(data);
});
