//! Making a slice: what is really wanted, admission, the record; and handing the pages to its keeper.

use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_host::{EmulatedDevice, emulated_devices};
use divvy_model::{
    Bytes, Cap, Class, Code, DeviceRecord, DeviceShare, Fault, Isolation, Mode, SliceRecord, SliceState,
};
use serde::{Deserialize, Serialize};

use crate::admission::queue::may_change;
use crate::api::events::EventKind;
use crate::api::{CreateSlice, CreatedSlice, Join};
use crate::daemon::{Daemon, State};
use crate::decide::compute;
use crate::decide::modes;
use crate::decide::placement::{Ahead, chosen};
use crate::decide::policy::enforce;
use crate::life::anchor;
use crate::life::names::{default_slice_name, fresh_id, slice_name};
use crate::life::pages;
use crate::life::records::{control_socket, discard, make_folder, store};
use crate::life::slice::Slice;
use crate::system::clock;
use crate::system::peer::Peer;

/// A request as the agent understood it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// What is asked for.
    pub ask: CreateSlice,
    /// The slice it is to be inside of.
    pub parent: Option<String>,
    /// The caller joins it as soon as it is there: a user's default slice.
    pub then_join: bool,
}

/// What a request comes to.
pub(crate) enum Resolved {
    /// The slice is there already.
    Done(Box<CreatedSlice>),
    /// It is to be made.
    Wanted(Box<Wanted>),
}

impl Daemon {
    /// Admits a slice for the caller, who is to become its keeper; a lasting one gets a keeper of its own. Nobody who
    /// waits is overtaken.
    ///
    /// # Errors
    /// The refusals of policy and admission, [`Code::NotAllowed`], [`Code::NameTaken`], [`Code::RunDir`].
    pub fn create(&self, peer: Peer, ask: &CreateSlice) -> Result<CreatedSlice, Fault> {
        self.may_create(peer)?;
        self.look_at_members_of(peer.uid);
        let wanted = match self.resolve(peer, ask)? {
            Resolved::Done(created) => return self.prepared(*created, ask.dry_run),
            Resolved::Wanted(wanted) => wanted,
        };
        let begin = Instant::now();
        let mut cut = None;
        loop {
            let attempt = {
                let mut state = self.state();
                // A container that was just removed has its name no more.
                self.delete_unattended(&mut state);
                let ahead = self.serve_queue(&mut state);
                self.try_create(&mut state, peer, &wanted, &ahead)
            };
            match attempt {
                // Held until the slice has it: nothing is put back meanwhile.
                Err(fault) if cut.is_none() && self.may_cut(&wanted.ask, fault.code) => {
                    cut = Some(self.cut(&wanted.ask, fault)?);
                }
                Err(fault) if fault.code == Code::DeviceFull && self.memory_may_come_back(begin) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                outcome => {
                    drop(cut);
                    return self.settled(peer, &wanted, outcome);
                }
            }
        }
    }

    /// Makes out what is really wanted: a slice inside another, a share in the user's default slice, or what was asked
    /// for.
    pub(crate) fn resolve(&self, peer: Peer, ask: &CreateSlice) -> Result<Resolved, Fault> {
        let mut state = self.state();
        if let Some(created) = self.admitted_before(&mut state, peer).filter(|_| !ask.dry_run) {
            return Ok(Resolved::Done(Box::new(created)));
        }
        let wanted = |ask: CreateSlice, parent, then_join| {
            Ok(Resolved::Wanted(Box::new(Wanted {
                ask,
                parent,
                then_join,
            })))
        };
        let Some(parent) = self.parent(&state, peer, ask.inside.as_deref())? else {
            drop(state);
            return match self.settings.default_slice.filter(|_| asks_for_nothing(ask)) {
                Some(memory) => {
                    let name = default_slice_name(peer.uid);
                    match self.join_default(peer, ask, &name) {
                        Err(fault) if fault.code == Code::UnknownSlice => {
                            let mut ask = ask.clone();
                            ask.request.name = Some(name);
                            ask.request.memory = Some(memory);
                            ask.lasting = true;
                            wanted(ask, None, true)
                        }
                        outcome => outcome.map(|created| Resolved::Done(Box::new(created))),
                    }
                }
                None => wanted(ask.clone(), None, false),
            };
        };
        if ask.lasting {
            return Err(Fault::new(
                Code::OutsideSlice,
                "a lasting slice cannot be made inside another one",
            )
            .hint("make it from a shell that is in no slice"));
        }
        if asks_for_nothing(ask) {
            // The parent's own limit is limit enough.
            let slice = state.find(&parent, peer)?;
            if slice.record.lasting {
                drop(state);
                let created = self.join(peer, &parent, &join_of(ask))?;
                return Ok(Resolved::Done(Box::new(created)));
            }
            let shown = slice.shown();
            let created = self.joined(&state, shown)?;
            return Ok(Resolved::Done(Box::new(created)));
        }
        wanted(ask.clone(), Some(parent), false)
    }

