//! `divvy container nri`: a plugin of containerd and CRI-O, which gives containers slices by their pods' annotations.

mod connect;
mod fault;
pub mod notes;
mod slices;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use divvy_container::nri::{self, End, is_index};
use divvy_model::Fault;

use self::connect::{Way, launched};
use self::notes::Notes;
use self::slices::Slices;
use crate::context::Context;
use crate::report::{line, remark};

/// Flags of `divvy container nri`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy container nri
  divvy container nri --socket /run/k3s/containerd/nri.sock
  ln -s /usr/bin/divvy /opt/nri/plugins/10-divvy   # the runtime starts it by itself

Pods ask by annotations:
  divvy.dev/memory: 4GiB                        one slice for all the pod's containers
  divvy.dev/compute: 30%
  memory.divvy.dev/container.trainer: 8GiB      a slice of that container's own
  divvy.dev/slice: alice                        the slice of `divvy slice create alice --pods`")]
pub struct Args {
    /// Where the runtime listens for plugins
    #[arg(long, value_name = "PATH", default_value = nri::SOCKET)]
    socket: PathBuf,
    /// The plugin's name; two runtimes on one host need two
    #[arg(long, value_name = "NAME", default_value = "divvy", value_parser = name)]
    name: String,
    /// Its place among the runtime's plugins, two digits: lower ones are asked first
    #[arg(long, value_name = "NN", default_value = "10", value_parser = index)]
    index: String,
}

fn name(text: &str) -> Result<String, String> {
    match nri::is_id(text) {
        true => Ok(text.into()),
        false => Err("a plugin's name is letters, digits, `-`, `_` and `.`".into()),
    }
}

fn index(text: &str) -> Result<String, String> {
    match is_index(text) {
        true => Ok(text.into()),
        false => Err("a plugin's place is two digits, 00 to 99".into()),
    }
}

/// The words of this verb, where a runtime has started us out of its folder of plugins: it gives none.
pub fn words() -> Option<Vec<OsString>> {
    let mut words = std::env::args_os();
    let called = PathBuf::from(words.next()?);
    let (index, _) = called.file_name()?.to_str()?.split_once('-')?;
    let is_plugin =
        is_index(index) && std::env::var_os(nri::SOCKET_VARIABLE).is_some() && words.next().is_none();
    is_plugin.then(|| vec!["divvy".into(), "nri".into()])
}

/// How long it waits before it looks whether a runtime that went away is back.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves the runtime.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let way = launched()?.unwrap_or_else(|| Way::Socket(args.socket.clone()));
    let variable = |name: &str| std::env::var(name).ok().filter(|_| way.is_launched());
    let name = variable(nri::NAME_VARIABLE).unwrap_or_else(|| args.name.clone());
    let index = variable(nri::INDEX_VARIABLE).unwrap_or_else(|| args.index.clone());
    // An unusable setting is better reported now than by the first container.
    drop(context.agent()?);
    let notes = Notes::of(&context.run_dir()?, &format!("{index}-{name}"))?;
    let slices = Slices::new(context, notes);
    std::thread::scope(|scope| {
        let mut socket = way.connect()?;
        loop {
            let ended = nri::serve(scope, socket, &index, &name, &slices);
            if way.is_launched() {
                return ended.map(|_| 0);
            }
            match ended {
                // Refused at once, or not spoken to in its language: nothing comes of asking again.
                Err(fault) if !slices.was_taken_on() => return Err(fault),
                Err(fault) => remark(&line(&fault)),
                Ok(End::Shutdown | End::Closed) => remark("the container runtime is gone; waiting for it"),
            }
            socket = loop {
                std::thread::sleep(PAUSE);
                if let Ok(socket) = way.connect() {
                    break socket;
                }
            };
        }
    })
}
