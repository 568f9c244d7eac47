//! Two sides of a channel in turns, and a third that writes over their memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::ring_steps::steps(data);
});
