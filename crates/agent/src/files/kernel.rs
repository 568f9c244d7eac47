//! Files of /proc, for reading. The kernel makes their content, and no user can replace one by a link or another file.
#![expect(
    clippy::disallowed_methods,
    reason = "a path below /proc cannot be made to lead elsewhere"
)]

use std::fmt::Display;
use std::fs::{self, File};
use std::io;

/// Opens the file `name` of a process, or of `self`.
///
/// # Errors
/// The system's reason: `NotFound`, or ESRCH, where the process has ended.
pub(crate) fn open(process: impl Display, name: &str) -> io::Result<File> {
    File::open(format!("/proc/{process}/{name}"))
}

/// The text of a process's file.
///
/// # Errors
/// As [`open`]; `InvalidData` for a file that is not text.
pub(crate) fn text(process: impl Display, name: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{process}/{name}"))
}

/// The same as bytes.
///
/// # Errors
/// As [`open`].
pub(crate) fn bytes(process: impl Display, name: &str) -> io::Result<Vec<u8>> {
    fs::read(format!("/proc/{process}/{name}"))
}

/// The numbers in a folder of a process, such as its descriptors in `fd`.
///
/// # Errors
/// As [`open`].
pub(crate) fn numbers(process: impl Display, name: &str) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{process}/{name}"))?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(numbers.collect())
}

/// All present processes, in no order.
///
/// # Errors
/// The system does not list all.
pub(crate) fn processes() -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        found.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok()),
        );
    }
    Ok(found)
}
