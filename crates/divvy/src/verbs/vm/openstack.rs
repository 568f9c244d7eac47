//! `divvy vm openstack`: a host's GPUs for Nova.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Subcommand;
use divvy_model::{Bytes, Code, Fault};
use divvy_vm::openstack::check::{Mistake, check};
use divvy_vm::openstack::commands::{Server, commands, flavors};
use divvy_vm::openstack::conf::{self, Form};
use divvy_vm::openstack::{products, vgpu};
use divvy_vm::output::qemu::line;

use super::{address, root};
use crate::context::Context;
use crate::flags::parse;
use crate::output;
use crate::table::Table;

/// Flags of `divvy vm openstack`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy vm openstack conf --for compute
  divvy vm openstack conf --for api
  divvy vm openstack commands --dry-run
  divvy vm openstack check --api api/nova.conf --compute compute/nova.conf")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// For the machine captured below this folder in the place of this one
    #[arg(long, value_name = "DIR", global = true)]
    sysroot: Option<PathBuf>,
    /// These GPUs alone, by PCI address
    #[arg(long = "gpu", value_name = "ADDRESS", value_parser = address, global = true)]
    gpus: Vec<String>,
    /// In the words of OpenStack before Zed
    #[arg(long, global = true)]
    old: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the lines of nova.conf
    Conf(Conf),
    /// Make traits, flavors and a first server by OpenStack's own commands
    Commands(Commands),
    /// Name the mistakes in nova.conf files there are
    Check(Check),
}

#[derive(Debug, clap::Args)]
struct Conf {
    /// For which host
    #[arg(long = "for", value_name = "HOST", value_enum)]
    host: Host,
    /// For virtual GPUs of this type, by id or name, in the place of whole ones
    #[arg(long = "vgpu", value_name = "TYPE")]
    vgpus: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Host {
    /// A compute host
    Compute,
    /// The hosts of nova-api and nova-scheduler
    Api,
}

#[derive(Debug, clap::Args)]
struct Commands {
    /// Print the commands, and run none
    #[arg(long)]
    dry_run: bool,
    /// Processors for each GPU
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=512))]
    vcpus: u32,
    /// Memory for each GPU
    #[arg(long, value_name = "SIZE", value_parser = parse::<Bytes>, default_value = "100GiB")]
    memory: Bytes,
    /// The server's name
    #[arg(long, value_name = "NAME", default_value = "trainer")]
    server: String,
    /// Its image
    #[arg(long, value_name = "NAME", default_value = "ubuntu-24.04")]
    image: String,
    /// Its network
    #[arg(long, value_name = "NAME", default_value = "private")]
    network: String,
    /// The network of floating addresses
    #[arg(long, value_name = "NAME", default_value = "public")]
    external: String,
}

#[derive(Debug, clap::Args)]
struct Check {
    /// nova.conf of the API and the scheduler
    #[arg(long, value_name = "FILE")]
    api: PathBuf,
    /// nova.conf of a compute host
    #[arg(long, value_name = "FILE")]
    compute: PathBuf,
}

/// Prints, runs or checks.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let (tree, _) = root(args.sysroot.as_deref())?;
    let form = if args.old { Form::Old } else { Form::Now };
    match &args.verb {
        Verb::Conf(conf) if !conf.vgpus.is_empty() => {
            let offers = vgpu::offers(&tree, &conf.vgpus)?;
            output::print(&match conf.host {
                Host::Compute => vgpu::compute(&offers, form)?,
                Host::Api => vgpu::api(&offers, form)?,
            })?;
        }
        Verb::Conf(conf) => {
            let products = products(&tree, &args.gpus)?;
            output::print(&match conf.host {
                Host::Compute => conf::compute(&products, form),
                Host::Api => conf::api(&products, form),
            })?;
        }
        Verb::Commands(wanted) => {
            let products = products(&tree, &args.gpus)?;
            let gib = wanted.memory.0 >> 30;
            if gib == 0 {
                return Err(Fault::new(
                    Code::Usage,
                    "a flavor has 1 GiB of memory for each GPU at least",
                ));
            }
            let server = Server {
                name: wanted.server.clone(),
                image: wanted.image.clone(),
                network: wanted.network.clone(),
                external: wanted.external.clone(),
            };
            let all = commands(&products, &flavors(wanted.vcpus, gib), &server, form);
            for words in all {
                let shown = line(&words).replace(" \\\n  ", " ");
                if words.last().is_some_and(|word| word == "ADDRESS") || wanted.dry_run {
                    output::print(&shown)?;
                    continue;
                }
                output::print(&format!("+ {shown}"))?;
                one(&words)?;
            }
        }
        Verb::Check(files) => {
            // The compute host may be another one: then only what the files say counts.
            let products = products(&tree, &args.gpus).unwrap_or_default();
            let mistakes = check(&text(&files.api)?, &text(&files.compute)?, &products);
            let failed = !mistakes.is_empty();
            output::list(
                context.format,
                "NovaMistakeList",
                mistakes,
                |one| &one.mistake,
                table,
            )?;
            return Ok(if failed {
                Code::DoctorFailed.exit_status()
            } else {
                0
            });
        }
    }
    Ok(0)
}

/// Runs one of OpenStack's commands.
fn one(words: &[String]) -> Result<(), Fault> {
    let (program, rest) = words
        .split_first()
        .ok_or_else(|| Fault::new(Code::Internal, "no command"))?;
    let failed = || {
        Fault::new(Code::Tool, format!("`{program}` failed")).hint(
            "the commands behind it were not run: --dry-run prints all of them. OpenStack's variables (OS_CLOUD, OS_AUTH_URL) say which cloud",
        )
    };
    let status = Command::new(program)
        .args(rest)
        .status()
        .map_err(|error| failed().because(&error))?;
    match status.success() {
        true => Ok(()),
        false => Err(failed().cause(format!("it ended with {status}"))),
    }
}

fn text(file: &Path) -> Result<String, Fault> {
    const LONGEST: u64 = 1 << 22;
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
    read.map_err(|error| {
        Fault::new(Code::Usage, format!("cannot read `{}`", file.display())).because(&error)
    })?;
    Ok(text)
}

fn table(mistakes: &[Mistake], _wide: bool) -> Table {
    let mut table = Table::new(vec![
        ("FILE", false),
        ("LINE", true),
        ("MISTAKE", false),
        ("WRITE", false),
    ]);
    for one in mistakes {
        let line = if one.line == 0 {
            "-".to_owned()
        } else {
            one.line.to_string()
        };
        table.row(vec![
            one.file.to_owned(),
            line,
            one.mistake.clone(),
            one.fix.clone(),
        ]);
    }
    table
}
