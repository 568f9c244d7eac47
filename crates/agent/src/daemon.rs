//! The agent: its parts, their assembly, and the work of each tick.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_host::{Inventory, Nvidia, Sources};
use divvy_model::{Code, Fault, SliceRecord};

use crate::accounts::Accounts;
use crate::admission::admit::Admission;
use crate::admission::claims::Claims;
use crate::admission::create::Requests;
use crate::admission::home::Homes;
use crate::admission::place::Placing;
use crate::admission::queue::Line;
use crate::api::events::EventKind;
use crate::api::{HelperState, Status};
use crate::holder::PageHolder;
use crate::journal::history::History;
use crate::journal::{Incident, Journal};
use crate::leasing::{Leasing, monotonic};
use crate::life::adopt::Adoption;
use crate::life::anchors::LifetimeAnchors;
use crate::life::container::Containers;
use crate::life::ending::Endings;
use crate::life::expiry::Expiries;
use crate::life::grants::Grants;
use crate::life::lists::Lists;
use crate::life::members::{Members, Roster};
use crate::life::page_servers::PageServers;
use crate::life::records::stored;
use crate::life::resize::Resizing;
use crate::life::slice::Slice;
use crate::life::workers::Workers;
use crate::lookout::audit::MemoryAudit;
use crate::lookout::bypass::audit::Auditor;
use crate::lookout::bypass::reported::Reports;
use crate::lookout::meter::ComputeAudit;
use crate::lookout::openings::Openings;
use crate::lookout::silence::DriverWatch;
use crate::modes::keep::Modes;
use crate::modes::on_demand::Instances;
use crate::modes::untidy::Untidy;
use crate::start::log;
use crate::start::rundir::{KeepCommand, RunDir};
use crate::start::settings::{Current, ReadSettings, Settings};
use crate::start::trust::is_system;
use crate::state::{Shared, State};
use crate::supervisor::Supervisor;
use crate::system::locks::Locks;
use crate::system::nudge::Nudge;
use crate::system::{clock, privilege};

/// How often the devices are asked for the memory of each process.
const AUDIT: Duration = Duration::from_secs(1);

/// The agent. Every method of its parts blocks, briefly; the server calls them off its loop.
pub struct Daemon {
    pub(crate) run: RunDir,
    pub(crate) settings: Arc<Current>,
    /// The agent's own user.
    pub(crate) uid: u32,
    /// Which user each user counts for.
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) nvidia: Arc<Nvidia>,
    started_at: String,
    pub(crate) state: Shared,
    pub(crate) journal: Arc<Journal>,
    pub(crate) leasing: Arc<Leasing>,
    pub(crate) members: Arc<Members>,
    pub(crate) audit: Arc<MemoryAudit>,
    pub(crate) compute_audit: ComputeAudit,
    pub(crate) driver: Arc<DriverWatch>,
    pub(crate) bypasses: Auditor,
    pub(crate) reports: Reports,
    pub(crate) holder: Arc<PageHolder>,
    pub(crate) modes: Arc<Modes>,
    pub(crate) endings: Arc<Endings>,
    pub(crate) expiries: Expiries,
    pub(crate) page_servers: Arc<PageServers>,
    pub(crate) adoption: Arc<Adoption>,
    pub(crate) anchors: Arc<LifetimeAnchors>,
    pub(crate) containers: Containers,
    pub(crate) resizing: Resizing,
    pub(crate) supervisor: Arc<Supervisor>,
    pub(crate) lists: Arc<Lists>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) line: Arc<Line>,
    pub(crate) requests: Requests,
    /// This is raised when the auditor of bypasses has something new to look at.
    pub(crate) unmanaged: Arc<Nudge>,
    /// The time of the last check of the log's length.
    log_looked_at: Mutex<Option<Instant>>,
}

impl Daemon {
    /// Builds an agent that has looked at the machine and taken back the slices of its predecessor.
    ///
    /// # Errors
    /// [`Code::Config`] for a specification of emulated devices that is not understood; [`Code::Driver`] where NVIDIA's
    /// library does not answer.
    pub fn start(run: RunDir, settings: Settings, keep: KeepCommand) -> Result<Self, Fault> {
        Self::start_over(run, settings, keep, Nvidia::open())
    }

