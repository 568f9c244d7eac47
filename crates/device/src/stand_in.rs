//! A process that manages emulated devices names them here. It is no client of them, and the environment is not asked.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

static STANDS_FOR: RwLock<Option<(String, PathBuf)>> = RwLock::new(None);

/// Has this process's emulated NVML show the devices of `spec` in `run_directory`, whatever the environment says. It is
/// for a program that manages emulated devices and is no client of them.
pub fn stand_for(spec: &str, run_directory: &Path) {
    let mut settings = STANDS_FOR.write().unwrap_or_else(PoisonError::into_inner);
    *settings = Some((spec.to_owned(), run_directory.to_owned()));
}

/// The specification and the run directory of [`stand_for`], if it was called.
pub fn settings() -> Option<(String, PathBuf)> {
    STANDS_FOR.read().unwrap_or_else(PoisonError::into_inner).clone()
}
