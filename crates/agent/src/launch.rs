//! `divvy run`: a slice, its keeper, and the program inside.

mod observe;
mod parts;
mod program;

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};

use divvy_host::DriverBelow;
use divvy_model::{Code, DeviceRecord, Fault, SliceRecord, SliceRequest};

pub use self::observe::{observation, observe};
use self::parts::Parts;
use self::program::{cannot_run, check_program, first};
use crate::api::{CreateSlice, CreatedSlice, Join};
use crate::keeper::Keeper;
use crate::records::record_path;
use crate::start::ensure_agent;
use crate::supervise::{Watch, exit_code, let_go};
use crate::{Client, RunDir};

/// What is to be run, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The slice it is to have.
    pub request: SliceRequest,
    /// The lasting slice it is to join instead, by name or id.
    pub join: Option<String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The driver below, where the user names one.
    pub driver: Option<PathBuf>,
    /// The user's specification of emulated devices, where there is one.
    pub emulated: Option<String>,
}

/// Commands of the calling executable that a launch needs.
#[derive(Clone, Copy)]
pub struct Helpers<'a> {
    /// Serves the run directory in the background.
    pub serve: &'a dyn Fn() -> Command,
    /// Calls [`enter`] with the arguments that follow.
    pub enter: &'a dyn Fn() -> Command,
}

/// A slice that is ready, with the environment of the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The slice.
    pub slice: SliceRecord,
    /// Its device.
    pub device: DeviceRecord,
    /// The driver below.
    pub driver: DriverBelow,
    /// Variables that are set for the program, in order.
    pub environment: Vec<(String, OsString)>,
}

/// Says what would happen, and changes nothing but starting an agent where none runs.
///
/// # Errors
/// Whatever would stop the real run.
pub fn plan(run: &RunDir, launch: &Launch, helpers: &Helpers<'_>) -> Result<Plan, Fault> {
    check_program(first(&launch.command)?)?;
    let parts = Parts::find(run, launch)?;
    let mut agents = Vec::new();
    let created = create(run, launch, helpers, true, &mut agents)?;
    crate::bypass::judge(first(&launch.command)?, &created.slice)?;
    parts.plan(run, &created, &created.directory.join("attach.sock"))
}

/// Runs the program in a slice of its own. `ready` is told the plan before the program starts. Returns the exit
/// status as a shell gives it.
///
/// # Errors
/// What stopped the program from starting; nothing is left behind then.
pub fn run(
    run: &RunDir,
    launch: &Launch,
    helpers: &Helpers<'_>,
    ready: impl FnOnce(&Plan),
) -> Result<u8, Fault> {
    let program = first(&launch.command)?;
    check_program(program)?;
    let parts = Parts::find(run, launch)?;
    let mut agents = Vec::new();
    let created = create(run, launch, helpers, false, &mut agents)?;
    // Before any thread, and before the program: they are to inherit the mask. Until here a signal ends us, and the
    // agent finds that nobody keeps the slice.
    let watch = Watch::begin()?;
    let keep = || -> Result<u8, Fault> {
        let _keeper = match created.joined {
            true => None,
            false => Some(take_up(run, &created, helpers, &mut agents)?),
        };
        let plan = parts.plan(run, &created, &created.directory.join("attach.sock"))?;
        if let Some(bypass) = crate::bypass::judge(program, &created.slice)? {
            crate::bypass::count(&created.directory.join("attach.sock"), bypass);
        }
        ready(&plan);
        let mut child = (helpers.enter)()
            .args(&launch.command)
            .envs(plan.environment.iter().map(|(name, value)| (name, value)))
            .spawn()
            .map_err(|error| cannot_run(program, &error))?;
        let status = watch.wait(&mut child, &mut agents)?;
        Ok(exit_code(status))
    };
    let outcome = keep();
    if !created.joined {
        // Where no agent runs just now, the next one finds nobody keeping the slice and clears it away.
        let _no_agent = Client::new(run.clone()).end(&created.slice.id);
    }
    outcome
}

/// Becomes the keeper of a slice that was admitted. An agent that died since is replaced: it finds the slice admitted.
fn take_up(
    run: &RunDir,
    created: &CreatedSlice,
    helpers: &Helpers<'_>,
    agents: &mut Vec<Child>,
) -> Result<Keeper, Fault> {
    let id = &created.slice.id;
    // Who wrote the slice's record is the agent, whoever may come after it.
    let agent = std::fs::metadata(record_path(run, id))
        .map_err(|error| Fault::new(Code::SliceGone, "the slice's record is gone").because(&error))?;
    let keeper = Keeper::listen(&created.directory, agent.uid())?;
    let client = Client::new(run.clone());
    let mut tries = 0..2;
    loop {
        match client.activate(id) {
            Err(fault) if fault.code == Code::AgentUnreachable && tries.next().is_some() => {
                agents.extend(ensure_agent(run, helpers.serve)?);
            }
            answer => return answer.map(|_| keeper),
        }
    }
}

/// Becomes the program, with the signals let through that `divvy run` holds back. Returns only when it cannot.
#[must_use]
pub fn enter(command: &[OsString]) -> Fault {
    let become_it = || {
        let program = first(command)?;
        let_go()?;
        let error = Command::new(program).args(&command[1..]).exec();
        Err(cannot_run(program, &error))
    };
    let failed: Result<(), Fault> = become_it();
    failed
        .err()
        .unwrap_or_else(|| Fault::new(Code::Internal, "the program did not start"))
}

/// Asks for the slice; an agent that was just leaving is replaced, once.
fn create(
    run: &RunDir,
    launch: &Launch,
    helpers: &Helpers<'_>,
    dry_run: bool,
    agents: &mut Vec<Child>,
) -> Result<CreatedSlice, Fault> {
    let client = Client::new(run.clone());
    let command: Vec<String> = launch
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let ask = || match &launch.join {
        Some(slice) => client.join(
            slice,
            &Join {
                command: command.clone(),
                dry_run,
            },
        ),
        None => client.create(&CreateSlice {
            request: launch.request.clone(),
            command: command.clone(),
            emulated: launch.emulated.clone(),
            lasting: false,
            dry_run,
        }),
    };
    let mut last = None;
    for _ in 0..3 {
        agents.extend(ensure_agent(run, helpers.serve)?);
        match ask() {
            Err(fault) if fault.code == Code::AgentUnreachable => last = Some(fault),
            answer => return answer,
        }
    }
    Err(last.unwrap_or_else(|| Fault::new(Code::AgentUnreachable, "no agent answers")))
}