    /// [`Self::start`] with an NVML that is already open.
    ///
    /// # Errors
    /// The same.
    pub fn start_over(
        run: RunDir,
        settings: Settings,
        keep: KeepCommand,
        nvidia: Nvidia,
    ) -> Result<Self, Fault> {
        let sources = Sources {
            emulated: settings.emulated.clone(),
            run_dir: run.path().into(),
        };
        let inventory = match divvy_host::take(&sources, &nvidia) {
            // With slices to look after, the agent waits for their devices: without them it would take the devices for
            // gone.
            Err(silence) if silence.code == Code::Driver && stored(&run).is_empty() => Inventory {
                run_dir: sources.run_dir.clone(),
                unanswered: Some(Fault {
                    code: Code::NoDevice,
                    ..silence
                }),
                ..Inventory::default()
            },
            outcome => outcome?,
        };
        let user = rustix::process::getuid();
        let uid = user.as_raw();
        let accounts = Accounts::of_machine();
        let journal = Arc::new(Journal::at(run.clone(), uid, accounts.clone()));
        journal.note(Incident {
            kind: EventKind::AgentStarted,
            slice: None,
            owner: None,
            device: None,
            run: None,
            message: format!(
                "agent {} of version {} serves",
                std::process::id(),
                env!("CARGO_PKG_VERSION")
            ),
        });
        let quantum = u64::try_from(settings.quantum.as_nanos()).unwrap_or(u64::MAX);
        let lengths = divvy_arbiter::Settings::with_quantum(quantum).ok_or_else(|| {
            Fault::new(Code::Config, "the quantum is from 1 ms to 30 ms")
                .hint("5ms is the default: shorter ones change the slice that runs more often, longer ones let it wait")
        })?;
        let daemon = Self::put_together(Parts {
            prevails: user.is_root() || is_system(run.path()),
            is_systems: is_system(run.path()),
            leasing: Leasing::start(lengths, journal.clone()),
            run,
            settings,
            keep,
            uid,
            nvidia,
            journal,
            accounts,
            inventory,
        });
        daemon.adoption.adopt();
        daemon.supervisor.begin();
        daemon.anchors.watch_for_containers();
        daemon.holder.adopt();
        daemon.admission.claims.take_all(&mut daemon.state.lock());
        daemon.line.reopen();
        Ok(daemon)
    }

