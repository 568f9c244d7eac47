//! `divvy run --device tcp://HOST:PORT/0`: a program of this host on a device of another one.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use divvy_agent::launch::remote_environment;
use divvy_agent::{RunDir, Watch, exit_code};
use divvy_model::{Code, Fault};
use divvy_tunnel::Wanted;
use divvy_tunnel::near::Session;

use super::join;
use crate::context::{Context, enter_command};
use crate::folder::PrivateFolder;
use crate::report::remark;

/// A device of another host, and what is asked for of it.
pub struct Asked<'a> {
    /// `HOST:PORT/DEVICE`.
    pub place: &'a str,
    /// Its memory, in words.
    pub memory: Option<String>,
    /// Its share of the compute time.
    pub compute: Option<String>,
    /// Whether to wait in the queue there, and how long at most.
    pub wait: Option<Option<Duration>>,
    /// The program.
    pub command: &'a [OsString],
}

/// Runs the program.
pub fn run(asked: &Asked<'_>, context: &Context) -> Result<u8, Fault> {
    let (server, device) = asked.place.split_once('/').unwrap_or((asked.place, ""));
    let identity = join::identity(server)?;
    let wanted = Wanted {
        device: device.to_owned(),
        memory: asked.memory.clone(),
        compute: asked.compute.clone(),
        wait: asked
            .wait
            .map(|limit| limit.map_or(0, |limit| limit.as_secs().max(1))),
        pid: std::process::id(),
    };
    let told = std::cell::Cell::new(false);
    let session = Session::open(server, &identity, &wanted, || {
        if !told.replace(true) {
            remark(&format!("waiting for a slice at {server}"));
        }
    })?;
    let run = context.run_dir()?;
    // Threads and the program inherit the mask of signals.
    let watch = Watch::begin()?;
    let folder = PrivateFolder::new("remote")?;
    let relay = session.relay(folder.path())?;
    let outcome = with_device(&run, relay.socket(), asked.command, &watch);
    if relay.is_cut() {
        remark(&format!("the connection to {server} was cut"));
    }
    outcome
}

fn with_device(run: &RunDir, socket: &Path, command: &[OsString], watch: &Watch) -> Result<u8, Fault> {
    let mut child = enter_command()
        .args(command)
        .envs(remote_environment(run, socket)?)
        .spawn()
        .map_err(|error| {
            Fault::new(Code::ProgramCannotRun, "the program cannot be started").because(&error)
        })?;
    let status = watch.wait(&mut child, &mut [])?;
    Ok(exit_code(status))
}
