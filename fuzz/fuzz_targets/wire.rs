//! Any bytes as a program's messages to the server of its device.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::wire::messages(data);
});
