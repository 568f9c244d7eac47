//! The agent's state and what may be done to it. Every method blocks, briefly; the server calls them off its loop.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use divvy_host::{Inventory, Nvidia, Sources};
use divvy_model::{Bytes, Code, DeviceRecord, Fault, Isolation, SliceRecord};

use crate::admission::owner::Owner;
use crate::admission::queue::Queue;
use crate::api::compute::ComputeRecord;
use crate::api::events::EventKind;
use crate::api::{HelperState, Items, Status};
use crate::decide::admission::DeviceView;
use crate::holder::Holder;
use crate::journal::Journal;
use crate::leasing::{Incident, Leasing, Member};
use crate::life::members::Roster;
use crate::life::records::stored;
use crate::life::slice::Slice;
use crate::lookout::audit::Look;
use crate::lookout::openings::Openings;
use crate::modes::untidy::Untidy;
use crate::start::log;
use crate::start::rundir::RunDir;
use crate::start::settings::Settings;
use crate::start::trust::is_system;
use crate::system::clock;
use crate::system::locks::Locks;
use crate::system::nudge::Nudge;
use crate::system::peer::Peer;

/// The agent.
pub struct Daemon {
    pub(crate) run: RunDir,
    pub(crate) settings: Settings,
    pub(crate) uid: u32,
    /// It is the system agent: no other user's claim keeps it from a device.
    pub(crate) prevails: bool,
    pub(crate) nvidia: Nvidia,
    started_at: String,
    state: Mutex<State>,
    /// The command that keeps a lasting slice.
    pub(crate) keep: KeepCommand,
    /// Who holds the pages of emulated devices.
    pub(crate) holder: Mutex<Holder>,
    /// Who leases which device.
    pub(crate) leasing: Arc<Leasing>,
    /// What happened.
    pub(crate) journal: Arc<Journal>,
    /// Held while missing pages are asked for.
    pub(crate) recalling: Mutex<()>,
    /// Held while a device is made ready for a way of sharing, and while that is put back.
    pub(crate) grounds: Mutex<()>,
    /// How often it is still tried to put back what no slice needs any more.
    pub(crate) untidy: Untidy,
    /// Held for a slice while its keeper is started.
    pub(crate) keeping: Locks,
    /// When it was last said that a keeper cannot be had.
    pub(crate) said_at: Mutex<Option<Instant>>,
    /// Whether it was last told that NVIDIA's driver does not answer.
    pub(crate) driver_silent: AtomicBool,
    /// Who is in the slices.
    pub(crate) roster: Roster,
    /// Raised when a process is on a device and in no ledger, and was not at the look before.
    pub(crate) strays: Nudge,
    /// When containers take the slices that wait for one.
    pub(crate) openings: Openings,
    /// Set when one has: what the auditor saw of a process before it had its mounts is no evidence against it.
    pub(crate) opened: AtomicBool,
    /// When the log's length was last looked at.
    log_looked_at: Mutex<Option<Instant>>,
}

/// Makes the command that calls [`crate::keep`] for a slice of a run directory.
pub type KeepCommand = fn(&RunDir, &str) -> Command;

/// What changes while the agent runs.
#[derive(Default)]
pub(crate) struct State {
    pub inventory: Inventory,
    pub owned: HashSet<String>,
    /// Which of them another user's process claims as well.
    pub contested: HashMap<String, Owner>,
    pub slices: BTreeMap<String, Slice>,
    /// Who waits for admission.
    pub queue: Queue,
    pub bypass_total: u64,
    /// When the auditor last looked.
    pub audited_at: Option<Instant>,
    /// In how many rounds no container was seen of a slice that goes with its containers.
    pub missed: HashMap<String, u32>,
    /// When a slice last ended.
    pub ended_at: Option<Instant>,
    /// Who was on each device and in no ledger when the auditor last looked, by the device's UUID.
    strays: HashMap<String, HashSet<u32>>,
}

