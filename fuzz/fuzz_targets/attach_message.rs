//! Any bytes as a message from an unknown process on the attach socket.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::ledger::message(data);
});
