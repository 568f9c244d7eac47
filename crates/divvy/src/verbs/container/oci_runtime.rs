//! `divvy container oci-runtime`: stands between an engine and its OCI runtime, for engines that know no CDI.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use divvy_agent::api::Attend;
use divvy_agent::{Watch, clock, exit_code};
use divvy_container::engine::on_path;
use divvy_container::oci::{self, Arguments, Bundle, Trust, Verb};
use divvy_container::unlimited;
use divvy_model::{Code, Fault, Policy};
use serde_json::json;

use super::engine::end;
use super::given;
use crate::context::{Context, Options};
use crate::flags::policy_or_setting;

/// Flags of `divvy container oci-runtime`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy container runtime configure --engine docker
  docker run --runtime divvy --annotation divvy.dev/memory=4GiB image python train.py
  DIVVY_CONTAINER_REQUESTS=variables podman --runtime /usr/bin/divvy-oci-runtime run --annotation divvy.dev/slice=alice image")]
pub struct Args {
    /// The words that an engine gives its OCI runtime
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

/// The name under which engines call it: they take a path and no words.
pub const NAME: &str = "divvy-oci-runtime";

/// The runtime's words, where we were called as one.
pub fn words() -> Option<Vec<OsString>> {
    let mut words = std::env::args_os();
    let called = PathBuf::from(words.next()?);
    if called.file_name().is_some_and(|name| name == NAME) {
        return Some(words.collect());
    }
    let mut first = words.next()?;
    if first == "container" {
        first = words.next()?;
    }
    let rest: Vec<OsString> = words.collect();
    let asks_help = rest.first().is_none_or(|word| word == "--help" || word == "-h");
    (first == "oci-runtime" && !asks_help).then_some(rest)
}

/// The whole of it, for a process that is nothing else.
pub fn main(words: &[OsString]) -> ExitCode {
    let outcome = Context::new(&Options::default()).and_then(|context| pass(words, &context));
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(fault) => {
            crate::report::fault(&fault, false);
            log(&Arguments::read(words), "error", &crate::report::line(&fault));
            ExitCode::FAILURE
        }
    }
}

/// Passes the words on.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    pass(&args.words, context)
}

fn pass(words: &[OsString], context: &Context) -> Result<u8, Fault> {
    let arguments = Arguments::read(words);
    let mut below = Command::new(below(context)?);
    below.args(words);
    match (arguments.verb, &arguments.id) {
        (Verb::Create | Verb::Run, Some(id)) => {
            let mut bundle = Bundle::open(&arguments.bundle)?;
            let Some(slice) = give(&mut bundle, &arguments, id, context)? else {
                return Err(become_it(below));
            };
            let status = wait(below, arguments.verb, |runtime| {
                // One that only makes the container ends before we do.
                if arguments.verb == Verb::Run {
                    goes_with(&slice, &Attend::Process(runtime), context);
                }
            });
            match (arguments.verb, &status) {
                // A container that was made has the slice until it is deleted, or its first process has ended.
                (Verb::Create, Ok(0)) => goes_with(&slice, &first_process(&arguments), context),
                _ => forget(id, Some(&slice), context),
            }
            status
        }
        (Verb::Delete, Some(id)) => {
            let status = wait(below, arguments.verb, |_| {})?;
            if status == 0 {
                forget(id, None, context);
            }
            Ok(status)
        }
        _ => Err(become_it(below)),
    }
}

/// The runtime below us.
fn below(context: &Context) -> Result<PathBuf, Fault> {
    let named = context.config.text("oci_runtime");
    let names = named.map_or_else(|| vec!["runc", "crun", "youki"], |name| vec![name]);
    let found = names.iter().find_map(|name| on_path(name));
    let found = found.ok_or_else(|| {
        Fault::new(
            Code::EngineMissing,
            format!("there is no OCI runtime below: {}", names.join(", ")),
        )
        .hint("install runc or crun, or name another with `oci_runtime` in the configuration")
    })?;
    // A link of ours that leads back here would call itself for ever.
    let ours = std::env::current_exe().ok();
    if fs::canonicalize(&found).ok() == ours && ours.is_some() {
        return Err(Fault::new(
            Code::Config,
            format!("`{}` is this runtime itself", found.display()),
        )
        .hint("`oci_runtime` in the configuration names the one below: runc, crun, youki or a path"));
    }
    Ok(found)
}

fn cannot(error: &std::io::Error) -> Fault {
    Fault::new(Code::EngineMissing, "cannot start the OCI runtime below").because(error)
}

fn become_it(mut below: Command) -> Fault {
    cannot(&below.exec())
}

