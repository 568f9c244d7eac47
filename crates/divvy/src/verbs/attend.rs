//! `divvy attend`: stays beside a container of `divvy podman run`. It looks once whether the limiter can be in its
//! program, and ends the slice where the `divvy` that made it did not: the container was detached, or that was killed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use divvy_container::running::Processes;
use divvy_container::unlimited::{self, Why};
use divvy_model::{Fault, Policy};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use super::engine::end;
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
    /// The slice stays
    #[arg(long)]
    keep: bool,
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
    let slice = match context.agent_of_slices()? {
        Some(agent) => agent.slice(&args.slice)?,
        None => return Ok(0),
    };
    let begin = Instant::now();
    while !parent.has_ended(LOOK) && begin.elapsed() < START {
        let Some(program) = first_program(args) else {
            continue;
        };
        if let Some(why) = program.why {
            tell(why, &program.name, slice.policy, args);
        }
        break;
    }
    while !parent.has_ended(Duration::from_secs(3600)) {}
    if args.keep {
        return Ok(0);
    }
    wait(args);
    end(context, &slice);
    Ok(0)
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
fn tell(why: Why, program: &str, policy: Policy, args: &Args) {
    let fault = why.refusal(program);
    if policy == Policy::Strict {
        report::fault(&fault, false);
        if let Some(id) = id(&args.id_file) {
            let _ended = ask(args, &["kill", &id]);
        }
    } else {
        report::remark(&format!("not enforced: {}", fault.message));
    }
}

fn ask(args: &Args, words: &[&str]) -> bool {
    let Some((program, globals)) = args.command.split_first() else {
        return false;
    };
    Command::new(program)
        .args(globals)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Waits until the container has ended.
fn wait(args: &Args) {
    let Some(id) = id(&args.id_file) else { return };
    let processes = Processes::default();
    while !processes.of_container(&id).is_empty() {
        // The engine says when; where it cannot be asked, we look.
        if !ask(args, &["wait", &id]) {
            std::thread::sleep(Duration::from_secs(1));
        }
        std::thread::sleep(LOOK);
    }
}
