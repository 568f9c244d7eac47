//! Any bytes as the files of a captured host.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let _ = divvy_fuzz::vm::tree(data, folder.path());
});
