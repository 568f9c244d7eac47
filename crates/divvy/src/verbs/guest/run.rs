//! `divvy guest run`: a slice for a machine. It becomes `divvy run`, with the relay as the slice's program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use divvy_model::{Code, Fault, Isolation};

use super::relay::Memory;
use crate::context::Context;
use crate::flags::word;

/// Flags of `divvy guest run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The machine's name, which is the slice's too
    name: String,
    /// Memory of the slice, as `divvy run` takes it
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<OsString>,
    /// Its share of the device's time, as 30%
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    compute: Option<OsString>,
    /// Whether the share is a bound too: soft or hard
    #[arg(long, value_name = "CAP")]
    cap: Option<OsString>,
    /// Device, as `divvy run` takes it
    #[arg(long, value_name = "SEL")]
    device: Option<OsString>,
    /// The slice's isolation level. Programs of a machine have no device on any level, and only workers' levels serve them
    #[arg(long, value_name = "LEVEL", value_parser = word::<Isolation>, default_value = "enforced")]
    isolation: Isolation,
    #[command(flatten)]
    shared: Memory,
    /// QEMU and its arguments, to which what the machine needs is added. Without it the arguments are printed
    #[arg(last = true, value_name = "QEMU")]
    command: Vec<OsString>,
}

/// Becomes `divvy run`.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("divvy").arg("run").arg("--name").arg(&args.name);
    let isolation = args.isolation.to_string();
    command.arg("--isolation").arg(isolation);
    for (flag, value) in [
        ("--memory", &args.memory),
        ("--compute", &args.compute),
        ("--cap", &args.cap),
        ("--device", &args.device),
    ] {
        if let Some(value) = value {
            command.arg(flag).arg(value);
        }
    }
    command.arg("--run-dir").arg(context.peek().path());
    // By the running file itself: it may have been replaced since.
    let own = std::env::current_exe()
        .map_err(|error| Fault::new(Code::Internal, "cannot tell where divvy itself lies").because(&error))?;
    command
        .arg("--")
        .arg(own)
        .args(["guest", "relay"])
        .arg(&args.name);
    command.args(args.shared.words());
    if !args.command.is_empty() {
        command.arg("--").args(&args.command);
    }
    Err(Fault::new(Code::Internal, "divvy cannot start itself").because(&command.exec()))
}