    /// The user's default slice, joined; it must be on the device that is asked for, where one is.
    fn join_default(&self, peer: Peer, ask: &CreateSlice, name: &str) -> Result<CreatedSlice, Fault> {
        if ask.request.device.is_some() {
            let mut state = self.state();
            let before = state.inventory.clone();
            let chosen = chosen(&mut state, &ask.request);
            // It joins what is there: nothing is made for it.
            state.inventory = before;
            let chosen = chosen?;
            let home = &state.find(name, peer)?.record;
            if let Some(other) = chosen.iter().find(|device| home.place_of(&device.uuid).is_none()) {
                return Err(Fault::new(
                    Code::OutsideSlice,
                    format!(
                        "your default slice {name} is on {}, not on {}",
                        home.device_uuid, other.uuid
                    ),
                )
                .hint("--memory asks for a slice of your own there"));
            }
        }
        self.join(peer, name, &join_of(ask))
    }

    /// What follows admission: the keeper of a lasting slice, and a user's own entry into a default one.
    pub(crate) fn settled(
        &self,
        peer: Peer,
        wanted: &Wanted,
        outcome: Result<CreatedSlice, Fault>,
    ) -> Result<CreatedSlice, Fault> {
        let name = wanted.ask.request.name.as_deref().unwrap_or_default();
        let created = match outcome {
            // Another run of the same user was faster.
            Err(fault) if fault.code == Code::NameTaken && wanted.then_join => {
                return self.join_default(peer, &wanted.ask, name);
            }
            outcome => self.prepared(outcome?, wanted.ask.dry_run)?,
        };
        if !wanted.ask.lasting || wanted.ask.dry_run {
            return Ok(created);
        }
        let id = &created.slice.id;
        if let Err(fault) = self.keep_up(id) {
            let _no_longer = self.delete(&mut self.state(), id);
            return Err(fault);
        }
        if wanted.then_join {
            return self.join(peer, id, &join_of(&wanted.ask));
        }
        let slice = self.state().find(id, peer)?.shown();
        Ok(CreatedSlice { slice, ..created })
    }

    /// A slice with its device ready for it; it is taken back where that cannot be.
    pub(crate) fn prepared(&self, created: CreatedSlice, dry_run: bool) -> Result<CreatedSlice, Fault> {
        if !dry_run {
            self.hold_for(&created.slice);
        }
        if dry_run || created.slice.share_mode == Mode::Lease {
            return Ok(created);
        }
        let id = &created.slice.id;
        if let Err(fault) = self.prepare(id) {
            if !created.joined {
                self.revoke(id);
            }
            return Err(fault);
        }
        let mut slice = created.slice;
        if let Some(there) = self.state().slices.get(&slice.id) {
            slice.mps_partition.clone_from(&there.record.mps_partition);
        }
        Ok(CreatedSlice { slice, ..created })
    }

