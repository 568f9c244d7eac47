//! `divvy run`: a slice, its page server, and the program inside.

pub(crate) mod client;
mod elf;
mod emulation;
mod observe;
mod parts;
mod program;
pub(crate) mod stage;
pub(crate) mod supervise;
mod without_device;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use divvy_host::DriverBelow;
use divvy_model::{Code, DeviceRecord, Fault, Isolation, LifetimeAnchor, Policy, SliceRecord, SliceRequest};

pub use self::emulation::emulation;
pub use self::observe::{become_program, observation, observe};
use self::parts::Parts;
pub use self::parts::remote_environment;
use self::program::{cannot_run, check_program, first};
use crate::api::events::EventKind;
use crate::api::{CreateSlice, CreatedSlice, Join, Standing, Wait};
use crate::launch::client::Client;
use crate::launch::supervise::{Watch, exit_code, let_go};
use crate::page_server::PageServer;
use crate::start::on_demand::ensure_agent;
use crate::start::rundir::RunDir;

/// The program to run, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The request for its slice.
    pub request: SliceRequest,
    /// The lasting slice it is to join instead, by name or id.
    pub join: Option<String>,
    /// Where no space is free: how long to queue at most, or without a limit.
    pub wait: Option<Option<Duration>>,
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
    /// A callback for the place in the queue.
    pub waiting: &'a dyn Fn(&Standing),
    /// A callback for when the agent ended a process of the program's, and why.
    pub ended: &'a dyn Fn(&Fault),
    /// A callback for what the program's own slice used in all, when the program has ended.
    pub used: &'a dyn Fn(&Used),
}

/// What a slice used from its beginning to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    /// The slice, as it last was.
    pub slice: SliceRecord,
    /// What it had of its devices' time, where that is counted.
    pub device_time: Option<Duration>,
}

/// A slice that is ready, with the environment of the program.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The slice.
    pub slice: SliceRecord,
    /// Its device, the first of several.
    pub device: DeviceRecord,
    /// All its devices, in order.
    pub devices: Vec<DeviceRecord>,
    /// The driver below.
    pub driver: DriverBelow,
    /// Variables that are set for the program, in order.
    pub environment: Vec<(String, OsString)>,
    /// What the user should know, in sentences.
    pub remarks: Vec<String>,
}

/// Reports what would happen, and changes nothing except that it starts an agent where none runs.
///
/// # Errors
/// Any error that would stop the real run.
pub fn plan(run: &RunDir, launch: &Launch, helpers: &Helpers<'_>) -> Result<Plan, Fault> {
    check_program(first(&launch.command)?)?;
    let parts = Parts::find(run, launch)?;
    let mut agents = Vec::new();
    let created = create(run, launch, helpers, true, &mut agents)?;
    crate::lookout::bypass::judge(first(&launch.command)?, &created.slice)?;
    parts.plan(run, &created, &created.directory.join("attach.sock"))
}

/// Puts the libraries that programs load into the run directory, as its owner or root does before others run there.
///
/// # Errors
/// [`Code::DropIn`], [`Code::RunDir`].
pub fn put_libraries(run: &RunDir) -> Result<(), Fault> {
    Parts::find(run, &joining("")).map(drop)
}

/// Has the step of a job around the caller join the job's slice, and tells what its programs' environment is.
///
/// # Errors
/// As [`plan`]; [`Code::UnknownSlice`], [`Code::NotAllowed`].
pub fn join_step(run: &RunDir, slice: &str) -> Result<Plan, Fault> {
    let parts = Parts::find(run, &joining(slice))?;
    let join = Join {
        command: Vec::new(),
        inside: None,
        step: true,
        dry_run: false,
    };
    let created = Client::new(run.clone()).join(slice, &join)?;
    parts.plan(run, &created, &created.directory.join("attach.sock"))
}

fn joining(slice: &str) -> Launch {
    Launch {
        request: SliceRequest::default(),
        join: Some(slice.to_owned()),
        wait: None,
        command: Vec::new(),
        driver: None,
        emulated: None,
    }
}

