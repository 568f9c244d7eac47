//! Any bytes as an AdmissionReview, as manifests to migrate, as a selector and as a cluster's file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = divvy_fuzz::pods::any(data);
});
