//! The Python programs that come with the kit, one for each library that people use CUDA by.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::finding::{Failure, Finding};
use crate::kit::{Kit, beside};

/// The programs, and the module without which each cannot be tried.
const CLIENTS: [(&str, &str); 5] = [
    ("torch", "torch"),
    ("cupy", "cupy"),
    ("jax", "jax"),
    ("triton", "triton"),
    ("numba", "numba.cuda"),
];

/// Tries each client that is installed. A finding of this part says why another one is not tried.
pub(super) fn each_installed(
    kit: &mut Kit,
    part: &str,
    mut run: impl FnMut(&mut Kit, &str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (client, module) in CLIENTS {
        let check = format!("{part}.{client}");
        if kit.left().as_secs() < 10 {
            kit.found(&Finding::skipped(check, "no time is left for it"))?;
            continue;
        }
        let mut import = Command::new(python());
        let has = import.args(["-c", &format!("import {module}")]).output();
        match has {
            Err(error) => {
                kit.found(&Finding::skipped(check, format!("there is no Python: {error}")))?;
            }
            Ok(output) if !output.status.success() => {
                kit.found(&Finding::skipped(check, format!("{module} is not installed")))?;
            }
            Ok(_) => run(kit, client)?,
        }
    }
    Ok(())
}

/// A client's program. They lie beside those of an archive, unless the developer says where.
pub(super) fn program(client: &str) -> PathBuf {
    let folder = std::env::var_os("KIT_PROGRAMS").map_or_else(|| beside("../python"), Into::into);
    folder.join(format!("{client}_in_a_slice.py"))
}

/// The machine's own, unless the user says which.
pub(super) fn python() -> OsString {
    std::env::var_os("KIT_PYTHON").unwrap_or_else(|| "python3".into())
}
