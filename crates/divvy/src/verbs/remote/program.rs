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
    })
    .map_err(|fault| said_there(fault, server))?;
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

/// What the server says of its devices, in words of this host.
fn said_there(fault: Fault, server: &str) -> Fault {
    match fault.code {
        Code::UnknownDevice => Fault {
            message: fault.message.replace(" here", &format!(" at {server}")),
            ..fault
        }
        .hint(format!(
            "`divvy remote list {server}` lists the devices of that host"
        )),
        _ => fault,
    }
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

#[cfg(test)]
mod tests {
    use divvy_model::SelectorError;

    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_looked_for_there() {
        let fault = said_there(SelectorError::Unknown("3".to_owned()).into(), "gpu7:4815");
        assert_eq!(fault.message, "there is no device `3` at gpu7:4815");
        assert!(
            fault
                .hint
                .unwrap_or_default()
                .contains("divvy remote list gpu7:4815")
        );
        let other = Fault::new(Code::Usage, "not here");
        assert_eq!(said_there(other.clone(), "gpu7:4815"), other);
    }
}
