//! Debian's package: an `ar` archive with two tar archives, see deb(5).

use super::tar::{self, Entry, Kind};

/// The package's bytes: its control files with their modes, and what it installs.
#[must_use]
pub fn pack(control: &[(&str, &[u8], u32)], files: &[Entry<'_>]) -> Vec<u8> {
    let control: Vec<Entry<'_>> = control
        .iter()
        .map(|(name, bytes, mode)| Entry {
            path: (*name).to_owned(),
            kind: Kind::File { bytes, mode: *mode },
        })
        .collect();
    let mut package = b"!<arch>\n".to_vec();
    member(&mut package, "debian-binary", b"2.0\n");
    member(&mut package, "control.tar", &tar::pack("./", &control));
    member(&mut package, "data.tar", &tar::pack("./", files));
    package
}

fn member(package: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    let head = format!(
        "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n",
        0,
        0,
        0,
        100_644,
        bytes.len()
    );
    package.extend_from_slice(head.as_bytes());
    package.extend_from_slice(bytes);
    // Each begins at an even byte.
    if bytes.len() % 2 == 1 {
        package.push(b'\n');
    }
}
