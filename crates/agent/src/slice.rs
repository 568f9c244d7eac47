//! A slice in the agent's hands, and its record on disk.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use divvy_ledger::attach::Pages;
use divvy_model::{Bytes, Code, Fault, Isolation, ProcessRecord, SliceRecord, SliceState};
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
    /// Why its pages could not be had back from its keeper so far, if so. They are asked for again.
    pub missing: Option<Fault>,
    /// Without pages: the processes that use it all the same, and when they were looked for.
    found: Option<(Vec<Watched>, Instant)>,
    /// The memory of its device: no honest ledger says more.
    device_memory: Bytes,
    keeper: Option<Watched>,
    /// What it held when its pages were last read.
    last_used: Bytes,
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

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
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
            missing: None,
            found: None,
            device_memory,
            keeper: None,
            last_used: Bytes(0),
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
            return self.usage_without_pages();
        };
        match pages::usage(pages, self.device_memory) {
            Ok(usage) if self.damage.is_none() => {
                self.last_used = usage.used;
                usage
            }
            outcome => {
                if let (Err(fault), None) = (&outcome, &self.damage) {
                    tracing::error!(slice = self.record.name, code = %fault.code, "{fault}: {}", fault.causes.join(": "));
                    self.damage = Some(fault.clone());
                }
                let living = pages.ledger.processes().filter(|process| process.alive);
                let processes = living.map(|process| process.host_pid).map(of_unknown_use);
                Usage {
                    used: self.record.memory_limit_bytes,
                    processes: processes.collect(),
                    unknown: true,
                }
            }
        }
    }

    /// A slice that waits for its first pages holds nothing. One whose pages cannot be had may hold all it may, as
    /// long as a process that uses it lives.
    fn usage_without_pages(&mut self) -> Usage {
        const FRESH: Duration = Duration::from_secs(1);
        if self.missing.is_none() && self.damage.is_none() {
            return Usage::default();
        }
        let kept = self.is_kept();
        let known = self.found.take().and_then(|(mut found, looked)| {
            found.retain(Watched::is_alive);
            // Looking through all processes takes a while, so not at each tick; but before a slice ends.
            let fresh = looked.elapsed() < FRESH && (kept || !found.is_empty());
            fresh.then_some((found, looked))
        });
        let look = || (procs::in_slice(self.record.uid, &self.record.id), Instant::now());
        let (found, looked) = known.unwrap_or_else(look);
        let processes = found.iter().map(Watched::pid).map(of_unknown_use).collect();
        self.found = Some((found, looked));
        Usage {
            used: self.record.memory_limit_bytes,
            processes,
            unknown: true,
        }
    }

    /// Takes its pages from the keeper that gave them back.
    pub fn take_back(&mut self, pages: Pages, keeper: u32) {
        // A resize may have come in between.
        pages
            .grant
            .set_memory_limit_bytes(self.record.memory_limit_bytes.0);
        self.pages = Some(pages);
        self.missing = None;
        self.found = None;
        self.set_keeper(Some(keeper));
        tracing::info!(slice = self.record.name, keeper, "slice taken back");
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
        record.usage_unknown = usage.unknown;
        for damage in self.damage.iter().chain(&self.missing) {
            record
                .warnings
                .push(format!("{damage}: {}", damage.causes.join(": ")));
        }
        record
    }

    /// What it holds of its device: its limit, or what it used when last looked at where it was resized below that. The `env` rung limits nothing, so it is promised nothing: what its programs use
    /// is counted with everybody else's.
    #[must_use]
    pub fn hold(&self) -> Hold {
        let promised = self.record.isolation != Isolation::Env;
        let or_nothing = |bytes: Bytes| if promised { bytes } else { Bytes(0) };
        Hold {
            name: self.record.name.clone(),
            limit: or_nothing(self.record.memory_limit_bytes.max(self.last_used)),
            context: or_nothing(self.record.context_bytes),
        }
    }
}

fn of_unknown_use(pid: u32) -> ProcessRecord {
    ProcessRecord {
        pid,
        command: procs::command(pid),
        memory_used_bytes: Bytes(0),
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
