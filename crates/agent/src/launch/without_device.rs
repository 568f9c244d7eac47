//! What the user of a program without a device should know before it runs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use divvy_ledger::Bypass;
use divvy_model::{Isolation, SliceRecord};

use crate::lookout::bypass::program;

/// The name of error 103, which the table of NVIDIA's runtime has: its end and its begin. A program that links that
/// library dynamically has no such table. In this order the name does not stand in `divvy` itself, which may run in a slice.
const OF_STATIC_RUNTIME: [&[u8]; 2] = [b"NotEstablished", b"cudaErrorSoftwareValidity"];
/// The most of a program's file that is searched, in bytes.
const MOST: u64 = 64 << 20;

/// Sentences about a program in this slice.
pub(super) fn remarks(program: &OsStr, slice: &SliceRecord) -> Vec<String> {
    let mut remarks = Vec::new();
    if slice.terms.isolation != Isolation::Enforced {
        return remarks;
    }
    if rustix::process::geteuid().is_root() {
        remarks.push(
            "`enforced` keeps users and containers from the device; this program is the host's root, which it cannot keep out"
                .to_owned(),
        );
    }
    let Some(file) = program::find(program) else {
        return remarks;
    };
    let name = file.display();
    match program::bypass(&file) {
        Some(Bypass::StaticProgram) => remarks.push(format!(
            "`{name}` is linked statically and finds no device here; `--isolation supervised` serves it"
        )),
        Some(Bypass::PrivilegedProgram) => remarks.push(format!(
            "`{name}` runs with another user's rights and finds no device here"
        )),
        _ if has_static_runtime(&file) => remarks.push(format!(
            "`{name}` has NVIDIA's runtime linked in, which takes no other driver than NVIDIA's; `--isolation supervised` serves it"
        )),
        _ => {}
    }
    remarks
}

#[expect(
    clippy::disallowed_methods,
    reason = "the program is the caller's own, who runs it next"
)]
fn has_static_runtime(file: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take(MOST).read_to_end(&mut bytes));
    let [end, begin] = OF_STATIC_RUNTIME;
    // A script names the error in its text, if it does.
    read.is_ok()
        && bytes.starts_with(b"\x7fELF")
        && bytes
            .windows(begin.len() + end.len())
            .any(|window| window.starts_with(begin) && window.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_the_runtime_in_it_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("train");
        let write = |text: &[&[u8]]| std::fs::write(&file, text.concat()).expect("written");
        let [end, begin] = OF_STATIC_RUNTIME;
        write(&[b"\x7fELF....", begin, end, b"\0"]);
        assert!(has_static_runtime(&file));
        write(&[b"\x7fELF....libcudart.so.12\0"]);
        assert!(!has_static_runtime(&file));
        write(&[b"#!/bin/sh\n# ", begin, end]);
        assert!(!has_static_runtime(&file));
    }
}
