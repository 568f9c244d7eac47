//! The Python programs that come with the kit, one for each library that people use CUDA by.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::ended::within;
use crate::finding::{Failure, Finding};
use crate::kit::{Kit, beside};

/// The programs, and the module without which each cannot be tried. No two of them begin alike.
const CLIENTS: [&str; 5] = ["torch", "cupy", "jax", "triton", "numba"];
/// A client is not begun with less time than this.
const LEAST: Duration = Duration::from_secs(10);

/// Tries each client that is installed, within a fair part of the time that is left. A finding of this part says why another one
/// is not tried.
pub(super) fn each_installed(
    kit: &mut Kit,
    part: &str,
    mut run: impl FnMut(&mut Kit, &str, Duration) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (at, client) in CLIENTS.into_iter().enumerate() {
        let check = format!("{part}.{client}");
        let others = u32::try_from(CLIENTS.len() - at).unwrap_or(1);
        // The first have most to do, and what the last do not need is nothing to the first: twice the equal part.
        let limit = (2 * kit.left() / others).min(kit.left());
        if limit < LEAST {
            kit.no_time(check)?;
            continue;
        }
        let mut look = Command::new(python());
        let script = format!("import importlib.util as u, sys; sys.exit(u.find_spec('{client}') is None)");
        match within(look.args(["-c", &script]), limit) {
            Err(error) => {
                kit.found(&Finding::skipped(check, format!("there is no Python: {error}")))?;
            }
            Ok(ended) if !ended.is_well() => {
                kit.found(&Finding::skipped(check, format!("{client} is not installed")))?;
            }
            Ok(_) => run(kit, client, limit)?,
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
