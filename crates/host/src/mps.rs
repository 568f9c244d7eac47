//! MPS and time slices: NVIDIA's own ways of sharing a GPU among processes of one user.
//!
//! A control daemon for each device and user, with a pipe and a log folder of its own, so that one user's clients never
//! meet another's daemon. The words of the control program are those of NVIDIA's MPS documentation.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use divvy_model::{Bytes, Code, Compute, DeviceRecord, Fault};

pub use divvy_model::TimeSlice;

use crate::tool::{Tools, first_words};

const CONTROL: &str = "nvidia-cuda-mps-control";

/// The control daemon of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mps {
    /// The device, by UUID.
    pub device: String,
    folder: PathBuf,
}

/// What a daemon says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpsState {
    /// Whether a daemon answers.
    pub running: bool,
    /// Process ids of its servers: one for each user that has clients.
    pub servers: Vec<u32>,
    /// Process ids of its clients.
    pub clients: Vec<u32>,
}

/// What clients may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits {
    /// Share of the multiprocessors.
    pub compute: Option<Compute>,
    /// Device memory.
    pub memory: Option<Bytes>,
}

/// The variable by which a client names its static partition.
pub const PARTITION: &str = "CUDA_MPS_SM_PARTITION";

impl Mps {
    /// The daemon of a device, with its folders below `run`.
    #[must_use]
    pub fn of(device: &str, run: &Path) -> Self {
        Self {
            device: device.to_owned(),
            folder: run.join("mps").join(device.replace('/', "-")),
        }
    }

    /// The daemon of a device for one user's slices. Its folders are that user's own; no other user's programs reach
    /// it.
    #[must_use]
    pub fn of_user(device: &str, run: &Path, uid: u32) -> Self {
        Self {
            device: device.to_owned(),
            folder: run
                .join("mps")
                .join(format!("user-{uid}"))
                .join(device.replace('/', "-")),
        }
    }

    /// Where its pipe and its log are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Variables of the daemon and of its clients.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let folder = |name: &str| self.folder.join(name).to_string_lossy().into_owned();
        vec![
            ("CUDA_MPS_PIPE_DIRECTORY", folder("pipe")),
            ("CUDA_MPS_LOG_DIRECTORY", folder("log")),
        ]
    }

    /// Variables of a client with limits. Under MPS devices are chosen by the daemon, which has one.
    #[must_use]
    pub fn client_environment(&self, limits: ClientLimits) -> Vec<(&'static str, String)> {
        let mut variables = self.environment();
        if let Some(compute) = limits.compute {
            variables.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent(compute)));
        }
        if let Some(memory) = limits.memory {
            variables.push((
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                format!("0={}M", mebibytes(memory)),
            ));
        }
        variables
    }

    /// Starts the daemon; nothing where it runs. `partitioned` starts it for static partitions of multiprocessors.
    ///
    /// # Errors
    /// [`Code::Tool`]; [`Code::RunDir`] where its folders cannot be made.
    pub fn start(&self, tools: &mut dyn Tools, partitioned: bool) -> Result<(), Fault> {
        if self.state(tools)?.running {
            return Ok(());
        }
        for name in ["pipe", "log"] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(self.folder.join(name))
                .map_err(|error| {
                    Fault::new(
                        Code::RunDir,
                        format!("cannot make `{}`", self.folder.join(name).display()),
                    )
                    .because(&error)
                })?;
        }
        let mut environment = self.environment();
        environment.push(("CUDA_VISIBLE_DEVICES", self.device.clone()));
        let words: &[&str] = if partitioned { &["-d", "-S"] } else { &["-d"] };
        tools.run(CONTROL, words, &environment, "")?;
        if self.state(tools)?.running {
            return Ok(());
        }
        Err(
            Fault::new(Code::Tool, "the MPS control daemon started and does not answer")
                .hint(format!("its log is in {}", self.folder.join("log").display())),
        )
    }

    /// Ends the daemon, its servers and, after ten seconds, their clients; nothing where none runs.
    ///
    /// # Errors
    /// [`Code::MigBusy`] where clients run and `force` is not set; [`Code::Tool`].
    pub fn stop(&self, tools: &mut dyn Tools, force: bool) -> Result<(), Fault> {
        let state = self.state(tools)?;
        if !state.running {
            return Ok(());
        }
        if let (Some(client), false) = (state.clients.first(), force) {
            return Err(Fault::new(
                Code::MigBusy,
                format!("process {client} is a client of this MPS daemon"),
            )
            .hint("end it first, or stop with --force"));
        }
        let word = if force { "quit -f\n" } else { "quit -t 10\n" };
        self.say(tools, word).map(drop)
    }

    /// Whether a daemon answers, and who its clients are.
    ///
    /// # Errors
    /// [`Code::Tool`] where the control program hangs or says what is not understood.
    pub fn state(&self, tools: &mut dyn Tools) -> Result<MpsState, Fault> {
        // The daemon listens there; without one the control program only fails. Another user's folder proves nothing.
        if matches!(self.folder.join("pipe").join("control").try_exists(), Ok(false)) {
            return Ok(MpsState::default());
        }
        let servers = match self.say(tools, "get_server_list\n") {
            Err(fault) if is_none_there(&fault) => return Ok(MpsState::default()),
            said => numbers(&said?)?,
        };
        let mut clients = Vec::new();
        for server in &servers {
            clients.extend(numbers(
                &self.say(tools, &format!("get_client_list {server}\n"))?,
            )?);
        }
        Ok(MpsState {
            running: true,
            servers,
            clients,
        })
    }

    /// Limits of clients that come after this.
    ///
    /// # Errors
    /// [`Code::Tool`].
    pub fn limit(&self, tools: &mut dyn Tools, limits: ClientLimits) -> Result<(), Fault> {
        if let Some(compute) = limits.compute {
            let line = format!("set_default_active_thread_percentage {}\n", percent(compute));
            self.say(tools, &line)?;
        }
        if let Some(memory) = limits.memory {
            let line = format!("set_default_device_pinned_mem_limit 0 {}M\n", mebibytes(memory));
            self.say(tools, &line)?;
        }
        Ok(())
    }

    /// Makes a static partition of this many chunks of multiprocessors; returns its name.
    ///
    /// # Errors
    /// [`Code::Tool`], also from a driver that has no such partitions.
    pub fn add_partition(&self, tools: &mut dyn Tools, chunks: u32) -> Result<String, Fault> {
        let said = self.say(tools, &format!("sm_partition add {} {chunks}\n", self.device))?;
        let last = said.split_whitespace().last().filter(|word| word.len() > 8);
        last.map(str::to_owned)
            .ok_or_else(|| unclear("sm_partition add", &said))
    }

    /// Gives a static partition back.
    ///
    /// # Errors
    /// [`Code::Tool`].
    pub fn remove_partition(&self, tools: &mut dyn Tools, name: &str) -> Result<(), Fault> {
        self.say(tools, &format!("sm_partition rm {name}\n")).map(drop)
    }

    fn say(&self, tools: &mut dyn Tools, line: &str) -> Result<String, Fault> {
        let said = tools.run(CONTROL, &[], &self.environment(), line)?;
        // Its status is 0 whatever happened; the error is in the text.
        let lower = said.to_lowercase();
        if ["cannot find", "error", "invalid", "failed", "unknown command"]
            .iter()
            .any(|word| lower.contains(word))
        {
            return Err(
                Fault::new(Code::Tool, format!("the MPS daemon refuses `{}`", line.trim()))
                    .cause(first_words(&said)),
            );
        }
        Ok(said)
    }
}

