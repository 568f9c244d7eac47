//! `divvy podman run` and `divvy docker run`: a slice, and the engine's own command with one more flag.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};
use divvy_agent::api::Attend;
use divvy_agent::{Watch, exit_code, let_go};
use divvy_container::cdi;
use divvy_container::engine::{self, Engine, EngineCommand, Line, around, diagnose, split};
use divvy_container::inject::{is_written, written};
use divvy_container::unlimited;
use divvy_model::{Code, Fault, LifetimeAnchor, MemoryAmount, Policy, SliceRecord};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::cdi::{Made, Wanted, make};
use crate::context::Context;
use crate::flags::policy_or_setting;
use crate::output;
use crate::report::{self, remark};

/// Words of `divvy podman` and `divvy docker`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The engine's own flags, `run`, flags of both, the image and its command
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "WORDS"
    )]
    words: Vec<OsString>,
}

/// Examples of `divvy container run`.
pub const RUN: &str = "\
Examples:
  divvy container run --memory 4GiB --compute 30% image python train.py
  divvy container run --slice alice image python train.py
  divvy container run --memory 4GiB --dry-run image";

/// Examples of `divvy podman`.
pub const PODMAN: &str = "\
Examples:
  divvy podman run --memory 4GiB --compute 30% image python train.py
  divvy podman run --memory 4GiB -it --rm -v /data:/data image bash
  divvy podman run --memory 4GiB -m 16g image       # the slice's memory, and the host's
  divvy podman run --slice alice image python train.py
  divvy podman run --memory 4GiB --dry-run image";

/// Examples of `divvy docker`.
pub const DOCKER: &str = "\
Examples:
  divvy docker run --memory 4GiB --compute 30% image python train.py
  divvy docker run --memory 4GiB -d --name train image python train.py
  divvy docker run --memory 4GiB -m 16g image       # the slice's memory, and the host's
  divvy docker run --memory 4GiB --dry-run image";

/// What follows the flags of both.
pub const AFTER: &str = "\
Ours are the flags of `divvy container cdi slice`: --memory, --compute, --cap, --class, --weight, --device, --policy, --on-oom,
--oversubscribe, --capabilities, --slice, and --dry-run and --cdi-directory. They stand anywhere between `run` and the
image. All other words go to the engine as they are, and so does everything behind a `--`.

Two names are the engine's too. --memory is the slice's: the engine's own is -m, or stands behind `--`. --device is
ours for an index, a UUID and the like, and the engine's for a path or a CDI name. A container's --name is its slice's.

The slice ends with the container. One that can be started again (-d without --rm, or --restart) keeps its slice
until it is removed. `divvy container cdi slice` makes slices that stay.";

/// Our flags among the engine's.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Ours {
    #[command(flatten)]
    wanted: Wanted,
    /// A lasting slice to be let into
    #[arg(long, value_name = "SLICE", conflicts_with_all = ["memory", "compute", "cap", "class", "weight", "device", "policy", "on_oom", "oversubscribe"])]
    slice: Option<String>,
    /// Where the slice's CDI file goes
    #[arg(long, value_name = "DIR", default_value = cdi::DYNAMIC)]
    cdi_directory: PathBuf,
    /// Print what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// `divvy container run`: with podman, or else with docker.
pub fn run_with_any(args: &Args, context: &Context) -> Result<u8, Fault> {
    let engines = [Engine::Podman, Engine::Docker];
    let Some(engine) = engines.into_iter().find(|engine| engine.find().is_ok()) else {
        return Err(Fault::new(
            Code::EngineMissing,
            "neither `podman` nor `docker` is on the PATH",
        )
        .hint("install one of them (Debian: `apt-get install podman`)"));
    };
    let mut words = vec![OsString::from("run")];
    words.extend(args.words.iter().cloned());
    run(engine, &Args { words }, context)
}