impl Daemon {
    /// An agent that has looked at the machine and taken back the slices of its predecessor.
    ///
    /// # Errors
    /// [`Code::Config`] for a specification of emulated devices that is not understood; [`Code::Driver`] where NVIDIA's
    /// library does not answer.
    pub fn start(run: RunDir, settings: Settings, keep: KeepCommand) -> Result<Self, Fault> {
        Self::start_over(run, settings, keep, Nvidia::open())
    }

    /// [`Self::start`], over an NVML that is open.
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
            // With slices to look after, their devices are waited for: an agent without them would take them for gone.
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
        let journal = Arc::new(Journal::default());
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
        let user = rustix::process::getuid();
        let daemon = Self {
            prevails: user.is_root() || is_system(run.path()),
            run,
            leasing: Leasing::start(lengths, journal.clone()),
            journal,
            settings,
            uid: user.as_raw(),
            nvidia,
            started_at: clock::now(),
            state: Mutex::new(State {
                inventory,
                ..State::default()
            }),
            keep,
            holder: Mutex::default(),
            recalling: Mutex::new(()),
            grounds: Mutex::new(()),
            untidy: Untidy::default(),
            keeping: Locks::default(),
            said_at: Mutex::new(None),
            driver_silent: AtomicBool::new(false),
            roster: Roster::default(),
            strays: Nudge::default(),
            openings: Openings::default(),
            opened: AtomicBool::new(false),
            log_looked_at: Mutex::new(None),
        };
        daemon.adopt();
        daemon.watch_for_containers();
        daemon.adopt_holder();
        daemon.take_all();
        daemon.reopen_queue();
        Ok(daemon)
    }

    /// Has the log begin anew where it is full, and tells of the lines that users caused and that were left out.
    pub(crate) fn look_after_log(&self) {
        const LOOK: std::time::Duration = std::time::Duration::from_secs(1);
        let mut looked = self.log_looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return;
        }
        *looked = Some(Instant::now());
        drop(looked);
        for (uid, count) in self.journal.lines.settle() {
            tracing::warn!(uid, count, "lines about what this user did were left out");
        }
        match log::bound(&self.run, log::LARGEST) {
            Ok(true) => tracing::info!("the log before this one is agent.log.1"),
            Ok(false) => {}
            // Each second: at debug, or it would fill what is full.
            Err(error) => tracing::debug!(%error, "a new log cannot be begun"),
        }
    }

    /// Whether a line about what user `uid` did is to be written now. Root and the agent's own user have no bound.
    pub(crate) fn may_log(&self, uid: u32) -> bool {
        uid == 0 || uid == self.uid || self.journal.lines.allow(uid)
    }

    /// The state. A panic in one request must not end the agent for all: the state is consistent between statements.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent itself.
    pub fn status(&self) -> Status {
        let helper = match crate::system::privilege::helper_state() {
            None => HelperState::None,
            Some(Ok(())) => HelperState::Answers,
            Some(Err(_)) => HelperState::Silent,
        };
        let totals = self.leasing.totals();
        let state = self.state();
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
            escaped_ns_total: totals.escaped_ns,
            driver_silent: self.nvidia.is_silent(),
            helper,
        }
    }

    /// The devices, with what is handed out of each.
    pub fn devices(&self) -> Vec<DeviceRecord> {
        let mut state = self.state();
        state.inventory.refresh(&self.nvidia);
        let devices = state.inventory.devices.clone();
        devices
            .into_iter()
            .map(|mut device| {
                let used = self.used_on(&mut state, &device);
                device.memory_used_bytes = used.device;
                if let Some(other) = state.contested.get(&device.uuid) {
                    let health = &mut device.hardware.get_or_insert_default().health;
                    health.push(format!(
                        "process {} of user {} claims it too",
                        other.pid, other.uid
                    ));
                }
                device.sharing = Some(self.device_view(&state, &device, used, self.uid).sharing());
                device
            })
            .collect()
    }

    /// The slices, oldest first.
    pub fn slices(&self) -> Vec<SliceRecord> {
        let mut state = self.state();
        self.audit(&mut state);
        let devices = state.inventory.devices.clone();
        let records = state.slices.values_mut().map(Slice::shown);
        let mut records: Vec<SliceRecord> = records
            .map(|shown| self.with_device_figures(&devices, shown))
            .map(|shown| self.with_conditions(&devices, shown))
            .collect();
        records.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        records
    }

    /// One slice.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`].
    pub fn slice(&self, peer: Peer, which: &str) -> Result<SliceRecord, Fault> {
        let mut state = self.state();
        self.audit(&mut state);
        let shown = state.find(which, peer)?.shown();
        let devices = &state.inventory.devices;
        Ok(self.with_conditions(devices, self.with_device_figures(devices, shown)))
    }

    /// What each slice has of its devices' time.
    pub fn compute(&self) -> Items<ComputeRecord> {
        Items {
            items: self.leasing.views(),
        }
    }

    /// What is out of the ordinary about its leases, and about what tells of its devices.
    fn with_conditions(&self, devices: &[DeviceRecord], mut shown: SliceRecord) -> SliceRecord {
        shown.conditions.extend(self.leasing.conditions(&shown.id));
        let silence = self.silence_of(devices, &shown);
        shown.conditions.extend(silence);
        shown
    }

    /// Has the slices that have pages lease their devices, by the terms that they have now. To be called whenever a slice
    /// got pages, or its terms.
    pub(crate) fn lease_out(&self, state: &State) {
        let members = state.slices.values().filter_map(|slice| {
            let record = &slice.record;
            Some(Member {
                id: record.id.clone(),
                name: record.name.clone(),
                uid: record.uid,
                devices: record
                    .shares()
                    .into_iter()
                    .map(|share| share.device_uuid)
                    .collect(),
                pages: slice.pages.clone()?,
                terms: slice.terms?,
            })
        });
        self.leasing.sync(members.collect());
    }

    /// The device as admission sees it.
    pub(crate) fn device_view<'a>(
        &self,
        state: &State,
        device: &'a DeviceRecord,
        used: UsedOn,
        asker: u32,
    ) -> DeviceView<'a> {
        DeviceView {
            device,
            limits: self.settings.limits(device),
            asker,
            holds: state
                .outermost()
                .filter_map(|slice| slice.hold_on(&device.uuid))
                .collect(),
            unmanaged: used.unmanaged,
            unheld: used.unheld,
        }
    }

    /// What is in use on a device, and how much of it by programs outside any slice.
    pub(crate) fn used_on(&self, state: &mut State, device: &DeviceRecord) -> UsedOn {
        // The device first: what is taken or given back in between then never looks like an outsider's.
        let look = Look::at(&self.nvidia, self.run.path(), device).unwrap_or_default();
        let mut unheld = look.unheld(device);
        let mut managed = 0_u64;
        for slice in state.slices.values_mut() {
            let Some(place) = slice.record.place_of(&device.uuid) else {
                continue;
            };
            if slice.record.isolation == Isolation::Env {
                // In no ledger: the device tells, as far as the driver tells it.
                let shown = self.with_device_figures(std::slice::from_ref(device), slice.shown());
                managed = managed.saturating_add(shown.memory_used_bytes.0);
                continue;
            }
            let usage = slice.usages().into_iter().nth(place).unwrap_or_default();
            let used = usage.used.0;
            unheld = Bytes(unheld.0.saturating_sub(usage.of_the_dead().0));
            // Contexts are in the ledger; what of them is not, the auditor has found.
            managed = managed
                .saturating_add(used)
                .saturating_add(slice.overhead(place).0);
        }
        let used = look.used.unwrap_or(Bytes(managed));
        let rest = used.0.saturating_sub(managed);
        let unheld = unheld.min(Bytes(rest));
        UsedOn {
            device: used,
            unmanaged: Bytes(rest - unheld.0),
            unheld,
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.leasing.stop();
    }
}

