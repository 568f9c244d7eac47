//! Any bytes as the configuration that an engine hands to its OCI runtime.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::oci::config(data);
});
