//! Any bytes as a stream of frames, and as what client and server of another host say to each other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    divvy_fuzz::frames::read(data);
});
