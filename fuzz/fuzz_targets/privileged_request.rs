//! Any bytes as an agent's request to the helper that is root.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::privileged::message(data);
});