/// Memory in use on a device.
#[derive(Clone, Copy, Default)]
pub(crate) struct UsedOn {
    /// By anybody.
    pub device: Bytes,
    /// By programs outside any slice.
    pub unmanaged: Bytes,
    /// For no living process, as far as no ledger has it.
    pub unheld: Bytes,
}

impl State {
    /// Notes who is on a device and in no ledger; says whether somebody is who was not at the look before.
    pub fn note_strays(&mut self, uuid: &str, strays: &[u32]) -> bool {
        let now: HashSet<u32> = strays.iter().copied().collect();
        let before = self.strays.insert(uuid.to_owned(), now);
        let before = before.unwrap_or_default();
        strays.iter().any(|pid| !before.contains(pid))
    }

    /// The device of this UUID.
    ///
    /// # Errors
    /// [`Code::UnknownDevice`]: it was here when a slice was made of it.
    pub fn device(&self, uuid: &str) -> Result<DeviceRecord, Fault> {
        let mut devices = self.inventory.devices.iter();
        devices
            .find(|device| device.uuid == uuid)
            .cloned()
            .ok_or_else(|| {
                Fault::new(
                    Code::UnknownDevice,
                    format!("the slice's device {uuid} is not here"),
                )
            })
    }

    /// The slices that are inside no other: those inside one are part of what that one holds.
    pub fn outermost(&self) -> impl Iterator<Item = &Slice> {
        self.slices.values().filter(|slice| {
            let parent = slice.record.parent_id.as_ref();
            parent.is_none_or(|parent| !self.slices.contains_key(parent))
        })
    }

