//! What every verb needs: settings, output format, the run directory, and a way to the agent.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use divvy_agent::{Client, RunDir, default_run_dir, ensure_agent, is_listening, unmanaged_processes};
use divvy_host::machine::Sysroot;
use divvy_host::{Inventory, Nvidia, Sources, Survey};
use divvy_model::{Code, Fault, UnmanagedRecord};

use crate::config::{self, Config};
use crate::output::Format;

/// What the command line says beside its verb.
#[derive(Debug, Default)]
pub struct Options {
    /// How lists are to be printed.
    pub output: Option<Format>,
    /// The run directory of the agent to talk to.
    pub run_dir: Option<PathBuf>,
    /// Whether the verb runs a program, which the settings of its folder are for too.
    pub runs_program: bool,
    /// Whether the verb takes nothing from settings. Slurm runs such verbs in a job's environment, and what a user has in a
    /// variable or a file there, or cannot read, is to keep no job from its start.
    pub without_settings: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Context {
    /// The settings.
    pub config: Config,
    /// How lists are printed.
    pub format: Format,
    run_dir: PathBuf,
}

impl Context {
    /// Reads the settings, which the options of the command line come before.
    ///
    /// # Errors
    /// [`Code::Config`].
    pub fn new(options: &Options) -> Result<Self, Fault> {
        let mut config = match options.without_settings {
            true => Config::default(),
            false => Config::read(&config::Sources::of_process(options.runs_program))?,
        };
        if let Some(path) = &options.run_dir {
            config.set("run_dir", path.to_string_lossy());
        }
        let format = match options.output {
            Some(format) => format,
            None => config.get("output")?.unwrap_or_default(),
        };
        let run_dir = config.text("run_dir").map_or_else(default_run_dir, PathBuf::from);
        Ok(Self {
            config,
            format,
            run_dir,
        })
    }

    /// The run directory, made where it is missing.
    ///
    /// # Errors
    /// [`Code::RunDir`], [`Code::RunDirPath`].
    pub fn run_dir(&self) -> Result<RunDir, Fault> {
        RunDir::open(&self.run_dir)
    }

    /// The run directory, to look only.
    pub fn peek(&self) -> RunDir {
        RunDir::peek(&self.run_dir)
    }

    /// The agent, if one listens.
    pub fn agent_if_any(&self) -> Option<Client> {
        let run = self.peek();
        is_listening(&run).then(|| Client::new(run))
    }

    /// The agent that looks after slices that exist: where it has died it is started, and takes them back. None
    /// where there is neither agent nor slice.
    ///
    /// # Errors
    /// [`Code::AgentStart`] and what the run directory refuses.
    pub fn agent_of_slices(&self) -> Result<Option<Client>, Fault> {
        let run = self.peek();
        if is_listening(&run) {
            let agent = Client::new(run.clone());
            // One that is just being killed still listens for a moment.
            match agent.status() {
                Err(fault) if fault.code == Code::AgentUnreachable => {}
                _ => return Ok(Some(agent)),
            }
        }
        run.check_kind()?;
        if !run.has_slices() {
            return Ok(None);
        }
        let run = self.run_dir()?;
        drop(ensure_agent(&run, || in_background(&run))?);
        Ok(Some(Client::new(run)))
    }

    /// The agent, started where none runs.
    ///
    /// # Errors
    /// [`Code::AgentStart`] and what the run directory refuses.
    pub fn agent(&self) -> Result<Client, Fault> {
        // A setting with which it would not start is better reported here than in its log.
        self.config.agent_settings()?;
        let run = self.run_dir()?;
        drop(ensure_agent(&run, || in_background(&run))?);
        Ok(Client::new(run))
    }

    /// The agent, for a verb that makes no sense without one.
    ///
    /// # Errors
    /// As [`Self::agent_of_slices`]; [`Code::UnknownSlice`] for `slice` where there is none at all.
    pub fn agent_for(&self, slice: &str) -> Result<Client, Fault> {
        self.agent_of_slices()?.ok_or_else(|| {
            Fault::new(Code::UnknownSlice, format!("there is no slice `{slice}`"))
                .cause("no agent runs, and no slice is left")
                .hint("`divvy run` makes slices; `divvy ps` lists them")
        })
    }

