//! The log a user asks for with `DIVVY_LOG`: a path, or `stderr`. Silent otherwise.
//!
//! Each line opens, writes and closes the file: this library lives in another program, whose descriptors are its
//! own, and it logs seldom.

use std::collections::HashSet;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Writes one line.
pub fn line(message: impl fmt::Display) {
    let named = std::env::var_os("DIVVY_LOG").filter(|target| !target.is_empty());
    // A set-id program appends to no file that its caller names.
    let Some(target) = named.filter(|_| !is_secure()) else {
        return;
    };
    let line = format!("divvy emulated-cuda[{}]: {message}\n", std::process::id());
    // A log that cannot be written must not stop the program.
    if target == "stderr" {
        let _ = std::io::stderr().write_all(line.as_bytes());
    } else if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(target) {
        let _ = file.write_all(line.as_bytes());
    }
}

/// Whether the kernel started this program with more rights than its caller has.
pub fn is_secure() -> bool {
    // SAFETY: it reads the process's auxiliary vector, which the kernel wrote and no code changes.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Writes one line the first time `key` is seen in this process.
pub fn once(key: &'static str, message: impl fmt::Display) {
    static SEEN: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let first = SEEN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default()
        .insert(key);
    if first {
        line(message);
    }
}
