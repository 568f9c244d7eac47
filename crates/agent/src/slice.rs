//! A slice in the agent's hands, and its record on disk.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use divvy_ledger::attach::Pages;
use divvy_model::{Bytes, Code, Fault, Isolation, SliceRecord, SliceState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::admission::Hold;
use crate::pages::{self, Usage};
use crate::{RunDir, procs};

/// A slice the agent looks after.
#[derive(Debug)]
pub struct Slice {
    /// What is stored; usage in it is stale, [`Slice::shown`] has the present one.
    pub record: SliceRecord,
    /// Its pages, once its keeper has them.
    pub pages: Option<Pages>,
    /// What is wrong with its pages, if anything.
    pub damage: Option<Fault>,
    /// The memory of its device: no honest ledger says more.
    device_memory: Bytes,
    keeper: Option<Watched>,
}

/// A process that is known by a descriptor, so that its number cannot come to mean another.
#[derive(Debug)]
pub struct Watched {
    pid: u32,
    pidfd: Option<OwnedFd>,
}

impl Watched {
    /// Watches a process that is known to live now (it holds a connection to us).
    #[must_use]
    pub fn new(pid: u32) -> Self {
        let pidfd = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { pid, pidfd }
    }

    /// Whether it still lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Some(pidfd) = &self.pidfd else {
            return procs::is_alive(self.pid);
        };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // Readable means ended. A poll that fails proves nothing, and nobody is declared dead for it.
        !matches!(poll(&mut fds, Some(&now)), Ok(1..))
    }
}

impl Slice {
    /// A slice whose keeper is `keeper`, on a device of so much memory.
    #[must_use]
    pub fn new(record: SliceRecord, keeper: Option<u32>, device_memory: Bytes) -> Self {
        let mut slice = Self {
            record,
            pages: None,
            damage: None,
            device_memory,
            keeper: None,
        };
        slice.set_keeper(keeper);
        slice
    }

    /// Sets who keeps it.
    pub fn set_keeper(&mut self, keeper: Option<u32>) {
        self.keeper = keeper.map(Watched::new);
        self.record.keeper_pid = keeper;
    }

    /// Whether its keeper lives.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.keeper.as_ref().is_some_and(Watched::is_alive)
    }

    /// What its pages say now. Damaged pages are counted as if the slice used all it may.
    pub fn usage(&mut self) -> Usage {
        let Some(pages) = &self.pages else {
            return Usage::default();
        };
        match pages::usage(pages, self.device_memory) {
            Ok(usage) if self.damage.is_none() => usage,
            outcome => {
                if let (Err(fault), None) = (&outcome, &self.damage) {
                    tracing::error!(slice = self.record.name, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                    self.damage = Some(fault.clone());
                }
                let living = pages.ledger.processes().filter(|process| process.alive);
                let processes =
                    living
                        .map(|process| process.host_pid)
                        .map(|pid| divvy_model::ProcessRecord {
                            pid,
                            command: procs::command(pid),
                            memory_used_bytes: Bytes(0),
                        });
                Usage {
                    used: self.record.memory_limit_bytes,
                    processes: processes.collect(),
                }
            }
        }
    }

    /// The record with its present usage.
    pub fn shown(&mut self) -> SliceRecord {
        let usage = self.usage();
        let mut record = self.record.clone();
        record.memory_used_bytes = usage.used;
        record.processes = usage.processes;
        if record.state == SliceState::Running && !self.is_kept() {
            record.state = SliceState::Orphaned;
        }
        if let Some(damage) = &self.damage {
            record
                .warnings
                .push(format!("{damage}: {}", damage.causes.join(": ")));
        }
        record
    }

    /// What it holds of its device. The `env` rung limits nothing, so it is promised nothing: what its programs use
    /// is counted with everybody else's.
    #[must_use]
    pub fn hold(&self) -> Hold {
        let promised = self.record.isolation != Isolation::Env;
        let or_nothing = |bytes: Bytes| if promised { bytes } else { Bytes(0) };
        Hold {
            name: self.record.name.clone(),
            limit: or_nothing(self.record.memory_limit_bytes),
            context: or_nothing(self.record.context_bytes),
        }
    }
}

/// Where the agent keeps a slice's record: beside the keeper's directory, not in it, so that the slice's user cannot
/// change it where that is another user than the agent's.
fn record_path(run: &RunDir, id: &str) -> PathBuf {
    run.slices().join(format!("{id}.json"))
}

/// Where a slice's keeper listens.
#[must_use]
pub fn attach_socket(run: &RunDir, id: &str) -> PathBuf {
    run.slice(id).join("attach.sock")
}

/// Writes the record: aside, then renamed, so that a reader or a restart never sees half of one.
///
/// # Errors
/// [`Code::RunDir`].
pub fn store(run: &RunDir, record: &SliceRecord) -> Result<(), Fault> {
    let path = record_path(run, &record.id);
    let aside = path.with_extension("json.new");
    let write = || -> io::Result<()> {
        let mut file = fs::File::create(&aside)?;
        file.write_all(&serde_json::to_vec_pretty(record).map_err(io::Error::other)?)?;
        fs::rename(&aside, &path)
    };
    write().map_err(|error| {
        Fault::new(
            Code::RunDir,
            format!("cannot write the slice's record `{}`", path.display()),
        )
        .because(&error)
    })
}

/// The stored records. What cannot be read is logged and left where it is.
#[must_use]
pub fn stored(run: &RunDir) -> Vec<SliceRecord> {
    let mut records = Vec::new();
    for entry in fs::read_dir(run.slices()).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match fs::read(&path).map(|bytes| serde_json::from_slice::<SliceRecord>(&bytes)) {
            Ok(Ok(record)) if record_path(run, &record.id) == path => records.push(record),
            Ok(Ok(_)) => {
                tracing::warn!(path = %path.display(), "a slice's record under another name is left alone");
            }
            Ok(Err(error)) => {
                tracing::warn!(path = %path.display(), %error, "a slice's record is not understood");
            }
            Err(error) => tracing::warn!(path = %path.display(), %error, "a slice's record cannot be read"),
        }
    }
    records
}

/// Removes what lies in the run directory of a slice that has ended.
pub fn discard(run: &RunDir, id: &str) {
    for result in [
        fs::remove_file(record_path(run, id)),
        fs::remove_dir_all(run.slice(id)),
    ] {
        match result {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(slice = id, %error, "cannot remove a slice's files");
            }
            _ => {}
        }
    }
}
