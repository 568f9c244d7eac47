//! `divvy run`: a slice, its keeper, and the program inside.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use divvy_host::{DriverBelow, find_driver};
use divvy_model::{Code, DeviceKind, DeviceRecord, Fault, Isolation, SliceRecord, SliceRequest};
use rustix::fs::{Access, access};

use crate::api::{CreateSlice, CreatedSlice};
use crate::keeper::Keeper;
use crate::stage::{DropIns, Stage, stage};
use crate::start::ensure_agent;
use crate::supervise::{Watch, exit_code, let_go};
use crate::{Client, RunDir};

/// What is to be run, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The slice it is to have.
    pub request: SliceRequest,
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
    // Before any thread or child: they are to inherit the mask.
    let watch = Watch::begin()?;
    let mut agents = Vec::new();
    let created = create(run, launch, helpers, false, &mut agents)?;
    let client = Client::new(run.clone());
    let keep = || -> Result<u8, Fault> {
        let keeper = Keeper::listen(&created.directory, agent_uid(run)?)?;
        client.activate(&created.slice.id)?;
        let plan = parts.plan(run, &created, keeper.socket())?;
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
    // Where no agent runs just now, the next one finds nobody keeping the slice and clears it away.
    let _no_agent = client.end(&created.slice.id);
    outcome
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
    let ask = CreateSlice {
        request: launch.request.clone(),
        command: launch
            .command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        emulated: launch.emulated.clone(),
        dry_run,
    };
    let mut last = None;
    for _ in 0..3 {
        agents.extend(ensure_agent(run, helpers.serve)?);
        match client.create(&ask) {
            Err(fault) if fault.code == Code::AgentUnreachable => last = Some(fault),
            answer => return answer,
        }
    }
    Err(last.unwrap_or_else(|| Fault::new(Code::AgentUnreachable, "no agent answers")))
}

fn agent_uid(run: &RunDir) -> Result<u32, Fault> {
    std::fs::metadata(run.socket())
        .map(|meta| meta.uid())
        .map_err(|error| Fault::new(Code::AgentUnreachable, "the agent's socket is gone").because(&error))
}

/// What a program's environment is made of.
struct Parts {
    drop_ins: DropIns,
    limiter: Stage,
    emulated: Stage,
    /// A driver that the user named.
    named: Option<DriverBelow>,
}

impl Parts {
    fn find(run: &RunDir, launch: &Launch) -> Result<Self, Fault> {
        let drop_ins = DropIns::find()?;
        let named = launch
            .driver
            .as_deref()
            .map(|path| find_driver(Some(path), std::slice::from_ref(&drop_ins.limiter)))
            .transpose()?;
        Ok(Self {
            limiter: stage(run, &drop_ins.limiter)?,
            emulated: stage(run, &drop_ins.emulated)?,
            drop_ins,
            named,
        })
    }

    fn driver_for(&self, device: &DeviceRecord) -> Result<DriverBelow, Fault> {
        match (&self.named, device.kind) {
            (Some(named), _) => Ok(named.clone()),
            (None, DeviceKind::Emulated) => Ok(DriverBelow {
                path: self.drop_ins.emulated.clone(),
                origin: "emulated",
            }),
            (None, _) => find_driver(None, std::slice::from_ref(&self.drop_ins.limiter)),
        }
    }

    fn plan(&self, run: &RunDir, created: &CreatedSlice, socket: &Path) -> Result<Plan, Fault> {
        let driver = self.driver_for(&created.device)?;
        // Without the limiter, an emulated device is still seen through its own driver.
        let front = match (created.slice.isolation, driver.origin) {
            (Isolation::Env, "emulated") => Some(&self.emulated),
            (Isolation::Env, _) => None,
            _ => Some(&self.limiter),
        };
        let inherited = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Ok(Plan {
            environment: environment(run, created, &driver, front, socket, inherited),
            slice: created.slice.clone(),
            device: created.device.clone(),
            driver,
        })
    }
}

