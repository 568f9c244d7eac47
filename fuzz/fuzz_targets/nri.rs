//! Any bytes as a container runtime's messages to its plugin.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::nri::runtime(data);
});