/// Runs the program in a slice of its own. `ready` gets the plan before the program starts. Returns the exit status as
/// a shell gives it.
///
/// # Errors
/// The error that stopped the program from starting; nothing is left behind then.
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
    // This comes before any thread, and before the program, because they must inherit the mask. Until here a signal
    // ends this process, and the agent finds that the slice has no page server.
    let watch = Watch::begin()?;
    let keep = || -> Result<u8, Fault> {
        let _page_server = match created.joined {
            true => None,
            false => Some(take_up(run, &created, helpers, &mut agents)?),
        };
        let mut plan = parts.plan(run, &created, &created.directory.join("attach.sock"))?;
        plan.remarks = without_device::remarks(program, &created.slice);
        if let Some(bypass) = crate::lookout::bypass::judge(program, &created.slice)? {
            crate::lookout::bypass::count(&created.directory.join("attach.sock"), bypass);
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
    let terms = created.slice.terms;
    let may_be_ended = terms.policy == Policy::Strict || terms.isolation == Isolation::Supervised;
    if matches!(outcome, Ok(1..)) && may_be_ended {
        for fault in ended_by_agent(run, &created.slice.id) {
            (helpers.ended)(&fault);
        }
    }
    let goes = goes_with_this_run(&created.slice);
    if (!created.joined || goes)
        && let Some(used) = used(run, &created.slice.id)
    {
        (helpers.used)(&used);
    }
    if created.joined && goes {
        end_with_workers(run, &created.slice.id);
    }
    if !created.joined {
        // Where no agent runs just now, the next one finds the slice without a page server and clears it away.
        let _no_agent = Client::new(run.clone()).end(&created.slice.id);
    }
    outcome
}

/// What a slice used; nothing where no agent runs.
fn used(run: &RunDir, id: &str) -> Option<Used> {
    let agent = Client::new(run.clone());
    let slice = agent.slice(id).ok()?;
    let compute = agent
        .compute()
        .map_or_else(|_| Vec::new(), |list| list.body.items);
    let charged = compute.iter().filter(|record| record.slice_id == id);
    let device_time = charged
        .map(|record| record.charged_ns)
        .reduce(u64::saturating_add);
    Some(Used {
        slice,
        device_time: device_time.filter(|ns| *ns > 0).map(Duration::from_nanos),
    })
}

/// Whether the slice goes with this very process.
fn goes_with_this_run(slice: &SliceRecord) -> bool {
    let own = std::process::id();
    matches!(slice.lifetime_anchor, Some(LifetimeAnchor::Process { pid, .. }) if pid == own)
}

/// Ends a slice with workers, which end a moment after their programs. Where that takes long, or no agent runs, the agent
/// does it later: the slice goes with this process.
fn end_with_workers(run: &RunDir, slice: &str) {
    const TRIES: u32 = 50;
    const MOMENT: Duration = Duration::from_millis(10);
    let client = Client::new(run.clone());
    for _ in 0..TRIES {
        match client.end(slice) {
            Err(fault) if fault.code == Code::SliceBusy => std::thread::sleep(MOMENT),
            _ => return,
        }
    }
}

/// Why the agent ended processes of this run, if it did. A program may survive the end of one of its processes, so this
/// is for programs that failed.
fn ended_by_agent(run: &RunDir, slice: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let own = Some(std::process::id());
    // An agent that no longer runs has ended no process.
    let _no_agent = Client::new(run.clone()).events(None, false, |event| {
        if event.run_pid != own || event.slice_id.as_deref() != Some(slice) {
            return true;
        }
        match event.kind {
            EventKind::Bypassed => faults.push(Fault::new(Code::NotEnforceable, event.message).hint(
                "a driver that is opened as libcuda.so.1, without a path, is limited; `--policy best-effort` runs what is not, and counts it",
            )),
            EventKind::OveruseEnded => faults.push(Fault::new(Code::Overuse, event.message).hint(
                "ask for more with --memory; `--on-overuse report` ends nothing, `divvy explain isolation` tells more",
            )),
            _ => {}
        }
        true
    });
    // A process that is outside the limiter and holds too much is told of twice: how much it held says more.
    if faults.iter().any(|fault| fault.code == Code::Overuse) {
        faults.retain(|fault| fault.code == Code::Overuse);
    }
    faults
}

/// Becomes the page server of a slice that was admitted. An agent that died since is replaced: the new one finds the
/// slice admitted.
fn take_up(
    run: &RunDir,
    created: &CreatedSlice,
    helpers: &Helpers<'_>,
    agents: &mut Vec<Child>,
) -> Result<PageServer, Fault> {
    let id = &created.slice.id;
    let mut insist = Insist { run, helpers, agents };
    let page_server = insist.on(|| PageServer::fetch(run, id))?;
    let client = Client::new(run.clone());
    insist.on(|| client.activate(id))?;
    Ok(page_server)
}

/// Becomes the program, and unblocks the signals that `divvy run` blocks. Returns only on failure.
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

/// Asks for the slice.
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
    let mut insist = Insist { run, helpers, agents };
    if let Some(slice) = &launch.join {
        let join = Join {
            command,
            inside: surroundings(),
            step: false,
            dry_run,
        };
        return insist.on(|| client.join(slice, &join));
    }
    let ask = CreateSlice {
        request: launch.request.clone(),
        command,
        emulated: launch.emulated.clone(),
        visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        inside: surroundings(),
        dry_run,
        ..CreateSlice::default()
    };
    match launch.wait.filter(|_| !dry_run) {
        None => insist.on(|| client.create(&ask)),
        Some(limit) => in_line(&client, ask, limit, &mut insist),
    }
}