fn wait(mut below: Command, verb: Verb, started: impl FnOnce(u32)) -> Result<u8, Fault> {
    let mut child = below.spawn().map_err(|error| cannot(&error))?;
    started(child.id());
    let status = match verb {
        // It stays, and is signalled.
        Verb::Run => Watch::begin()?.wait(&mut child, &mut [])?,
        _ => child.wait().map_err(|error| cannot(&error))?,
    };
    Ok(exit_code(status))
}

/// What the slice of a new container ends with: its first process, which waits to be started, as the runtime's pid file
/// names it. Where the engine asked for no such file, it is the bundle.
fn first_process(arguments: &Arguments) -> Attend {
    let file = arguments.pid_file.as_deref().map(fs::read_to_string);
    let pid = file
        .and_then(Result::ok)
        .and_then(|text| text.trim().parse().ok());
    let bundle = || std::path::absolute(&arguments.bundle).unwrap_or_else(|_| arguments.bundle.clone());
    pid.map_or_else(|| Attend::Path(bundle()), Attend::Process)
}

/// Has a slice go with something. Where the agent cannot be told, the slice goes with this process.
fn goes_with(slice: &str, with: &Attend, context: &Context) {
    if let Ok(Some(agent)) = context.agent_of_slices() {
        let _told = agent.attend(slice, with);
    }
}

/// Adds what the container asks for to its bundle; the id of its own slice where it has one.
///
/// # Errors
/// What keeps it from that; then nothing is left of the slice.
fn give(
    bundle: &mut Bundle,
    arguments: &Arguments,
    id: &str,
    context: &Context,
) -> Result<Option<String>, Fault> {
    let trust = context
        .config
        .get::<Trust>("container_requests")?
        .unwrap_or_default();
    let container = oci::Container::of_bundle(&bundle.config, &arguments.bundle);
    let mut request = oci::request(&container, trust)?;
    for ignored in &request.ignored {
        log(arguments, "warning", &format!("divvy: {ignored}"));
    }
    if request.is_empty() {
        return Ok(None);
    }
    if request.slice.is_some() || request.join.is_some() {
        let policy = policy_or_setting(None, &context.config)?;
        let path = container
            .environment
            .get("PATH")
            .map_or("/usr/bin:/bin", String::as_str);
        let why = unlimited::of_root(&bundle.root(), &container.arguments, path, &container.folder);
        if let Some(why) = why.filter(|_| policy == Policy::Strict) {
            return Err(why.refusal(container.arguments.first().map_or("", String::as_str)));
        }
    }
    if let Some(which) = &request.join {
        // By its id from here on: another slice may get the name meanwhile.
        request.join = Some(given::may_join(which, None, context)?.id);
    }
    let given = given::give(&mut request, None, true, context)?;
    let mut add = || -> Result<(), Fault> {
        oci::check_mounts(&bundle.config, &given.edits)?;
        oci::apply(&mut bundle.config, &given.edits)?;
        if let Some(slice) = &given.slice {
            remember(id, &slice.id, context)?;
        }
        bundle.store()
    };
    add().inspect_err(|_| given.take_back(context))?;
    Ok(given.slice.map(|slice| slice.id))
}

/// Where it stands which slice a container has. An id is a file's name, or there is none.
fn place(id: &str, context: &Context) -> PathBuf {
    context.peek().path().join("oci").join(id)
}

fn remember(id: &str, slice: &str, context: &Context) -> Result<(), Fault> {
    let file = place(id, context);
    let write = || -> std::io::Result<()> {
        let folder = file.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
        fs::write(&file, slice)
    };
    write().map_err(|error| {
        Fault::new(Code::RunDir, format!("cannot write `{}`", file.display())).because(&error)
    })
}

/// Ends the slice of a container that is no more.
fn forget(id: &str, slice: Option<&str>, context: &Context) {
    let file = place(id, context);
    let noted = fs::read_to_string(&file).ok();
    let Some(slice) = slice.map(str::to_owned).or(noted) else {
        return;
    };
    if let Ok(Some(agent)) = context.agent_of_slices()
        && let Ok(slice) = agent.slice(slice.trim())
    {
        end(context, &slice);
    }
    let _absent = fs::remove_file(&file);
}

/// A line in the runtime's own log, in its own form: engines show the last one of a runtime that failed.
fn log(arguments: &Arguments, level: &str, text: &str) {
    let Some(file) = &arguments.log else { return };
    let line = json!({"level": level, "msg": text, "time": clock::now()});
    let opened = OpenOptions::new().append(true).create(true).open(file);
    let _unheard = opened.and_then(|mut file| writeln!(file, "{line}"));
}
