//! A ledger that is overwritten while it is used.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::ledger::page(data);
});
