//! `divvy run --observe`: a tool that looks at the devices, without a slice.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use divvy_model::Fault;

use super::parts::in_front;
use super::program::{cannot_run, check_program, first};
use crate::launch::stage::{DropIns, stage};
use crate::launch::supervise::let_go;
use crate::start::rundir::RunDir;

/// The variables of a tool that must see the devices of this host unchanged: all of each device, and all processes.
/// `emulated` is the specification of the host's emulated devices. Without it no variable is set, because NVIDIA's own
/// library shows NVIDIA's devices.
///
/// Only an NVML is put in front, no CUDA driver: an observer gets no memory.
///
/// # Errors
/// [`divvy_model::Code::DropIn`] and [`divvy_model::Code::RunDir`] when there is nothing to put in front.
pub fn observation(run: &RunDir, emulated: Option<&str>) -> Result<Vec<(String, OsString)>, Fault> {
    let Some(specification) = emulated else {
        return Ok(Vec::new());
    };
    let front = stage(run, &[DropIns::find()?.emulated.nvml_link()])?;
    let inherited = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let behind = |ours: &OsStr, name: &str| in_front(ours, inherited(name), ":");
    Ok(vec![
        (
            "LD_PRELOAD".into(),
            behind(OsStr::new(&front.preload), "LD_PRELOAD"),
        ),
        (
            "LD_LIBRARY_PATH".into(),
            behind(front.folder.as_os_str(), "LD_LIBRARY_PATH"),
        ),
        ("DIVVY_EMULATED".into(), specification.into()),
        ("DIVVY_RUN_DIR".into(), run.path().into()),
    ])
}

/// Becomes the tool. Returns only on failure.
#[must_use]
pub fn observe(run: &RunDir, emulated: Option<&str>, command: &[OsString]) -> Fault {
    match observation(run, emulated) {
        Ok(variables) => become_program(command, &variables),
        Err(fault) => fault,
    }
}

/// Becomes a program with these variables beside those that are set. Returns only on failure.
#[must_use]
pub fn become_program(command: &[OsString], variables: &[(String, OsString)]) -> Fault {
    let become_it = || {
        let program = first(command)?;
        check_program(program)?;
        let_go()?;
        let variables = variables.iter().map(|(name, value)| (name, value));
        let error = Command::new(program).args(&command[1..]).envs(variables).exec();
        Err(cannot_run(program, &error))
    };
    let failed: Result<std::convert::Infallible, Fault> = become_it();
    match failed {
        Err(fault) => fault,
        Ok(never) => match never {},
    }
}