    /// A slice that this very process was given and has not taken up: it asks again, because the answer was lost.
    fn admitted_before(&self, state: &mut State, peer: Peer) -> Option<CreatedSlice> {
        let slice = state.slices.values_mut().find(|slice| {
            let record = &slice.record;
            record.state == SliceState::Starting
                && record.keeper_pid == Some(peer.pid)
                && record.uid == peer.uid
                && slice.pages.is_none()
        })?;
        let shown = slice.shown();
        let created = self.joined(state, shown).ok()?;
        Some(CreatedSlice {
            joined: false,
            ..created
        })
    }

    /// What a program held comes back to its device a moment after its slice has ended: a refusal in that moment
    /// would be for memory that nobody holds.
    fn memory_may_come_back(&self, begin: Instant) -> bool {
        const MOMENT: Duration = Duration::from_millis(500);
        let ended_at = self.state().ended_at;
        begin.elapsed() < MOMENT && ended_at.is_some_and(|ended| ended.elapsed() < 2 * MOMENT)
    }

    /// Admits a slice and writes it down, or refuses. Emulated devices that were made for the request go again where
    /// nothing came of it; one who waits keeps them.
    pub(crate) fn try_create(
        &self,
        state: &mut State,
        peer: Peer,
        wanted: &Wanted,
        ahead: &Ahead,
    ) -> Result<CreatedSlice, Fault> {
        let before = state.inventory.clone();
        let outcome = self.try_admit(state, peer, wanted, ahead);
        let keeps = match &outcome {
            Ok(_) => !wanted.ask.dry_run,
            Err(fault) => !wanted.ask.dry_run && may_change(fault.code),
        };
        if !keeps {
            state.inventory = before;
        }
        outcome
    }

    /// Whether a caller's own specification of emulated devices counts: they compute on this host's processors, and stand in
    /// everybody's list.
    fn may_emulate(&self, peer: Peer) -> bool {
        peer.uid == self.uid || peer.uid == 0
    }

    /// Another user's specification only chooses among the emulated devices that are here already.
    fn check_emulated(
        &self,
        state: &State,
        ask: &CreateSlice,
        devices: &[EmulatedDevice],
    ) -> Result<(), Fault> {
        let is_here = |wanted: &EmulatedDevice| {
            let mut here = state.inventory.devices.iter();
            here.any(|device| device.uuid == wanted.record.uuid)
        };
        if ask.request.device.is_some() || devices.iter().any(is_here) {
            return Ok(());
        }
        Err(Fault::new(
            Code::NotAllowed,
            format!(
                "DIVVY_EMULATED or `emulated` asks for emulated devices, which this agent makes for user {} only",
                self.uid
            ),
        )
        .hint("unset it to have a slice of what this machine has; `--device emulated:h100` names an emulated device"))
    }

