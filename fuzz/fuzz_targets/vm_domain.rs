//! Any bytes as the libvirt domain that cards are put into.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::vm::domain(data);
});
