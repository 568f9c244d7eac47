//! Log lines in the file that `DIVVY_LOG` names, or on standard error with `stderr`. Silent otherwise.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use divvy_remote::client::Told;

/// The variable, as it was before the program ran.
static TARGET: OnceLock<Option<OsString>> = OnceLock::new();

/// Reads the variable.
pub fn capture() {
    TARGET.get_or_init(|| std::env::var_os("DIVVY_LOG").filter(|target| !target.is_empty()));
}

/// Writes what the split driver tells, the same once.
pub fn tell(told: Told) {
    static TOLD: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let (key, text) = match told {
        Told::Unserved(symbol) => {
            let name = symbol.name();
            (name, format!("{name} is not served under --isolation enforced"))
        }
        Told::Full => (
            "",
            "a thread's CUDA calls answer CUDA_ERROR_OUT_OF_MEMORY: 64 threads of a program make CUDA calls at once at \
             most, under --isolation enforced. A thread that ends makes room"
                .to_owned(),
        ),
        Told::Busy => (
            " ",
            "CUDA calls answer CUDA_ERROR_DEVICE_UNAVAILABLE: as many programs of this slice as may have a worker have one. \
             A program that ends makes room"
                .to_owned(),
        ),
    };
    let is_new = TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    if is_new {
        line(&text);
    }
}

/// Appends one line. The file is opened and closed each time: no descriptor is kept in the program.
fn line(text: &str) {
    let Some(Some(target)) = TARGET.get() else { return };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, thousandths, pid) = (now.as_secs(), now.subsec_millis(), std::process::id());
    let text = format!("{seconds}.{thousandths:03} {pid} remote: {text}\n");
    // If the log cannot be written, there is no other place to report that.
    if target == "stderr" {
        let _written = std::io::stderr().write_all(text.as_bytes());
        return;
    }
    let file = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(target);
    if let Ok(mut file) = file {
        // One write, so that lines of several processes do not mix.
        let _written = file.write_all(text.as_bytes());
    }
}
