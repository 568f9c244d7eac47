//! Any bytes in the memory that two sides of a channel share.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::ring::memory(data);
});
