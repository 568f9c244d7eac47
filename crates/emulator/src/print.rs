//! What kernels print with printf, on its way to the program's stdout.
//!
//! As on hardware, output gathers in a buffer on the device and appears when the program next synchronises with it. It
//! is written through C's `stdout`, so that it keeps its place among the program's own output.

use divvy_device::log;
use std::sync::{Mutex, PoisonError};

/// CU_LIMIT_PRINTF_FIFO_SIZE's default; a fuller buffer is shown at once instead of losing its oldest lines.
pub const DEFAULT_FIFO_BYTES: usize = 1 << 20;

/// Bytes printed and not shown yet.
#[derive(Default)]
pub struct PrintBuffer(Mutex<Vec<u8>>);

unsafe extern "C" {
    /// C's standard output, declared in <stdio.h>.
    static stdout: *mut libc::FILE;
}

impl PrintBuffer {
    /// Appends what a kernel printed.
    pub fn append(&self, bytes: &[u8]) {
        let mut buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.extend_from_slice(bytes);
        if buffer.len() >= DEFAULT_FIFO_BYTES {
            write(&buffer);
            buffer.clear();
        }
    }

    /// Shows everything printed so far.
    pub fn show(&self) {
        let mut buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !buffer.is_empty() {
            write(&buffer);
            buffer.clear();
        }
    }
}

fn write(bytes: &[u8]) {
    // SAFETY: `stdout` is C's own stream, valid for the life of the process; fwrite locks it and reads `bytes`.
    let written = unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), stdout) };
    if written != bytes.len() {
        log::once("stdout", "a kernel's output could not be written to stdout");
    }
}