    fn try_admit(
        &self,
        state: &mut State,
        peer: Peer,
        wanted: &Wanted,
        ahead: &Ahead,
    ) -> Result<CreatedSlice, Fault> {
        let ask = &wanted.ask;
        let enforcement = enforce(&ask.request)?;
        let terms = ask.request.compute_terms();
        compute::check(&terms)?;
        modes::check(&ask.request)?;
        if wanted.parent.is_none() {
            compute::check_promise(&terms)?;
        }
        self.may_weigh(peer, &terms)?;
        if let Some(spec) = &ask.emulated {
            let devices = emulated_devices(spec, self.run.path())?;
            match self.may_emulate(peer) {
                true => state.inventory.add(devices),
                false => self.check_emulated(state, ask, &devices)?,
            }
        }
        let id = fresh_id(state)?;
        let name = slice_name(state, peer, &ask.request, &ask.command, &id)?;
        let placed = self.place(state, peer, wanted, &enforcement, ahead)?;
        let share_of = |(device, memory): &(DeviceRecord, Bytes)| DeviceShare {
            device_uuid: device.uuid.clone(),
            memory_limit_bytes: *memory,
            memory_used_bytes: Bytes(0),
            context_bytes: match ask.request.whole {
                true => Bytes(0),
                false => self.settings.limits(device).context,
            },
            memory_overhead_bytes: Bytes(0),
            memory_lent_bytes: Bytes(0),
            memory_spilled_bytes: Bytes(0),
            spill_limit_bytes: beyond(*memory, ask.request.oversubscribe_percent),
        };
        let shares: Vec<DeviceShare> = placed.iter().map(share_of).collect();
        let devices: Vec<DeviceRecord> = placed.into_iter().map(|(device, _)| device).collect();
        let Some(device) = devices.first().cloned() else {
            return Err(Fault::new(
                Code::NoDevice,
                "there is no device to take a slice of",
            ));
        };
        let mut record = SliceRecord {
            id: id.clone(),
            name,
            uid: peer.uid,
            device_uuid: device.uuid.clone(),
            memory_limit_bytes: Bytes(0),
            memory_used_bytes: Bytes(0),
            compute: None,
            compute_weight: None,
            compute_cap: Cap::Soft,
            compute_class: Class::BestEffort,
            share_mode: Mode::Lease,
            replicas: None,
            time_slice: None,
            mps_partition: None,
            isolation: enforcement.isolation,
            policy: ask.request.policy,
            created_at: clock::now(),
            state: SliceState::Starting,
            context_bytes: Bytes(0),
            emulated_spec: state.inventory.emulated_spec(&device.uuid).map(str::to_owned),
            command: ask.command.clone(),
            keeper_pid: (!ask.lasting).then_some(peer.pid),
            keeper_start_ticks: if ask.lasting { 0 } else { peer.since },
            lasting: ask.lasting,
            attendant: match (ask.lasting, ask.attended, ask.container_within_ms) {
                (true, true, _) => Some(anchor::of_process(peer.pid)?),
                (true, false, Some(within)) => Some(anchor::of_containers(within)),
                _ => None,
            },
            pods: match ask.lasting {
                true => ask.pods.clone(),
                false => Vec::new(),
            },
            runs: Vec::new(),
            parent_id: wanted.parent.clone(),
            memory_overhead_bytes: Bytes(0),
            memory_lent_bytes: Bytes(0),
            on_oom_wait_ns: ask.request.on_oom_wait_ns,
            spill_limit_bytes: Bytes(0),
            memory_spilled_bytes: Bytes(0),
            whole: ask.request.whole,
            conditions: Vec::new(),
            bypasses: enforcement.bypasses,
            warnings: Vec::new(),
            trouble: None,
            usage_unknown: false,
            processes: Vec::new(),
            containers: Vec::new(),
            devices: Vec::new(),
        };
        record.set_shares(shares);
        record.set_compute_terms(match &wanted.parent {
            Some(parent) => state.compute_inside(parent, ask.request.compute_terms(), None)?,
            None => ask.request.compute_terms(),
        });
        match wanted.parent.as_ref().and_then(|parent| state.slices.get(parent)) {
            Some(parent) => {
                modes::check_inside(&parent.record, ask.request.share_mode)?;
                record.set_mode_terms(parent.record.mode_terms());
                record.mps_partition.clone_from(&parent.record.mps_partition);
            }
            None if record.isolation == Isolation::Env => {}
            None => record.set_mode_terms(self.mode_of(state, peer.uid, &devices, &ask.request)?),
        }
        let answer = CreatedSlice {
            directory: self.run.slice(&id),
            slice: record.clone(),
            device,
            devices,
            joined: false,
        };
        if ask.dry_run {
            return Ok(answer);
        }
        if wanted.parent.is_none() {
            for device in &answer.devices {
                self.take_device(state, device)?;
            }
        }
        let slice = Slice::new(record.clone(), record.keeper_pid, &answer.devices);
        // What was pinned as its keeper is the caller, and no other process that has its number now.
        peer.require_life()?;
        state.slices.insert(id.clone(), slice);
        let written = match &wanted.parent {
            Some(parent) => self.relend(state, parent),
            None => Ok(()),
        }
        .and_then(|()| self.make_directory(&id))
        .and_then(|()| store(&self.run, &record));
        if let Err(fault) = written {
            state.slices.remove(&id);
            discard(&self.run, &id);
            if let Some(parent) = &wanted.parent {
                let _back = self.relend(state, parent);
            }
            return Err(fault);
        }
        self.compute_changed(state);
        state.bypass_total += record.bypasses.len() as u64;
        let message = format!("{} of {}", record.memory_limit_bytes, record.device_uuid);
        self.journal.tell(EventKind::SliceCreated, &record, message);
        if self.may_log(peer.uid) {
            tracing::info!(
                slice = record.name, id, uid = peer.uid, by = peer.pid, lasting = record.lasting, inside = record.parent_id,
                device = record.device_uuid, memory = record.memory_limit_bytes.0, bypasses = ?record.bypasses,
                "slice admitted"
            );
        }
        Ok(answer)
    }