/// `divvy podman` and `divvy docker`.
pub fn run(engine: Engine, args: &Args, context: &Context) -> Result<u8, Fault> {
    let grammar = Ours::command();
    // The engine's --name is the slice's too.
    let ours = |name: &str| {
        let flag = grammar
            .get_arguments()
            .find(|flag| flag.get_long() == Some(name))?;
        let takes_value = flag.get_action().takes_values() && !flag.is_require_equals_set();
        (name != "name").then_some(takes_value)
    };
    let line = split(&args.words, &ours)?;
    let mut ours = Ours::try_parse_from(&line.ours).map_err(|error| report::words(&error))?;
    ours.wanted.name = line.seen.name.clone().filter(|name| is_slice_name(name));
    ours.wanted.attended = true;
    let program = engine.find()?;
    check(&line, &ours, context)?;
    if let Some(file) = line.seen.id_file.as_deref().filter(|file| file.exists()) {
        return Err(Fault::new(
            Code::Usage,
            format!(
                "`{}` is there already, and may hold another container's id",
                file.display()
            ),
        )
        .hint("remove it, or name another with --cidfile: the engine refuses it too"));
    }
    if line.seen.replaces {
        replace(&line, &mut ours, &program, context)?;
    }
    let made = make(
        &ours.wanted,
        ours.slice.as_deref(),
        &ours.cdi_directory,
        ours.dry_run,
        context,
    )?;
    let id_file = line.seen.id_file.clone().unwrap_or_else(|| {
        let folder = context.peek().container(&made.slice.id);
        folder.join(format!("cid-{}", std::process::id()))
    });
    let words = engine::command(&line, &made.device, &id_file);
    if ours.dry_run {
        return show(engine, &made, &words, context);
    }
    let container = Container {
        engine,
        program: &program,
        line: &line,
        id_file: &id_file,
        made: &made,
        stays: match ours.slice.is_some() {
            true => Stays::Always,
            false if line.seen.comes_back() => Stays::WithContainer,
            false => Stays::WhileItRuns,
        },
    };
    container.run(&words, context)
}

/// With `--replace` the container of this name goes before the new one is made, and so does its slice: its memory may be what
/// the new one needs.
fn replace(line: &Line, ours: &mut Ours, program: &Path, context: &Context) -> Result<(), Fault> {
    let engine = EngineCommand {
        program,
        globals: &line.globals,
    };
    let name = line.seen.name.as_deref().unwrap_or_default();
    let (Some(folder), Some(agent)) = (engine.folder(name), context.agent_of_slices()?) else {
        return Ok(());
    };
    let slices = agent.slices()?.body.items;
    let anchor = Some(LifetimeAnchor::Path(folder));
    let Some(slice) = slices.into_iter().find(|slice| slice.lifetime_anchor == anchor) else {
        return Ok(());
    };
    if ours.dry_run {
        remark(&format!(
            "would first remove container `{name}` and its slice; what is shown has a place beside them"
        ));
        ours.wanted.name = None;
        return Ok(());
    }
    has_room(ours, &slice, context)?;
    if engine.does(&["rm", "--force", name]) {
        end(context, &slice);
    }
    Ok(())
}

/// Whether the new slice can be had in the place of the old one, which is asked before that and its container go.
fn has_room(ours: &Ours, old: &SliceRecord, context: &Context) -> Result<(), Fault> {
    let beside = Wanted {
        name: None,
        ..ours.wanted.clone()
    };
    let tried = make(&beside, ours.slice.as_deref(), &ours.cdi_directory, true, context);
    let fits_in_its_place = match ours.wanted.memory {
        Some(MemoryAmount::Bytes(bytes)) => bytes <= old.shares.first.memory_limit_bytes,
        _ => false,
    };
    match tried {
        Err(fault) if fault.code == Code::DeviceFull && fits_in_its_place => Ok(()),
        Err(fault) => Err(fault.cause(format!("container `{}` was not replaced", old.name))),
        Ok(_) => Ok(()),
    }
}

/// Slices have containers' names, where these are short enough.
fn is_slice_name(name: &str) -> bool {
    const LONGEST: usize = 63;
    name.len() <= LONGEST && cdi::is_device_name(name)
}

