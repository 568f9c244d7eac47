//! `divvy emulate`: a program on emulated devices of its own, without a slice and without an agent.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use divvy_model::Fault;

use super::parts::{among_preloads, in_front, joined};
use crate::launch::stage::{DropIns, stage};
use crate::start::rundir::RunDir;

/// The variables of a program that has emulated devices for itself. `run` has the libraries that it loads. `own` is an
/// empty folder for the devices' pages.
///
/// # Errors
/// [`divvy_model::Code::DropIn`] and [`divvy_model::Code::RunDir`] when there is nothing to put in front.
pub fn emulation(run: &RunDir, specification: &str, own: &Path) -> Result<Vec<(String, OsString)>, Fault> {
    let found = DropIns::find()?;
    let emulated = stage(run, &found.emulated.links())?;
    let runtimes = stage(run, &found.runtime_links())?.folder;
    let inherited = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    Ok(vec![
        (
            "LD_PRELOAD".into(),
            among_preloads(&emulated.preload, inherited("LD_PRELOAD")),
        ),
        (
            "LD_LIBRARY_PATH".into(),
            in_front(
                OsStr::new(&joined(&emulated.folder, &runtimes)),
                inherited("LD_LIBRARY_PATH"),
                ":",
            ),
        ),
        ("DIVVY_EMULATED".into(), specification.into()),
        ("DIVVY_RUN_DIR".into(), own.into()),
    ])
}
