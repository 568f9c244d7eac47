//! What is not implemented: remembered as the thread's last error, and named in the log that `DIVVY_LOG` asks for.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Once;

use divvy_abi::runtime::{cudaErrorNotSupported, v12, v13};

/// Has every call of what is not implemented told here.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        v12::on_unsupported(|symbol| told(symbol.name()));
        v13::on_unsupported(|symbol| told(symbol.name()));
    });
}

fn told(name: &str) {
    crate::error::answer(Err(cudaErrorNotSupported));
    // SAFETY: it reads the process's auxiliary vector, which the kernel wrote and no code changes.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
    // A set-id program appends to no file that its caller names.
    let named = std::env::var_os("DIVVY_LOG").filter(|target| !target.is_empty() && !secure);
    let Some(target) = named else { return };
    let line = format!("divvy[{}]: cudart: {name} is not supported\n", std::process::id());
    // A log that cannot be written is no reason to stop a program.
    let _ = if target == "stderr" {
        std::io::stderr().write_all(line.as_bytes())
    } else {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(target)
            .and_then(|mut file| file.write_all(line.as_bytes()))
    };
}