    /// The slice of this name, id or unique prefix of an id. A name is the caller's own slice's first, then that of
    /// the one other user's that has it.
    pub fn find(&mut self, which: &str, peer: Peer) -> Result<&mut Slice, Fault> {
        let id = self.id_of(which, peer)?;
        self.slices.get_mut(&id).ok_or_else(|| unknown(which))
    }

    fn id_of(&self, which: &str, peer: Peer) -> Result<String, Fault> {
        // A whole id is that slice's, whatever another user calls a slice.
        if self.slices.contains_key(which) {
            return Ok(which.to_owned());
        }
        let named: Vec<&SliceRecord> = self
            .slices
            .values()
            .map(|slice| &slice.record)
            .filter(|record| record.name == which)
            .collect();
        let own = named.iter().find(|record| record.uid == peer.uid);
        match (own, named.as_slice()) {
            (Some(record), _) | (None, [record]) => Ok(record.id.clone()),
            (None, []) => {
                let mut fits = self
                    .slices
                    .keys()
                    .filter(|id| !which.is_empty() && id.starts_with(which));
                match (fits.next(), fits.next()) {
                    (Some(id), None) => Ok(id.clone()),
                    _ => Err(unknown(which)),
                }
            }
            (None, several) => {
                let ids: Vec<&str> = several.iter().map(|record| record.id.as_str()).collect();
                Err(Fault::new(
                    Code::UnknownSlice,
                    format!("several users have a slice `{which}`, and you have none"),
                )
                .hint(format!("name one by its id: {}", ids.join(", "))))
            }
        }
    }
}

fn unknown(which: &str) -> Fault {
    Fault::new(Code::UnknownSlice, format!("there is no slice `{which}`")).hint("`divvy ps` lists them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stray_is_news_once_on_each_device() {
        let mut state = State::default();
        assert!(!state.note_strays("GPU-0", &[]));
        assert!(state.note_strays("GPU-0", &[7]));
        assert!(!state.note_strays("GPU-0", &[7]));
        assert!(state.note_strays("GPU-1", &[7]));
        assert!(state.note_strays("GPU-0", &[7, 8]));
        assert!(!state.note_strays("GPU-0", &[8]));
        assert!(state.note_strays("GPU-0", &[7]), "gone, and there again");
    }
}
