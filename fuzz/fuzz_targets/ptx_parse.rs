//! Any bytes at all as PTX text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::drive::parse(data);
});