    /// Each part holds what it needs, and no part holds the agent.
    fn put_together(parts: Parts) -> Self {
        let Parts {
            run,
            settings,
            keep,
            uid,
            prevails,
            is_systems,
            nvidia,
            journal,
            leasing,
            accounts,
            inventory,
        } = parts;
        let (admits_others, mig_instances) = (settings.admit_others, settings.mig_instances);
        let (settings, nvidia) = (Arc::new(Current::of(settings)), Arc::new(nvidia));
        let state = Shared::of(State::with(inventory, accounts.clone()));
        let unmanaged = Arc::new(Nudge::default());
        let untidy = Arc::new(Untidy::default());
        let members = Arc::new(Members {
            run: run.clone(),
            roster: Roster::default(),
        });
        let audit = Arc::new(MemoryAudit {
            run: run.clone(),
            nvidia: nvidia.clone(),
            settings: settings.clone(),
            members: members.clone(),
            unmanaged: unmanaged.clone(),
        });
        let driver = Arc::new(DriverWatch {
            nvidia: nvidia.clone(),
            journal: journal.clone(),
            silent: AtomicBool::new(false),
        });
        let supervisor = Arc::new(Supervisor {
            ends: AtomicBool::new(false),
            run: run.clone(),
            keep,
            nvidia: nvidia.clone(),
            settings: settings.clone(),
            state: state.clone(),
            leasing: leasing.clone(),
            members: members.clone(),
            journal: journal.clone(),
            known: Mutex::default(),
            clock: monotonic,
            nodes: crate::lookout::opened::nodes,
            frozen: Mutex::default(),
            ended: AtomicU64::new(0),
            freezes: AtomicU64::new(0),
        });
        let lists = Arc::new(Lists {
            uid,
            supervisor: supervisor.clone(),
            settings: settings.clone(),
            nvidia: nvidia.clone(),
            state: state.clone(),
            leasing: leasing.clone(),
            audit: audit.clone(),
            driver: driver.clone(),
        });
        let grants = Arc::new(Grants {
            run: run.clone(),
            leasing: leasing.clone(),
            untidy: untidy.clone(),
        });
        let claims = Arc::new(Claims {
            run: run.clone(),
            uid,
            prevails,
            admits_others,
        });
        let holder = Arc::new(PageHolder {
            run: run.clone(),
            uid,
            keep,
            state: state.clone(),
            holder: Mutex::default(),
        });
        let modes = Arc::new(Modes {
            run: run.clone(),
            uid,
            state: state.clone(),
            alone: Mutex::new(()),
            untidy,
            instances: Instances {
                run: run.clone(),
                nvidia: nvidia.clone(),
                state: state.clone(),
                are_made: mig_instances,
            },
        });
        let endings = Arc::new(Endings {
            run: run.clone(),
            uid,
            state: state.clone(),
            journal: journal.clone(),
            members: members.clone(),
            grants: grants.clone(),
            history: Arc::new(History::of(run.clone(), journal.clone())),
        });
        let page_servers = Arc::new(PageServers {
            run: run.clone(),
            state: state.clone(),
            journal: journal.clone(),
            grants: grants.clone(),
            keep,
            keeping: Locks::default(),
            workers: Arc::new(Workers {
                run: run.clone(),
                state: state.clone(),
                journal: journal.clone(),
                starting: Locks::default(),
                settings: settings.clone(),
            }),
            said_at: Mutex::new(None),
        });
        let adoption = Arc::new(Adoption {
            run: run.clone(),
            state: state.clone(),
            journal: journal.clone(),
            grants: grants.clone(),
            claims: claims.clone(),
            recalling: Mutex::new(()),
        });
        let anchors = Arc::new(LifetimeAnchors {
            run: run.clone(),
            uid,
            state: state.clone(),
            endings: endings.clone(),
            openings: Openings::default(),
            opened: AtomicBool::new(false),
            unmanaged: unmanaged.clone(),
        });
        let homes = Arc::new(Homes {
            members: members.clone(),
        });
        let admission = Arc::new(Admission {
            run: run.clone(),
            uid,
            settings: settings.clone(),
            state: state.clone(),
            journal: journal.clone(),
            supervises: is_systems,
            placing: Placing {
                settings: settings.clone(),
                nvidia: nvidia.clone(),
                claims: claims.clone(),
                audit: audit.clone(),
                driver: driver.clone(),
            },
            claims,
            grants: grants.clone(),
        });
        let line = Arc::new(Line {
            run: run.clone(),
            nvidia: nvidia.clone(),
            state: state.clone(),
            admission: admission.clone(),
        });
        Self {
            compute_audit: ComputeAudit {
                run: run.clone(),
                nvidia: nvidia.clone(),
                state: state.clone(),
                leasing: leasing.clone(),
                members: members.clone(),
            },
            bypasses: Auditor {
                run: run.clone(),
                state: state.clone(),
                journal: journal.clone(),
                lists: lists.clone(),
                members: members.clone(),
                audit: audit.clone(),
                holder: holder.clone(),
                anchors: anchors.clone(),
                found: Mutex::default(),
                evidence: Mutex::default(),
            },
            expiries: Expiries {
                state: state.clone(),
                journal: journal.clone(),
                endings: endings.clone(),
                seen: Mutex::default(),
            },
            reports: Reports {
                uid,
                state: state.clone(),
                journal: journal.clone(),
            },
            containers: Containers {
                run: run.clone(),
                uid,
                state: state.clone(),
                holder: holder.clone(),
                anchors: anchors.clone(),
            },
            resizing: Resizing {
                run: run.clone(),
                uid,
                settings: settings.clone(),
                state: state.clone(),
                journal: journal.clone(),
                grants,
                adoption: adoption.clone(),
                homes: homes.clone(),
                audit: audit.clone(),
                driver: driver.clone(),
            },
            requests: Requests {
                run: run.clone(),
                uid,
                settings: settings.clone(),
                state: state.clone(),
                journal: journal.clone(),
                admission: admission.clone(),
                line: line.clone(),
                homes,
                modes: modes.clone(),
                holder: holder.clone(),
                page_servers: page_servers.clone(),
                endings: endings.clone(),
                anchors: anchors.clone(),
            },
            run,
            settings,
            uid,
            accounts,
            nvidia,
            started_at: clock::now(),
            state,
            journal,
            leasing,
            members,
            audit,
            driver,
            holder,
            modes,
            endings,
            page_servers,
            adoption,
            anchors,
            supervisor,
            lists,
            admission,
            line,
            unmanaged,
            log_looked_at: Mutex::new(None),
        }
    }

