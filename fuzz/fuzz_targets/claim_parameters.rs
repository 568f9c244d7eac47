//! Any bytes as a claim's opaque parameters.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::claim::parameters(data);
});