/// What cannot be kept to a slice is refused before one is made.
fn check(line: &Line, ours: &Ours, context: &Context) -> Result<(), Fault> {
    let strict = policy_or_setting(ours.wanted.terms.policy, &context.config)? == Policy::Strict;
    let devices_closed = rustix::process::geteuid().is_root();
    if let Some(way) = around(&line.seen, devices_closed) {
        if strict {
            return Err(Fault::new(
                Code::NotEnforceable,
                "the container could not be kept to its slice",
            )
            .cause(way)
            .hint("leave the flag out, or let it be with `--policy best-effort`"));
        }
        remark(&format!("not enforced: {way}"));
    }
    if let Some((source, place)) = line.seen.mounts.iter().find(|(_, place)| is_written(place)) {
        return Err(written(source, place));
    }
    if let (true, Some(root)) = (line.seen.rootfs && strict, line.rest.first()) {
        // podman: `DIR:O`, `DIR:idmap`.
        let root = root.to_string_lossy();
        let root = root.split(':').next().unwrap_or_default();
        let words: Vec<String> = line.rest[1..]
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        if let Some(why) = unlimited::of_root(Path::new(root), &words, PATH, "/") {
            return Err(why.refusal(words.first().map_or("", String::as_str)));
        }
    }
    Ok(())
}

/// A container that is to run.
struct Container<'a> {
    engine: Engine,
    program: &'a Path,
    line: &'a Line,
    id_file: &'a Path,
    made: &'a Made,
    stays: Stays,
}

/// The exit status of an engine whose container was killed.
const KILLED: u8 = 128 + 9;
/// How long the helper may take to look at a container's program that runs.
const VERDICT: Duration = Duration::from_secs(10);

/// The helper's refusal of the container's program, if it has one. It is told that the engine has returned.
fn verdict(helper: &mut Child, timeout: Duration) -> Option<Fault> {
    /// More than any refusal has.
    const MOST: usize = 64 << 10;
    drop(helper.stdin.take());
    let mut out = helper.stdout.take()?;
    let begin = Instant::now();
    let (mut said, mut buffer) = (Vec::new(), [0; 1024]);
    while !said.contains(&b'\n') && said.len() < MOST {
        let left = Timespec::try_from(timeout.saturating_sub(begin.elapsed())).ok()?;
        if poll(&mut [PollFd::new(&out, PollFlags::IN)], Some(&left)).ok()? == 0 {
            return None;
        }
        match out.read(&mut buffer).ok()? {
            0 => break,
            read => said.extend_from_slice(&buffer[..read]),
        }
    }
    serde_json::from_slice(&said).ok()?
}

/// How long a container's slice is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Stays {
    /// Until the container has ended.
    WhileItRuns,
    /// Until the container is removed: it can be started again.
    WithContainer,
    /// It is another owner's, and stays.
    Always,
}

impl Container<'_> {
    fn run(&self, words: &[OsString], context: &Context) -> Result<u8, Fault> {
        let begin = || -> Result<u8, Fault> {
            // The engine does not get the words that are for Divvy.
            let_go()?;
            let mut child = Command::new(self.program).args(words).spawn().map_err(|error| {
                Fault::new(
                    Code::EngineMissing,
                    format!("cannot start `{}`", self.program.display()),
                )
                .because(&error)
            })?;
            // After the engine: no process waits for it.
            let mut helpers: Vec<_> = self.attend(context).into_iter().collect();
            if let Some(helper) = helpers.first() {
                self.goes_with(helper.id(), context);
            }
            let status = exit_code(Watch::begin()?.wait(&mut child, &mut helpers)?);
            // For a container in the background it waits until its program was checked; one that was killed may have
            // been killed for that.
            let looks = self.line.seen.detached || status == KILLED;
            let timeout = if looks { VERDICT } else { Duration::ZERO };
            match helpers.first_mut().and_then(|helper| verdict(helper, timeout)) {
                Some(refusal) => Err(refusal),
                None => Ok(status),
            }
        };
        let outcome = begin();
        // 125 to 127: the engine or its runtime failed, not the program. Asked while the slice's file is there.
        let failed = outcome.as_ref().is_ok_and(|status| (125..=127).contains(status));
        let why = failed.then(|| diagnose(self.engine, self.program, &self.made.file));
        // A container that detached, or that its client left, has the slice until it ends: `divvy attend` ends the
        // slice.
        let over = match self.stays {
            Stays::Always => false,
            // It never started, or its program was refused: it does not come back either, which finds no slice.
            _ if outcome.is_err() => true,
            Stays::WithContainer => failed && self.line.seen.detached,
            Stays::WhileItRuns => !self.is_left(),
        };
        if over {
            end(context, &self.made.slice);
        }
        match why.flatten() {
            Some(fault) => Err(fault),
            None => outcome,
        }
    }

    fn attend(&self, context: &Context) -> Option<Child> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("divvy")
            .args(["attend", &self.made.slice.id, "--engine", self.engine.name()])
            .args(["--parent", &std::process::id().to_string(), "--id-file"])
            .arg(self.id_file)
            .args(["--stays", self.stays.name()])
            .arg("--")
            .arg(self.program)
            .args(&self.line.globals)
            .env("DIVVY_RUN_DIR", context.peek().path())
            // Closed when the engine has returned.
            .stdin(Stdio::piped())
            // Its verdict on the container's program.
            .stdout(Stdio::piped())
            // Not by Ctrl-C: it stays for what is left.
            .process_group(0);
        if self.line.seen.detached {
            // A reader of our output waits until no process can write to it any more.
            command.stderr(Stdio::null());
        }
        command.spawn().ok()
    }

    /// Has the slice go with the helper in the place of this process, which may end before it.
    fn goes_with(&self, helper: u32, context: &Context) {
        if self.stays != Stays::Always
            && let Ok(Some(agent)) = context.agent_of_slices()
            && let Err(fault) = agent.attend(&self.made.slice.id, &Attend::Process(helper))
        {
            remark(&format!("{fault}"));
        }
    }

    /// Whether the container runs all the same: detached, left by its client, or started again.
    fn is_left(&self) -> bool {
        let id = std::fs::read_to_string(self.id_file).unwrap_or_default();
        let asked = EngineCommand {
            program: self.program,
            globals: &self.line.globals,
        };
        !id.trim().is_empty() && asked.runs(id.trim(), self.line.seen.removed)
    }
}

