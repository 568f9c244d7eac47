//! Any bytes as the nova.conf files that are checked.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::vm::nova(data);
});
