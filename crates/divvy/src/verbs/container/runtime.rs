//! `divvy container runtime`: the runtime wrapper in engines' configuration.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use divvy_container::configure::{BACKUP, Change, Target, change, undo};
use divvy_model::{Code, Fault};
use serde::Serialize;

use super::oci_runtime::NAME;
use crate::context::Context;
use crate::output;

/// Flags of `divvy container runtime`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy container runtime configure --engine docker --dry-run
  divvy container runtime configure --engine docker
  divvy container runtime configure --engine docker --undo")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write the runtime wrapper into an engine's configuration, and turn CDI on where it can be off
    Configure(Configure),
}

#[derive(Debug, clap::Args)]
struct Configure {
    /// The engine
    #[arg(long, value_enum)]
    engine: Name,
    /// Its file [default: where the engine looks]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The runtime's path [default: divvy-oci-runtime beside this program, made where it is missing]
    #[arg(long, value_name = "PATH")]
    runtime: Option<PathBuf>,
    /// Put the old file back
    #[arg(long)]
    undo: bool,
    /// Print the new text, and write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    Docker,
    Podman,
    Containerd,
    Crio,
}

impl Name {
    fn target(self) -> Target {
        match self {
            Self::Docker => Target::Docker,
            Self::Podman => Target::Podman,
            Self::Containerd => Target::Containerd,
            Self::Crio => Target::Crio,
        }
    }
}

/// Does it.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let Verb::Configure(args) = &args.verb;
    configure(args, context)
}

fn configure(args: &Configure, context: &Context) -> Result<u8, Fault> {
    let target = args.engine.target();
    let file = args.file.clone().unwrap_or_else(|| target.file().into());
    let runtime = match &args.runtime {
        Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        None => beside(args.dry_run || args.undo)?,
    };
    let to_link =
        (args.dry_run && args.runtime.is_none() && !args.undo && !runtime.exists()).then(|| runtime.clone());
    let runtime = runtime.to_string_lossy();
    let change = match args.undo {
        true => undo(target, &file, &runtime)?,
        false => change(target, &file, &runtime)?,
    };
    if !args.dry_run {
        change.make(!args.undo)?;
    }
    tell(&change, to_link.as_deref(), args, target, context)
}

/// The link by which engines call us: they take a path and no words.
fn beside(only_name: bool) -> Result<PathBuf, Fault> {
    let own = std::env::current_exe().unwrap_or_else(|_| "/usr/bin/divvy".into());
    let link = own.with_file_name(NAME);
    if only_name || link.exists() {
        return Ok(link);
    }
    let name = own.file_name().unwrap_or_default();
    symlink(Path::new(name), &link).map_err(|error| {
        Fault::new(Code::EngineConfig, format!("cannot make `{}`", link.display()))
            .because(&error)
            .hint("run it as root, or name the runtime with --runtime")
    })?;
    Ok(link)
}

#[derive(Serialize)]
struct EngineConfiguration<'a> {
    file: &'a Path,
    changed: bool,
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restart: Option<&'static str>,
}

/// `to_link` is the engine's name for us, where a dry run finds that it is not there yet.
fn tell(
    change: &Change,
    to_link: Option<&Path>,
    args: &Configure,
    target: Target,
    context: &Context,
) -> Result<u8, Fault> {
    let told = EngineConfiguration {
        file: &change.file,
        changed: !change.is_none(),
        text: change.after.as_deref(),
        restart: target.restart(),
    };
    if output::document(context.format, "EngineConfiguration", &told)? {
        return Ok(0);
    }
    let file = change.file.display();
    if args.dry_run {
        if let Some(link) = to_link {
            output::print(&format!("would make the link {} to this command", link.display()))?;
        }
        return output::print(&match &change.after {
            Some(text) => format!("would write {file}:\n{text}"),
            None => format!("would remove {file}"),
        })
        .map(|()| 0);
    }
    let mut text = match (change.is_none(), &change.after) {
        (true, _) => format!("{file} is as it should be\n"),
        (false, Some(_)) => format!("wrote {file}\n"),
        (false, None) => format!("removed {file}\n"),
    };
    if !args.undo && change.before.is_some() && !change.is_none() {
        text.push_str(&format!("the old one is {file}.{BACKUP}\n"));
    }
    if !change.is_none() {
        if let Some(restart) = target.restart() {
            text.push_str(&format!("the engine reads it when it starts: {restart}\n"));
        }
        if !args.undo {
            text.push_str(&format!("then: {}\n", target.example()));
        }
    }
    output::print(&text)?;
    Ok(0)
}
