//! `divvy attend`: stays beside a container of `divvy podman run`. It looks once whether the limiter can be in its
//! program, tells the agent what the slice goes with, and ends the slice where the `divvy` that made it did not: the
//! container was detached, or that was killed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use divvy_agent::api::Attend;
use divvy_container::engine::Asked;
use divvy_container::running::Processes;
use divvy_container::unlimited::{self, Why};
use divvy_model::{Fault, Policy};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use super::engine::{Stays, end};
use crate::context::Context;
use crate::report;

/// Flags of `divvy attend`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The slice, by its id
    slice: String,
    /// The engine's name
    #[arg(long)]
    engine: String,
    /// The process that made the slice, and ends it if all goes well
    #[arg(long)]
    parent: i32,
    /// Where the engine writes the container's id
    #[arg(long)]
    id_file: PathBuf,
    /// How long the slice is there
    #[arg(long, value_enum)]
    stays: Stays,
    /// The engine's program and its flags before the verb
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// How often it looks while it waits for something that nobody tells of.
const LOOK: Duration = Duration::from_millis(50);
/// How long a container may take to start its program until nobody looks any more.
const START: Duration = Duration::from_secs(30);

/// Attends the container.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let parent = Parent::of(args.parent);
    let Some((program, globals)) = args.command.split_first() else {
        return Ok(0);
    };
    let engine = Asked {
        program: Path::new(program),
        globals,
    };
    let slice = match context.agent_of_slices()? {
        Some(agent) => agent.slice(&args.slice)?,
        None => return Ok(0),
    };
    if let Some(program) = started(args, &parent)
        && let Some(why) = program.why
    {
        tell(why, &program.name, slice.policy, args, engine);
    }
    let goes_with_it = args.stays != Stays::Always && goes_with_folder(args, engine, context);
    match args.stays {
        Stays::Always => {}
        // The agent sees to the rest.
        Stays::WithContainer if goes_with_it => {}
        Stays::WithContainer => {
            while id(&args.id_file).is_some_and(|id| engine.knows(&id)) {
                std::thread::sleep(Duration::from_secs(1));
            }
            parent.wait();
            end(context, &slice);
        }
        Stays::WhileItRuns => {
            parent.wait();
            wait(args, engine);
            end(context, &slice);
        }
    }
    Ok(0)
}

/// The container's first program, once there is one; none where the container has come to nothing, or takes too long.
fn started(args: &Args, parent: &Parent) -> Option<Program> {
    let begin = Instant::now();
    while begin.elapsed() < START {
        // Asked before it is looked: a container that was left in the background is there by then, or has ended.
        let over = parent.has_ended(LOOK);
        let found = first_program(args);
        if found.is_some() || (over && !is_there(args)) {
            return found;
        }
    }
    None
}

fn is_there(args: &Args) -> bool {
    id(&args.id_file).is_some_and(|id| !Processes::default().of_container(&id).is_empty())
}

/// Has the slice go with the folder that the engine keeps of the container, where there is one that the agent sees too.
fn goes_with_folder(args: &Args, engine: Asked<'_>, context: &Context) -> bool {
    let folder = id(&args.id_file).and_then(|id| engine.folder(&id));
    let Some((folder, Ok(Some(agent)))) = folder.map(|folder| (folder, context.agent_of_slices())) else {
        return false;
    };
    agent.attend(&args.slice, &Attend::Path(folder)).is_ok()
}

/// The process that started us.
struct Parent(Option<rustix::fd::OwnedFd>);

impl Parent {
    fn of(pid: i32) -> Self {
        let pid = Pid::from_raw(pid).filter(|pid| getppid() == Some(*pid));
        let file = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // It may have ended in between, and its number be somebody else's.
        Self(file.filter(|_| getppid() == pid))
    }

    fn has_ended(&self, within: Duration) -> bool {
        let Some(file) = &self.0 else {
            std::thread::sleep(LOOK.min(within));
            return true;
        };
        let within = Timespec::try_from(within).ok();
        poll(&mut [PollFd::new(file, PollFlags::IN)], within.as_ref()).is_ok_and(|ready| ready > 0)
    }

    fn wait(&self) {
        while !self.has_ended(Duration::from_secs(3600)) {}
    }
}

/// The container's first program, once its runtime has become it.
struct Program {
    name: String,
    why: Option<Why>,
}

fn first_program(args: &Args) -> Option<Program> {
    let id = id(&args.id_file)?;
    let pids = Processes::default().of_container(&id);
    let pid = *pids.iter().min()?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let name = String::from_utf8_lossy(line.split(|byte| *byte == 0).next()?).into_owned();
    let file = Path::new(&name).file_name()?.to_string_lossy().into_owned();
    // Before it is the program it is the runtime.
    let runtime = ["runc", "crun", "youki", "runsc", "exe"].contains(&file.as_str());
    (!runtime).then(|| Program {
        why: unlimited::of_process(pid),
        name,
    })
}

fn id(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Under a strict policy such a program is ended: it would use the device past its slice, or find none and not know why.
fn tell(why: Why, program: &str, policy: Policy, args: &Args, engine: Asked<'_>) {
    let fault = why.refusal(program);
    if policy == Policy::Strict {
        report::fault(&fault, false);
        if let Some(id) = id(&args.id_file) {
            let _ended = engine.does(&["kill", &id]);
        }
    } else {
        report::remark(&format!("not enforced: {}", fault.message));
    }
}

/// Waits until the container has ended, and is not just being started again.
fn wait(args: &Args, engine: Asked<'_>) {
    let Some(id) = id(&args.id_file) else { return };
    while engine.runs(&id, false) {
        // The engine says when; where it cannot be asked, we look.
        if !engine.does(&["wait", &id]) {
            std::thread::sleep(Duration::from_secs(1));
        }
        std::thread::sleep(LOOK);
    }
}