    /// The agent itself.
    pub fn status(&self) -> Status {
        let helper = match privilege::helper_state() {
            None => HelperState::None,
            Some(Ok(())) => HelperState::Answers,
            Some(Err(_)) => HelperState::Silent,
        };
        let totals = self.leasing.totals();
        let state = self.state.lock();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uid: self.uid,
            run_dir: self.run.path().into(),
            started_at: self.started_at.clone(),
            slice_count: u32::try_from(state.slices.len()).unwrap_or(u32::MAX),
            bypass_total: state.bypass_total,
            overdue_total: totals.overdue,
            expired_total: totals.expired,
            uncharged_ns_total: totals.uncharged_ns,
            overuse_ended_total: self.supervisor.ended.load(Relaxed),
            frozen_total: self.supervisor.freezes.load(Relaxed),
            driver_silent: self.nvidia.is_silent(),
            helper,
            settings: self.settings.get().texts.clone(),
        }
    }

    /// Takes the settings that `read` finds now; those that it cannot take while it runs stay as they are.
    pub fn reload(&self, read: &ReadSettings) {
        let message = match read() {
            Ok(fresh) => {
                let reloaded = self.settings.reload(fresh);
                let list = |names: &[String], otherwise: &str| match names {
                    [] => otherwise.to_owned(),
                    names => names.join(", "),
                };
                let mut message = format!("changed: {}", list(&reloaded.changed, "nothing"));
                if !reloaded.later.is_empty() {
                    let later = list(&reloaded.later, "");
                    message.push_str(&format!("; when the agent starts again: {later}"));
                }
                message
            }
            Err(fault) => format!(
                "the settings stay as they are: {fault}: {}",
                fault.causes.join(": ")
            ),
        };
        tracing::info!("the settings were read again: {message}");
        self.journal.note(Incident {
            kind: EventKind::SettingsReloaded,
            slice: None,
            owner: None,
            device: None,
            run: None,
            message,
        });
    }

    /// The periodic work: free the memory of dead processes, and end slices that have ended. Returns whether anything
    /// lives.
    pub fn tick(&self) -> bool {
        let mut state = self.state.lock();
        if state.audited_at.is_none_or(|looked| looked.elapsed() >= AUDIT) {
            let shown: Vec<SliceRecord> = state.slices.values_mut().map(Slice::shown).collect();
            drop(state);
            self.members.note(&shown);
            state = self.state.lock();
        }
        let ids: Vec<String> = state.slices.keys().cloned().collect();
        for id in ids {
            // Between two slices another thread that waits for the state has a turn.
            drop(state);
            state = self.state.lock();
            if let Some(slice) = state.slices.get_mut(&id) {
                let _reaps = Slice::usages(slice);
            }
            self.endings.settle(&mut state, &id);
        }
        self.anchors.note_openings(&mut state);
        self.anchors.delete_unanchored(&mut state);
        if state.audited_at.is_none_or(|looked| looked.elapsed() >= AUDIT) {
            state.audited_at = Some(Instant::now());
            self.audit.audit(&mut state);
        }
        self.driver.listen();
        self.line.serve(&mut state);
        self.line.store_in_time(&mut state);
        let alive = !state.slices.is_empty() || !state.queue.is_empty() || self.modes.is_untidy();
        drop(state);
        self.look_after_files();
        alive
    }

    /// Looks at the files of users, begins a new log where it is full, and reports how many lines of users were left out.
    fn look_after_files(&self) {
        const LOOK: std::time::Duration = std::time::Duration::from_secs(1);
        let mut looked = self.log_looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return;
        }
        *looked = Some(Instant::now());
        drop(looked);
        self.accounts.refresh();
        for (uid, count) in self.journal.lines.settle() {
            tracing::warn!(uid, count, "lines about what this user did were left out");
        }
        match log::bound(&self.run, log::LARGEST) {
            Ok(true) => tracing::info!("the log before this one is agent.log.1"),
            Ok(false) => {}
            // This comes each second, so it is logged at debug, or it would fill a log that is full.
            Err(error) => tracing::debug!(%error, "a new log cannot be begun"),
        }
    }
}

/// The parts from which an agent is built.
struct Parts {
    run: RunDir,
    settings: Settings,
    keep: KeepCommand,
    uid: u32,
    /// This is the system agent: no other user's claim keeps it from a device.
    prevails: bool,
    /// This is the agent of the system's run directory.
    is_systems: bool,
    nvidia: Nvidia,
    journal: Arc<Journal>,
    leasing: Arc<Leasing>,
    accounts: Arc<Accounts>,
    inventory: Inventory,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.leasing.stop();
        self.supervisor.release();
    }
}