    /// The processes that use the devices of this machine, where no agent says whose they are.
    ///
    /// # Errors
    /// As [`Self::inventory`].
    pub fn unmanaged_processes(&self) -> Result<Vec<UnmanagedRecord>, Fault> {
        let devices = self.inventory()?.devices;
        Ok(unmanaged_processes(
            &Nvidia::open(),
            self.peek().path(),
            &devices,
        )?)
    }

    /// The devices of this machine, as seen without an agent.
    ///
    /// # Errors
    /// [`Code::Config`]; [`Code::RunDir`] when the run directory is something else.
    pub fn inventory(&self) -> Result<Inventory, Fault> {
        self.peek().check_kind()?;
        divvy_host::take(&self.sources(), &Nvidia::open())
    }

    /// Everything this machine has, or the machine captured below `sysroot`.
    ///
    /// # Errors
    /// As [`Self::inventory`]; [`Code::Usage`] where there is no such folder.
    pub fn survey(&self, sysroot: Option<&Path>) -> Result<Survey, Fault> {
        if let Some(path) = sysroot.filter(|path| !path.is_dir()) {
            let message = format!("there is no folder `{}`", path.display());
            return Err(Fault::new(Code::Usage, message).hint("name one that holds `sys` and `proc`"));
        }
        self.peek().check_kind()?;
        let (sources, root) = (self.sources(), sysroot.map(Sysroot::at));
        with_timeout(move || divvy_host::survey(&sources, root.as_ref()))
    }

    fn sources(&self) -> Sources {
        Sources {
            emulated: self.config.text("emulated").map(str::to_owned),
            run_dir: self.peek().path().into(),
        }
    }
}

/// Asks what may have to ask NVIDIA's library, which waits for ever where the driver hangs.
///
/// # Errors
/// [`Code::Driver`] where there is no answer in time.
pub fn with_timeout<T: Send + 'static>(
    question: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    /// A machine with sixteen GPUs that nothing has used since it started takes some seconds.
    const TIMEOUT: Duration = Duration::from_secs(15);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _gone = sender.send(question());
    });
    receiver.recv_timeout(TIMEOUT).unwrap_or_else(|_| {
        let message = format!("NVIDIA's library does not answer within {} s", TIMEOUT.as_secs());
        Err(Fault::new(Code::Driver, message).hint(
            "the driver may hang: look at the kernel's log for Xid errors; `divvy devices --sysroot /` asks the kernel only",
        ))
    })
}

/// The same in a session of its own.
pub fn in_background(run: &RunDir) -> Command {
    let mut command = serve_command(run);
    command.arg("--background");
    command
}

/// The command that keeps a lasting slice.
pub fn keep_command(run: &RunDir, id: &str) -> Command {
    // By the running file itself: it may have been replaced or removed since.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("divvy")
        .args(["keep", id])
        .env("DIVVY_RUN_DIR", run.path());
    command
}

/// The command that becomes the program named after it.
pub fn enter_command() -> Command {
    // By the running file itself: it may have been replaced or removed since.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("divvy").args(["enter", "--"]);
    command
}

/// The command that serves a run directory. The agent is the host's, not the program's: the caller's settings for its
/// own programs do not follow it.
pub fn serve_command(run: &RunDir) -> Command {
    let executable = std::env::current_exe().unwrap_or_else(|_| "divvy".into());
    let mut command = Command::new(executable);
    command.args(["agent", "serve"]).env("DIVVY_RUN_DIR", run.path());
    for name in [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "CUDA_VISIBLE_DEVICES",
        "DIVVY_SLICE",
        "DIVVY_NVML",
        "DIVVY_OUTPUT",
    ] {
        command.env_remove(name);
    }
    command
}