impl Stays {
    /// The word of the helper's command line.
    fn name(self) -> &'static str {
        match self {
            Self::WhileItRuns => "while-it-runs",
            Self::WithContainer => "with-container",
            Self::Always => "always",
        }
    }
}

/// Ends a slice whose container has ended. Its processes may take a moment to be gone.
pub fn end(context: &Context, slice: &SliceRecord) {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let begin = Instant::now();
    loop {
        let ended = match context.agent_of_slices() {
            Ok(Some(agent)) => agent.end(&slice.id),
            Ok(None) => return,
            Err(fault) => Err(fault),
        };
        match ended {
            Ok(()) => return,
            Err(fault) if fault.code == Code::UnknownSlice => return,
            Err(fault) if begin.elapsed() >= TIMEOUT => {
                remark(&format!("slice {} is left: {fault}", slice.name));
                return;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn show(engine: Engine, made: &Made, words: &[OsString], context: &Context) -> Result<u8, Fault> {
    #[derive(Serialize)]
    struct Plan<'a> {
        command: Vec<String>,
        #[serde(flatten)]
        made: &'a Made,
    }
    let command: Vec<String> = std::iter::once(engine.name().to_owned())
        .chain(words.iter().map(|word| word.to_string_lossy().into_owned()))
        .collect();
    let quoted: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    let plan = Plan { command, made };
    if output::document(context.format, "ContainerPlan", &plan)? {
        return Ok(0);
    }
    let slice = &made.slice;
    output::print(&format!(
        "slice        {}\nmemory       {}\ndevice       {}\nwould write  {}\nwould run    {}\n",
        slice.name,
        slice.shares.first.memory_limit_bytes,
        slice.shares.first.device_uuid,
        made.file.display(),
        quoted.join(" "),
    ))?;
    Ok(0)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        for (word, expected) in [("a", "a"), ("", "''"), ("a b", "'a b'"), ("it's", "'it'\\''s'")] {
            assert_eq!(quoted(word), expected);
        }
    }

    /// Ours are told from the engine's by their names alone: the grammar has each once.
    #[test]
    fn our_flags_are_known() {
        Ours::command().debug_assert();
        let grammar = Ours::command();
        let names: Vec<_> = grammar
            .get_arguments()
            .filter_map(|flag| flag.get_long())
            .collect();
        for name in ["memory", "compute", "device", "slice", "dry-run", "cdi-directory"] {
            assert!(names.contains(&name), "{name}");
            assert!(AFTER.contains(&format!("--{name}")), "{name} is told of");
        }
    }
}
