//! Any bytes as a program's queries to the process that answers for its slice.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::nvml::queries(data);
});