    /// Hands a new slice's pages to its keeper, who is the caller.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::SharedMemory`], [`Code::Attach`].
    pub fn activate(&self, peer: Peer, id: &str) -> Result<SliceRecord, Fault> {
        let record = {
            let mut state = self.state();
            let slice = state.find(id, peer)?;
            peer.may_change(slice.record.uid, self.uid)?;
            if slice.record.lasting || slice.record.keeper_pid != Some(peer.pid) {
                return Err(Fault::new(
                    Code::NotAllowed,
                    format!(
                        "process {} is not the keeper of slice {}",
                        peer.pid, slice.record.name
                    ),
                ));
            }
            if slice.pages.is_some() && slice.is_kept() {
                // Asked again: an agent before us died between handing them over and saying so.
                slice.record.state = SliceState::Running;
                return Ok(slice.shown());
            }
            slice.record.clone()
        };
        // A keeper may keep us waiting: not while we hold the state.
        let made = pages::hand_over(&control_socket(&self.run, &record.id), &record)?;
        let mut state = self.state();
        let slice = state.find(id, peer)?;
        slice.pages = Some(Arc::new(made));
        // A resize may have come in between.
        slice.write_grants();
        peer.require_life()?;
        slice.record.state = SliceState::Running;
        let record = slice.stored_form();
        store(&self.run, &record)?;
        // Before the program starts: its first launch finds the gate as it is to be.
        self.lease_out(&state);
        Ok(state.find(id, peer)?.shown())
    }

    pub(crate) fn may_create(&self, peer: Peer) -> Result<(), Fault> {
        if peer.is_trusted(self.uid) || self.settings.admit_others {
            return peer.require_life();
        }
        Err(Fault::new(
            Code::NotAllowed,
            format!("this agent makes slices for user {} and root only", self.uid),
        )
        .hint("its configuration may say `admit_others = true`; DIVVY_RUN_DIR chooses another agent"))
    }

    fn make_directory(&self, id: &str) -> Result<(), Fault> {
        make_folder(&self.run, id).map(drop).map_err(|error| {
            Fault::new(
                Code::RunDir,
                format!(
                    "cannot make the slice's directory `{}`",
                    self.run.slice(id).display()
                ),
            )
            .because(&error)
            .hint("`divvy doctor` checks the run directory")
        })
    }
}

/// What may be allocated beyond `memory` where `percent` of it may be allocated in all.
fn beyond(memory: Bytes, percent: u32) -> Bytes {
    let more = u128::from(memory.0) * u128::from(percent.saturating_sub(100)) / 100;
    Bytes(u64::try_from(more).unwrap_or(u64::MAX))
}

/// Whether a run leaves its slice to the agent: no size, no name, nothing that only a slice of its own can have.
fn asks_for_nothing(ask: &CreateSlice) -> bool {
    let request = &ask.request;
    request.memory.is_none()
        && request.name.is_none()
        && request.compute_terms().is_default()
        && request.isolation == Isolation::Cooperative
        && !request.whole
        && request.share_mode == Mode::Lease
        && !ask.lasting
}

fn join_of(ask: &CreateSlice) -> Join {
    Join {
        command: ask.command.clone(),
        inside: ask.inside.clone(),
        dry_run: ask.dry_run,
    }
}
