//! Any bytes as what a traced program wrote.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    divvy_trace::fuzzing::chunk(data);
});
