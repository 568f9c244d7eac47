//! `divvy emulate`: tools to develop CUDA programs with, on an emulated device and without a GPU.

mod check;
mod counted;
mod flame;
mod profile;
mod report;
mod trace;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;

use divvy_agent::launch::emulation;
use divvy_agent::{Watch, exit_code};
use divvy_model::{Code, Fault, Selector};

use crate::context::{Context, enter_command};

/// Flags of `divvy emulate`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy emulate check -- ./saxpy
  divvy emulate check --leaks -- python program.py
  divvy emulate profile --flame flame.svg -- ./saxpy
  divvy emulate trace --json trace.json -- ./saxpy")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    verb: Verb,
}

/// The verbs.
#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Run a program on an emulated device, and look for races and wrong memory accesses in its kernels
    Check(check::Args),
    /// Run a program on an emulated device, and count what each line of its kernels does
    Profile(profile::Args),
    /// Run a program on an emulated device, and show its CUDA calls and kernels as they happen
    Trace(trace::Args),
}

/// Does it; the exit status.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Check(args) => check::run(args, context),
        Verb::Profile(args) => profile::run(args, context),
        Verb::Trace(args) => trace::run(args, context),
    }
}

/// A program on emulated devices that are made for it.
struct Emulated<'a> {
    /// As in `emulated:h100`; None for what the settings say.
    device: Option<&'a Selector>,
    command: &'a [OsString],
    /// Variables beside those of the devices.
    variables: &'a [(&'a str, OsString)],
    /// Its standard output goes to standard error, because ours has a document.
    aside: bool,
}

impl Emulated<'_> {
    /// Runs it; the exit status as a shell has it. `folder` is for the devices' pages.
    fn run(&self, folder: &Path, context: &Context) -> Result<u8, Fault> {
        self.run_beside(folder, context, || {})
    }

    /// The same. `beside` starts what is to go on beside it, on a thread that takes no signals.
    fn run_beside(&self, folder: &Path, context: &Context, beside: impl FnOnce()) -> Result<u8, Fault> {
        let specification = match self.device {
            Some(Selector::Emulated(product)) => product.clone(),
            Some(other) => {
                return Err(
                    Fault::new(Code::Usage, format!("`{other}` is no emulated device"))
                        .hint("write --device emulated:h100: kernels are looked at on emulated devices only"),
                );
            }
            None => context.config.text("emulated").unwrap_or("h100").to_owned(),
        };
        let variables = emulation(&context.run_dir()?, &specification, folder)?;
        // The program inherits the mask of signals.
        let watch = Watch::begin()?;
        let mut command = enter_command();
        command.args(self.command);
        for slices in ["DIVVY_SLICE", "DIVVY_DRIVER", "DIVVY_NVML", "DIVVY_REMOTE"] {
            command.env_remove(slices);
        }
        // A UUID names a device of this host or of a slice. Numbers count the emulated devices.
        if std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|shown| shown.contains('-')) {
            command.env_remove("CUDA_VISIBLE_DEVICES");
        }
        command
            .envs(variables)
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        let cannot = |error: std::io::Error| {
            Fault::new(Code::ProgramCannotRun, "the program cannot be started").because(&error)
        };
        if self.aside {
            let errors = std::io::stderr().as_fd().try_clone_to_owned().map_err(cannot)?;
            command.stdout(Stdio::from(errors));
        }
        let mut child = command.spawn().map_err(cannot)?;
        beside();
        let status = watch.wait(&mut child, &mut [])?;
        Ok(exit_code(status))
    }
}
