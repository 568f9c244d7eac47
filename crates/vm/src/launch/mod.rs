//! A small machine that is started here: from a kernel and a folder of files, which it gets as its first file system, or
//! from a disk.
//!
//! - [`archive`]: that file system as the kernel unpacks it; [`tree`] reads a folder into it.
//! - [`named`]: what the caller's names lead to.
//! - [`modules`]: the kernel's modules that it needs, with what each needs.
//! - [`words`]: QEMU's command line.
//!
//! Its first process is `divvy-guest`, which finds what it is to run in [`REQUEST`] and answers on the second serial port.
//! docs/adr/0071 says why it is so.

use std::io::{self, Read};
use std::path::Path;

use rustix::fs::OFlags;

use self::named::open_named;

pub mod archive;
pub mod modules;
pub mod named;
pub mod tree;
pub mod words;

/// Where the first process finds what it is to run: words that end with a zero byte each, `KEY=VALUE`.
///
/// `arg` is a word of the command line, `env` a variable `NAME=VALUE`, `dir` the working folder, `terminal` says whether a
/// person sits at the console, and `disk` whether the files are on the machine's disk.
pub const REQUEST: &str = "divvy/request";
/// The folder with the modules, by their order of loading.
pub const MODULES: &str = "divvy/modules";
/// The folder with those that a disk and its file systems need. They are loaded first.
pub const DISK_MODULES: &str = "divvy/modules-of-disk";
/// Where the folder of files is in the machine's first file system.
pub const ROOT: &str = "root";

/// The bytes of a plain file that has at most so many. What is no plain file is refused and not waited for.
///
/// # Errors
/// The system's reason, or what the file is.
pub fn plain(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let opened = open_named(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is no plain file"));
    }
    let mut bytes = Vec::new();
    opened.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other("it is longer than any such file")),
        false => Ok(bytes),
    }
}
