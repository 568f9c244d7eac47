//! Log lines about failures, in the file that `DIVVY_LOG` names, or on standard error with `stderr`. Silent otherwise.

use core::fmt;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::environment;

/// Appends one line. The file is opened and closed each time: no descriptor is kept in the program.
#[cold]
pub(crate) fn line(message: fmt::Arguments<'_>) {
    let Some(path) = environment::log() else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = format!(
        "{}.{:03} {} limiter: {message}\n",
        now.as_secs(),
        now.subsec_millis(),
        std::process::id()
    );
    // If the log cannot be written, there is no other place to report that.
    if path.as_os_str() == "stderr" {
        let _written = std::io::stderr().write_all(text.as_bytes());
        return;
    }
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path);
    if let Ok(mut file) = file {
        // One write, so that lines of several processes do not mix.
        let _written = file.write_all(text.as_bytes());
    }
}
