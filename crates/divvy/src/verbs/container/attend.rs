//! `divvy attend`: stays beside a container of `divvy podman run`. It looks once whether the limiter can be in its
//! program, and says so on its stdout. It tells the agent what the slice ends with. It ends the slice where the `divvy`
//! that made it did not: the container was detached, or `divvy` was killed. Its stdin is closed when the engine's
//! command has ended.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use divvy_agent::api::Attend;
use divvy_agent::bypass::containers::members as container_members;
use divvy_container::engine::EngineCommand;
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

/// How often it looks while it waits for something that is not notified.
const LOOK: Duration = Duration::from_millis(20);
/// How long it looks for a container to start its program.
const START: Duration = Duration::from_secs(30);
/// The same once the engine says that it has started it.
const STARTED: Duration = Duration::from_secs(2);

/// Attends the container.
pub fn run(args: &Args, context: &Context) -> Result<u8, Fault> {
    let parent = Parent::of(args.parent);
    let Some((program, globals)) = args.command.split_first() else {
        return Ok(0);
    };
    let engine = EngineCommand {
        program: Path::new(program),
        globals,
    };
    let slice = match context.agent_of_slices()? {
        Some(agent) => agent.slice(&args.slice)?,
        None => return Ok(0),
    };
    let refused = started(args, engine)
        // The file may hold another container's id, and another user may have written it.
        .filter(|program| container_members(&context.peek(), &slice).contains(&program.pid))
        .and_then(|program| judge(&program, slice.terms.policy))
        .inspect(|refused| stop(refused, args, engine, context));
    // The agent is told before `divvy` returns, which waits for a container in the background. After that no process's
    // death takes the slice from it.
    let goes_with_it =
        refused.is_none() && args.stays != Stays::Always && goes_with_folder(args, engine, context);
    say(refused.as_ref());
    if refused.is_some() {
        parent.wait();
        if args.stays != Stays::Always {
            end(context, &slice);
        }
        return Ok(0);
    }
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
fn started(args: &Args, engine: EngineCommand<'_>) -> Option<Program> {
    let begin = Instant::now();
    let mut returned: Option<Instant> = None;
    loop {
        // Asked before it is looked: a container that was left in the background is there by then, or has ended.
        if engine_has_returned(LOOK) {
            returned.get_or_insert_with(Instant::now);
        }
        let process = id(&args.id_file).and_then(|id| {
            let seen = Processes::default().of_container(&id).into_iter().min();
            // No cgroup names it, or there is none: the engine knows.
            seen.or_else(|| returned.and_then(|_| engine.first_process(&id)))
        });
        if let Some(program) = process.and_then(Program::of) {
            return Some(program);
        }
        let over = match returned {
            Some(at) => process.is_none() || at.elapsed() >= STARTED,
            None => begin.elapsed() >= START,
        };
        if over {
            return None;
        }
    }
}

/// Whether `divvy` has closed our stdin: the engine's command has ended, or `divvy` has.
fn engine_has_returned(within: Duration) -> bool {
    let begin = Instant::now();
    let timeout = Timespec::try_from(within).ok();
    let stdin = std::io::stdin();
    let ready =
        poll(&mut [PollFd::new(&stdin, PollFlags::IN)], timeout.as_ref()).is_ok_and(|ready| ready > 0);
    if ready {
        std::thread::sleep(within.saturating_sub(begin.elapsed()));
    }
    ready
}

/// Tells `divvy`, which may have ended, what came of the look: one line.
fn say(refused: Option<&Fault>) {
    let line = serde_json::to_string(&refused).unwrap_or_default();
    let mut out = std::io::stdout();
    let _unheard = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Has the slice go with the folder that the engine keeps of the container, where there is one that the agent sees too.
fn goes_with_folder(args: &Args, engine: EngineCommand<'_>, context: &Context) -> bool {
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
        // It may have ended in between, and its number may be another process's.
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
    pid: u32,
    name: String,
    why: Option<Why>,
}

impl Program {
    fn of(pid: u32) -> Option<Self> {
        let file = || std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let name = unlimited::is_begun(pid).then(file).flatten()?;
        Some(Self {
            pid,
            name: name.to_string_lossy().into_owned(),
            why: unlimited::of_process(pid),
        })
    }
}

fn id(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Under a strict policy a program that the limiter is not in is refused: it would use the device past its slice, or find
/// none and not know why.
fn judge(program: &Program, policy: Policy) -> Option<Fault> {
    let fault = program.why?.refusal(&program.name);
    if policy != Policy::Strict {
        report::remark(&format!("not enforced: {}", fault.message));
        return None;
    }
    Some(fault)
}

/// Ends a container whose program is refused, and has the agent write that down: a container in the background has no
/// terminal.
fn stop(refused: &Fault, args: &Args, engine: EngineCommand<'_>, context: &Context) {
    if let Ok(Some(agent)) = context.agent_of_slices() {
        let _told = agent.refused(&args.slice, refused);
    }
    if let Some(id) = id(&args.id_file) {
        let _ended = engine.does(&["kill", &id]);
    }
}

/// Waits until the container has ended, and is not just being started again.
fn wait(args: &Args, engine: EngineCommand<'_>) {
    let Some(id) = id(&args.id_file) else { return };
    while engine.runs(&id, false) {
        // The engine says when; where it cannot be asked, we look.
        if !engine.does(&["wait", &id]) {
            std::thread::sleep(Duration::from_secs(1));
        }
        std::thread::sleep(LOOK);
    }
}
