//! Any bytes as what a stranger says on the attach socket.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::ledger::message(data);
});