/// Queues until the slice is there. The agent keeps the place for as long as this process lives; a new agent finds it
/// in the old one's records.
fn in_line(
    client: &Client,
    ask: CreateSlice,
    limit: Option<Duration>,
    insist: &mut Insist<'_, '_>,
) -> Result<CreatedSlice, Fault> {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let begin = Instant::now();
    let mut wait = Wait {
        ask,
        ticket: None,
        told: None,
        timeout_ms: 0,
    };
    loop {
        let left = limit.map_or(TIMEOUT, |limit| limit.saturating_sub(begin.elapsed()));
        wait.timeout_ms = u64::try_from(left.min(TIMEOUT).as_millis()).unwrap_or(0);
        let standing = insist.on(|| client.wait(&wait))?;
        if let Some(created) = standing.created {
            return Ok(created);
        }
        let place = Some((standing.place, standing.count));
        if wait.told != place {
            (insist.helpers.waiting)(&standing);
        }
        wait.told = place;
        if left.is_zero() {
            let mut fault = Fault::new(
                Code::WaitOver,
                format!("no room was found in {} s of waiting", begin.elapsed().as_secs()),
            );
            if let Some(why) = &standing.why {
                fault = fault.after(why);
                fault.hint.clone_from(&why.hint);
            }
            return Err(fault);
        }
        wait.ticket = Some(standing.ticket);
    }
}

/// Asks the agent; one that was about to end, or died, is replaced.
struct Insist<'a, 'b> {
    run: &'a RunDir,
    helpers: &'a Helpers<'b>,
    agents: &'a mut Vec<Child>,
}

impl Insist<'_, '_> {
    fn on<T>(&mut self, ask: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
        /// An agent that is about to die may still listen for a moment: this waits for that moment.
        const TRIES: u32 = 40;
        const MOMENT: Duration = Duration::from_millis(50);
        let mut last = None;
        for attempt in 0..TRIES {
            if attempt > 0 {
                std::thread::sleep(MOMENT);
            }
            self.agents.extend(ensure_agent(self.run, self.helpers.serve)?);
            match ask() {
                Err(fault) if fault.code == Code::AgentUnreachable => last = Some(fault),
                answer => return answer,
            }
        }
        Err(last.unwrap_or_else(|| Fault::new(Code::AgentUnreachable, "no agent answers")))
    }
}

/// The slice named in the environment, by id, which is the name of its socket's folder.
fn surroundings() -> Option<String> {
    let socket = PathBuf::from(std::env::var_os("DIVVY_SLICE")?);
    let folder = socket.parent()?.file_name()?.to_str()?;
    Some(folder.to_owned())
}
