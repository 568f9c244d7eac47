//! Any bytes as a CDI file and as a MIG file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::yaml::files(data);
});
