//! `divvy remote`: devices of other hosts, over TCP with certificates on both sides.

mod accounts;
mod hand_over;
mod host;
mod join;
mod program;
mod serve;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Subcommand;
use divvy_model::{Bytes, Code, DeviceRecord, Fault};

use crate::context::Context;
use crate::output;
use crate::verbs::devices;

pub use program::{Asked, run as run_program};

/// Flags of `divvy remote`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy remote serve --listen 0.0.0.0:4815 --memory 16GiB     (on the GPU's host)
  divvy remote invite laptop --memory 8GiB --out laptop.pem   (on the GPU's host)
  divvy remote join gpu7:4815 laptop.pem                      (on the other host)
  divvy remote list gpu7:4815
  divvy run --device tcp://gpu7:4815/0 --memory 4GiB -- python train.py")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve this host's devices to invited hosts, until it is ended
    Serve(serve::Args),
    /// Invite a host: prints its certificate and private key, for `divvy remote join`
    Invite(serve::Invite),
    /// Accept a host's certificate no longer
    Forget(serve::Forget),
    /// Store an invitation of a server
    Join(join::Args),
    /// List the devices of a server, or the servers that this host has joined
    List(List),
    /// Hand the workers of the slice around this process to `divvy remote serve`
    #[command(hide = true)]
    HandOver,
    /// Run `divvy` with these words, until the server with this number ends
    #[command(hide = true)]
    Within {
        server: u32,
        #[arg(last = true)]
        words: Vec<OsString>,
    },
}

#[derive(Debug, clap::Args)]
struct List {
    /// The server, as HOST:PORT
    #[arg(value_name = "HOST:PORT")]
    server: Option<String>,
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Serve(args) => serve::run(args, context),
        Verb::Invite(args) => serve::invite(args),
        Verb::Forget(args) => serve::forget(args),
        Verb::Join(args) => join::run(args),
        Verb::List(args) => list(args, context),
        Verb::HandOver => hand_over::run(),
        Verb::Within { server, words } => host::within(*server, words),
    }
}

fn list(args: &List, context: &Context) -> Result<u8, Fault> {
    let Some(server) = &args.server else {
        output::print(&join::joined()?.join("\n"))?;
        return Ok(0);
    };
    let told = divvy_tunnel::near::devices(server, &join::identity(server)?)?;
    let devices: Vec<DeviceRecord> = serde_json::from_value(told).map_err(|error| {
        Fault::new(
            Code::RemoteVersion,
            format!("{server} describes its devices in another way"),
        )
        .because(&error)
        .hint("install the same version of Divvy on both hosts")
    })?;
    output::list(
        context.format,
        "DeviceList",
        devices,
        |device| &device.uuid,
        devices::table,
    )?;
    Ok(0)
}

/// The folder of what `name` keeps, as the XDG base directories say.
fn home(variable: &str, below: &str, name: &str) -> Result<PathBuf, Fault> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = match set(variable) {
        Some(base) => PathBuf::from(base),
        None => set("HOME")
            .map(|home| PathBuf::from(home).join(below))
            .ok_or_else(|| {
                Fault::new(
                    Code::RemoteIdentity,
                    "there is no home directory for certificates",
                )
                .hint(format!("set HOME or {variable}"))
            })?,
    };
    Ok(base.join("divvy").join(name))
}

/// The less of what a client asks for and what it may have.
fn at_most(asked: Option<Bytes>, most: Option<Bytes>) -> Option<Bytes> {
    match (asked, most) {
        (Some(asked), Some(most)) => Some(asked.min(most)),
        (asked, most) => asked.or(most),
    }
}