/// How many chunks of multiprocessors come nearest to a share of a device, from below, and one at least. A chunk is 4
/// before Hopper and 8 since (NVIDIA's MPS documentation, "Static SM partitioning").
#[must_use]
pub fn chunks(device: &DeviceRecord, share: Compute) -> u32 {
    let major = device
        .compute_capability
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    let chunk: u32 = if major.unwrap_or(0_u32) < 9 { 4 } else { 8 };
    let part = u64::from(device.sm_count) * u64::from(share.0) / u64::from(Compute::WHOLE.0);
    (u32::try_from(part).unwrap_or(u32::MAX) / chunk).max(1)
}

/// Whether the control program complains that there is no daemon.
fn is_none_there(fault: &Fault) -> bool {
    let mut causes = fault.causes.iter();
    causes.any(|cause| cause.to_lowercase().contains("cannot find mps control daemon"))
}

fn percent(compute: Compute) -> String {
    let parts = compute.0;
    match parts % 100 {
        0 => (parts / 100).to_string(),
        _ => format!("{}.{:02}", parts / 100, parts % 100),
    }
}

fn mebibytes(bytes: Bytes) -> u64 {
    bytes.0 >> 20
}

fn numbers(said: &str) -> Result<Vec<u32>, Fault> {
    let words = said.split_whitespace().map(str::parse);
    words
        .collect::<Result<_, _>>()
        .map_err(|_| unclear("a list of processes", said))
}

fn unclear(what: &str, said: &str) -> Fault {
    Fault::new(
        Code::Tool,
        format!("{CONTROL} answers `{what}` with what is not understood"),
    )
    .cause(first_words(said))
}

/// Sets the time slice of a device, by UUID.
///
/// # Errors
/// [`Code::Tool`].
pub fn set_time_slice(tools: &mut dyn Tools, device: &str, slice: TimeSlice) -> Result<(), Fault> {
    let word = format!("--set-timeslice={}", slice.code());
    let said = tools.run("nvidia-smi", &["compute-policy", "-i", device, &word], &[], "")?;
    if said.to_lowercase().contains("successfully") {
        return Ok(());
    }
    Err(Fault::new(Code::Tool, "nvidia-smi did not set the time slice").cause(first_words(&said)))
}