/// The variables of the program. What the user set for the loader stays, behind ours.
fn environment(
    run: &RunDir,
    created: &CreatedSlice,
    driver: &DriverBelow,
    front: Option<&Stage>,
    socket: &Path,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> Vec<(String, OsString)> {
    let mut variables: Vec<(String, OsString)> = Vec::new();
    let mut set = |name: &str, value: OsString| variables.push((name.into(), value));
    if let Some(stage) = front {
        set(
            "LD_PRELOAD",
            in_front(OsStr::new(&stage.preload), inherited("LD_PRELOAD"), ":"),
        );
        set(
            "LD_LIBRARY_PATH",
            in_front(stage.folder.as_os_str(), inherited("LD_LIBRARY_PATH"), ":"),
        );
        set("DIVVY_DRIVER", driver.path.clone().into());
    }
    if created.slice.isolation != Isolation::Env {
        set("DIVVY_SLICE", socket.into());
    }
    if let Some(spec) = &created.slice.emulated_spec {
        set("DIVVY_EMULATED", spec.into());
    }
    // An emulated device's memory is accounted for there, and a run inside the program is to find this agent.
    set("DIVVY_RUN_DIR", run.path().into());
    set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
    set("CUDA_VISIBLE_DEVICES", created.device.uuid.clone().into());
    variables
}

/// `ours`, then what was there, without a second `ours`: a run inside a run.
fn in_front(ours: &OsStr, inherited: Option<OsString>, separator: &str) -> OsString {
    let mut value = ours.to_os_string();
    if let Some(rest) = inherited.filter(|rest| rest != ours) {
        value.push(separator);
        value.push(rest);
    }
    value
}

fn first(command: &[OsString]) -> Result<&OsStr, Fault> {
    command.first().map(OsString::as_os_str).ok_or_else(|| {
        Fault::new(Code::Usage, "no program was named").hint("divvy run --memory 4GiB -- PROGRAM")
    })
}

/// Whether the program can be run at all, before anything is reserved for it. The rules are `execvp`'s.
fn check_program(program: &OsStr) -> Result<(), Fault> {
    let path = Path::new(program);
    if program.is_empty() {
        // Joined to a folder of PATH it would name the folder.
        return Err(not_found(program));
    }
    if path.components().count() > 1 || program.to_string_lossy().contains('/') {
        return check_file(path);
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refusal = Err(not_found(program));
    for folder in std::env::split_paths(&folders) {
        let file = folder.join(program);
        if file.exists() {
            match check_file(&file) {
                Ok(()) => return Ok(()),
                Err(fault) => refusal = Err(fault),
            }
        }
    }
    refusal
}

fn check_file(path: &Path) -> Result<(), Fault> {
    let meta = std::fs::metadata(path).map_err(|error| cannot_run(path.as_os_str(), &error))?;
    let cannot = |why: &str| {
        Err(Fault::new(
            Code::ProgramCannotRun,
            format!("cannot execute `{}`", path.display()),
        )
        .cause(why))
    };
    if meta.is_dir() {
        return cannot("it is a directory");
    }
    if access(path, Access::EXEC_OK).is_err() {
        return cannot("it lacks the execute permission");
    }
    Ok(())
}

fn not_found(program: &OsStr) -> Fault {
    Fault::new(
        Code::ProgramNotFound,
        format!("no program `{}` was found", program.to_string_lossy()),
    )
    .hint("give a path, or a name that is on PATH")
}

/// Of a script that is there the kernel says "not found" as well, when it means its interpreter.
fn no_interpreter(program: &OsStr) -> Option<Fault> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let path = match program.as_bytes().contains(&b'/') {
        true => PathBuf::from(program),
        false => std::env::split_paths(&folders)
            .map(|folder| folder.join(program))
            .find(|file| file.is_file())?,
    };
    let mut start = Vec::new();
    std::fs::File::open(&path)
        .and_then(|file| file.take(256).read_to_end(&mut start))
        .ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let interpreter = line.split_whitespace().next()?;
    let message = format!(
        "the interpreter `{interpreter}` of `{}` was not found",
        path.display()
    );
    Some(Fault::new(Code::ProgramNotFound, message).hint("install it, or mend the script's first line"))
}

fn cannot_run(program: &OsStr, error: &std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::NotFound => no_interpreter(program).unwrap_or_else(|| not_found(program)),
        _ => Fault::new(
            Code::ProgramCannotRun,
            format!("cannot execute `{}`", program.to_string_lossy()),
        )
        .because(error),
    }
}
