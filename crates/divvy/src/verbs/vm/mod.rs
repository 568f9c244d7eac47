//! `divvy vm`: whole GPUs for virtual machines.

mod args;
mod bind;
mod doctor;
mod openstack;
mod prepare;
mod run;
mod status;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};
use divvy_vm::doctor::Verdict;
use divvy_vm::lent;
use divvy_vm::record::Store;

use crate::context::Context;

/// Flags of `divvy vm`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm doctor
  divvy vm bind 0000:65:00.0 --dry-run
  divvy vm bind 0000:65:00.0
  divvy vm args 0000:65:00.0 --vcpus 6 --memory 32GiB
  divvy vm run 0000:65:00.0 --root /srv/debian -- nvidia-smi
  divvy vm status
  divvy vm unbind 0000:65:00.0")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Say what keeps a GPU of this machine from a virtual one, and what fixes it; changes nothing
    Doctor(doctor::Args),
    /// Plan what the start of this machine has to be told, write it with backups, or put it back
    Prepare(prepare::Args),
    /// Give a GPU and its whole IOMMU group to VFIO
    Bind(bind::Args),
    /// Give a group back to its first drivers
    Unbind(bind::Unbind),
    /// Show the groups with GPUs, and who has them
    Status(status::Args),
    /// Print a machine with these GPUs for QEMU, libvirt, Cloud Hypervisor, KubeVirt or VMware
    Args(args::Args),
    /// Start a small machine with these GPUs, its console in this terminal: a disk, or one program in a folder's system
    Run(run::Args),
    /// Write Nova's files and OpenStack's commands for these GPUs, and check files there are
    Openstack(openstack::Args),
    /// Put right what a crash left half done, and bind again what was bound before a restart of the machine
    Restore,
}

impl Args {
    /// Whether the exit status is that of the machine's program.
    pub fn is_run(&self) -> bool {
        matches!(self.verb, Verb::Run(_))
    }
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    match &args.verb {
        Verb::Doctor(args) => doctor::run(args, context),
        Verb::Prepare(args) => prepare::run(args, context),
        Verb::Bind(args) => bind::bind(args, context),
        Verb::Unbind(args) => bind::unbind(args, context),
        Verb::Status(args) => status::run(args, context),
        Verb::Args(args) => args::run(args, context),
        Verb::Run(args) => run::run(args, context),
        Verb::Openstack(args) => openstack::run(args, context),
        Verb::Restore => bind::restore(context),
    }
}

/// What `divvy run --isolation vm` is asked for.
#[derive(Debug)]
pub struct Program<'a> {
    /// The folder with the files of the program's system, or the image of a disk with them.
    pub root: Option<&'a Path>,
    /// The GPU; None for the first that can go to a machine.
    pub gpu: Option<String>,
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// Print the machine's command line, and start nothing.
    pub dry_run: bool,
}

/// Runs a program in a machine with a GPU, or says in one sentence why this host cannot.
///
/// # Errors
/// [`Code::NotEnforceable`] where no GPU of this host can go to a machine; as `divvy vm run` else.
pub fn program(asked: &Program<'_>, context: &Context) -> Result<u8, Fault> {
    let is_root = rustix::process::geteuid().is_root();
    let report = divvy_vm::doctor::examine(&Sysroot::of_process(), asked.gpu.as_deref(), is_root);
    let Some(able) = report.reach.iter().find(|reach| reach.vm) else {
        let mut failed = report
            .checks
            .iter()
            .filter(|examined| examined.verdict == Verdict::Fail);
        let why = failed
            .next()
            .map_or("it has no GPU", |examined| examined.detail.as_str());
        return Err(Fault::new(
            Code::NotEnforceable,
            format!("this host cannot give a device to a virtual machine: {why}"),
        )
        .hint("`divvy vm doctor` says what fixes it; `--isolation enforced` keeps the device from the program without a machine"));
    };
    let Some(root) = asked.root else {
        let gpu = &able.gpu;
        return Err(Fault::new(
            Code::NotEnforceable,
            format!("a machine with {gpu} needs a system of its own for the program"),
        )
        .hint(format!(
            "name the folder of its files with --root; `divvy vm args {gpu}` prints a machine to start by hand"
        )));
    };
    let args = run::Args::of_program(&able.gpu, root, asked.command, asked.dry_run);
    run::run(&args, context)
}

/// The records of this host, once what a killed `divvy vm run` had lent to its machine's user is back.
fn store() -> Result<Store, Fault> {
    store_within(Duration::ZERO)
}

/// The same, which waits for another `divvy vm` at most so long.
fn store_within(most: Duration) -> Result<Store, Fault> {
    let store = Store::open_within(Path::new("/"), most)?;
    lent::give_back_left(&Sysroot::at("/"), &store)?;
    Ok(store)
}

/// An address as people write it.
fn address(text: &str) -> Result<String, Fault> {
    divvy_vm::function::address(text)
}

/// The machine to look at: the one captured below a folder, or this one.
fn root(sysroot: Option<&Path>) -> Result<(Sysroot, PathBuf), Fault> {
    match sysroot {
        None => Ok((Sysroot::at("/"), "/".into())),
        Some(path) if path.is_dir() => Ok((Sysroot::at(path), path.into())),
        Some(path) => Err(
            Fault::new(Code::Usage, format!("there is no folder `{}`", path.display()))
                .hint("name one that holds `sys` and `proc`"),
        ),
    }
}
