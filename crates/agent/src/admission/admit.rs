//! Admission: the decision on a request, its record, and the handover of the pages to its page server.

use std::sync::Arc;

use divvy_host::{EmulatedDevice, emulated_devices};
use divvy_model::{Code, DeviceRecord, Fault, Isolation, ModeTerms, Shares, SliceRecord, SliceState};
use divvy_privileged::request::is_of_tenants;

use crate::admission::claims::Claims;
use crate::admission::place::Placing;
use crate::admission::wanted::Wanted;
use crate::api::events::EventKind;
use crate::api::{CreateSlice, CreatedSlice};
use crate::decide::policy::{Boundary, Supervision, check_boundary, check_opencl, enforce, supervise};
use crate::decide::queue::{Ahead, may_change};
use crate::decide::record::{as_asked, share_of};
use crate::decide::{compute, life, modes};
use crate::journal::Journal;
use crate::life::grants::Grants;
use crate::life::names::{fresh_id, slice_name};
use crate::life::records::{control_socket, discard, make_folder, store};
use crate::life::slice::Slice;
use crate::life::workers::free_user;
use crate::life::{anchor, pages};
use crate::start::rundir::RunDir;
use crate::start::settings::Current;
use crate::state::{Shared, State};
use crate::system::nodes::has_open_nodes;
use crate::system::peer::Peer;
use crate::system::{clock, privilege};

/// Admits slices.
pub(crate) struct Admission {
    pub run: RunDir,
    /// The agent's own user.
    pub uid: u32,
    pub settings: Arc<Current>,
    pub state: Shared,
    pub journal: Arc<Journal>,
    /// Slices are supervised where their users ask for no level: this is the system's agent.
    pub supervises: bool,
    pub placing: Placing,
    pub claims: Arc<Claims>,
    pub grants: Arc<Grants>,
}

/// Whether a slice is made for containers: a lasting slice has a program's name only there.
fn is_for_containers(ask: &CreateSlice) -> bool {
    ask.lasting && !ask.command.is_empty()
}

/// Whether no process of the host is to run in it: containers have the nodes that their engine gives them, and under
/// `enforced` it gives them none.
fn is_for_containers_only(ask: &CreateSlice) -> bool {
    ask.lasting && (ask.container_within_ms.is_some() || !ask.pods.is_empty())
}

fn is_inside_supervised(state: &State, wanted: &Wanted) -> bool {
    let parent = wanted.parent.as_ref().and_then(|id| state.slices.get(id));
    parent.is_some_and(|parent| parent.record.terms.isolation == Isolation::Supervised)
}

impl Admission {
    /// Admits a slice and writes it down, or refuses it. Emulated devices that were made for a refused request are
    /// removed again; a waiter keeps them.
    pub fn try_create(
        &self,
        state: &mut State,
        peer: Peer,
        wanted: &Wanted,
        ahead: &Ahead,
    ) -> Result<CreatedSlice, Fault> {
        let before = state.inventory.clone();
        let outcome = self.try_admit(state, peer, wanted, ahead);
        let outcome = outcome.map_err(|fault| state.accounts.explain(peer.uid, fault));
        let keeps = match &outcome {
            Ok(_) => !wanted.ask.dry_run,
            Err(fault) => !wanted.ask.dry_run && may_change(fault.code),
        };
        if !keeps {
            state.inventory = before;
        }
        outcome
    }

    /// Whether a caller's own specification of emulated devices counts. They compute on this host's processors, and
    /// appear in every user's list.
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

    /// The caller, or the user of the job that it makes the slice for.
    fn owner_of(&self, peer: Peer, wanted: &Wanted) -> Result<Peer, Fault> {
        let Some(owner) = &wanted.ask.for_job else {
            return Ok(peer);
        };
        if !peer.is_trusted(self.uid) {
            return Err(
                Fault::new(Code::NotAllowed, "only root makes slices for jobs of other users")
                    .hint("a workload manager's prolog runs as root"),
            );
        }
        if !wanted.ask.lasting || wanted.parent.is_some() || is_of_tenants(owner.uid) {
            return Err(Fault::new(
                Code::Usage,
                "a job's slice is a lasting one, inside no other, of a user who is no worker's",
            ));
        }
        Ok(Peer {
            uid: owner.uid,
            ..peer
        })
    }

    /// The account that a new slice counts for: inside another slice, that one's.
    fn account_of(&self, state: &State, owner: Peer, wanted: &Wanted) -> Result<u32, Fault> {
        let parent = wanted.parent.as_ref().and_then(|id| state.slices.get(id));
        match parent {
            Some(parent) => Ok(parent.record.account()),
            None if owner.is_trusted(self.uid) => Ok(owner.uid),
            None => state.accounts.require(owner.uid),
        }
    }

    fn try_admit(
        &self,
        state: &mut State,
        peer: Peer,
        wanted: &Wanted,
        ahead: &Ahead,
    ) -> Result<CreatedSlice, Fault> {
        let ask = &wanted.ask;
        let owner = self.owner_of(peer, wanted)?;
        let account = self.account_of(state, owner, wanted)?;
        let mut enforcement = enforce(&ask.request)?;
        let terms = ask.request.terms.compute;
        compute::check(&terms)?;
        modes::check(&ask.request)?;
        if wanted.parent.is_none() {
            compute::check_promise(&terms)?;
        }
        compute::check_weight(owner.uid, self.uid, &terms)?;
        if let Some(spec) = &ask.emulated {
            let devices = emulated_devices(spec, self.run.path())?;
            match self.may_emulate(peer) {
                true => state.inventory.add(devices),
                false => self.check_emulated(state, ask, &devices)?,
            }
        }
        let id = fresh_id(state)?;
        let name = match slice_name(state, owner, &ask.request, &ask.command, &id) {
            // A user's own slice of that name does not keep a job from starting.
            Err(fault) if fault.code == Code::NameTaken && ask.for_job.is_some() => format!("job-{id}"),
            name => name?,
        };
        let placed = self
            .placing
            .place(state, owner, wanted, enforcement.isolation, ahead)?;
        let settings = self.settings.get();
        let shares = placed
            .iter()
            .map(|(device, memory)| share_of(&settings, &ask.request, device, *memory));
        let shares = Shares::of(shares);
        let devices: Vec<DeviceRecord> = placed.into_iter().map(|(device, _)| device).collect();
        let is_inside = is_inside_supervised(state, wanted);
        let least = settings.least();
        let how = Supervision {
            is_default: self.supervises || least.supervises() || is_for_containers(ask) || is_inside,
            is_inside,
            is_told: devices
                .iter()
                .all(|device| !device.is_opencl_only() && self.placing.audit.is_told(device)),
        };
        if devices.iter().any(DeviceRecord::is_opencl_only) {
            check_opencl(&ask.request, &enforcement, is_for_containers(ask))?;
        }
        let boundary = Boundary {
            has_root: privilege::has_root(),
            is_open: !is_for_containers_only(ask) && has_open_nodes(owner, &devices),
        };
        check_boundary(&ask.request, &mut enforcement, boundary)?;
        let unsupervised = supervise(&ask.request, &mut enforcement, how)?;
        least.check(&ask.request, &enforcement)?;
        let (Some(shares), Some(device)) = (shares, devices.first().cloned()) else {
            return Err(Fault::new(
                Code::NoDevice,
                "there is no device to take a slice of",
            ));
        };
        let mut record = SliceRecord {
            id: id.clone(),
            name,
            uid: owner.uid,
            account_uid: (account != owner.uid).then_some(account),
            bypasses: enforcement.bypasses,
            warnings: unsupervised.into_iter().collect(),
            created_at: clock::now(),
            emulated_spec: state.inventory.emulated_spec(&device.uuid).map(str::to_owned),
            page_server_pid: (!ask.lasting).then_some(peer.pid),
            page_server_start_ticks: if ask.lasting { 0 } else { peer.since },
            lifetime_anchor: match (ask.lasting, ask.attended, ask.container_within_ms) {
                (true, true, _) => Some(anchor::of_process(peer.pid)?),
                (true, false, Some(within)) => Some(anchor::of_containers(within)),
                _ => None,
            },
            parent_id: wanted.parent.clone(),
            worker: match enforcement.isolation {
                Isolation::Enforced => Some(free_user(state)?),
                _ => None,
            },
            shares,
            ..as_asked(ask)
        };
        record.terms.isolation = enforcement.isolation;
        life::bound(&mut record, &settings, peer.is_trusted(self.uid))?;
        record.expires_unix_s = match record.terms.ttl_s {
            0 => None,
            seconds => Some(anchor::unix_seconds().saturating_add(seconds)),
        };
        let family = state.family();
        if let Some(parent) = &wanted.parent {
            record.terms.compute = family.compute_inside(parent, terms, None)?;
        }
        record.terms.sharing = match wanted.parent.as_ref().and_then(|parent| family.get(parent)) {
            Some(parent) => {
                modes::check_inside(parent, ask.request.terms.sharing.mode)?;
                record.mps_partition.clone_from(&parent.mps_partition);
                parent.terms.sharing
            }
            None if enforcement.isolation == Isolation::Env => ModeTerms::default(),
            None => self
                .placing
                .mode_of(state, owner.uid, &devices, wanted, enforcement.isolation)?,
        };
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
                self.claims.take(state, device)?;
            }
        }
        let slice = Slice::new(record.clone(), record.page_server_pid, &answer.devices);
        // The process that was pinned as its page server is the caller, and no other process that has its number now.
        peer.require_life()?;
        state.slices.insert(id.clone(), slice);
        let written = match &wanted.parent {
            Some(parent) => self.grants.relend(state, parent),
            None => Ok(()),
        }
        .and_then(|()| self.make_directory(&id))
        .and_then(|()| store(&self.run, &record));
        if let Err(fault) = written {
            state.slices.remove(&id);
            discard(&self.run, &id);
            if let Some(parent) = &wanted.parent {
                let _back = self.grants.relend(state, parent);
            }
            return Err(fault);
        }
        self.grants.changed(state);
        state.bypass_total += record.bypasses.len() as u64;
        let message = format!(
            "{} of {}",
            record.shares.first.memory_limit_bytes, record.shares.first.device_uuid
        );
        self.journal.tell(EventKind::SliceCreated, &record, message);
        if self.journal.may_log(peer.uid) {
            tracing::info!(
                slice = record.name, id, uid = record.uid, by = peer.pid, lasting = record.lasting, inside = record.parent_id,
                device = record.shares.first.device_uuid, memory = record.shares.first.memory_limit_bytes.0, bypasses = ?record.bypasses,
                "slice admitted"
            );
        }
        Ok(answer)
    }

    /// Hands a new slice's pages to its page server, which is the caller.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::SharedMemory`], [`Code::Attach`].
    pub fn activate(&self, peer: Peer, id: &str) -> Result<SliceRecord, Fault> {
        let record = {
            let mut state = self.state.lock();
            let slice = state.find(id, peer)?;
            peer.may_change(slice.record.uid, self.uid)?;
            if slice.record.lasting || slice.record.page_server_pid != Some(peer.pid) {
                return Err(Fault::new(
                    Code::NotAllowed,
                    format!(
                        "process {} is not the page server of slice {}",
                        peer.pid, slice.record.name
                    ),
                ));
            }
            if slice.pages.is_some() && slice.is_kept() {
                // The request came again: an earlier agent died between the handover and its answer.
                slice.record.state = SliceState::Running;
                return Ok(slice.shown());
            }
            slice.record.clone()
        };
        // A page server may be slow, so the state is not locked here.
        let made = pages::hand_over(&control_socket(&self.run, &record.id), &record)?;
        let mut state = self.state.lock();
        let slice = state.find(id, peer)?;
        slice.pages = Some(Arc::new(made));
        // A resize may have come in between.
        slice.write_grants();
        peer.require_life()?;
        slice.record.state = SliceState::Running;
        let record = slice.stored_form();
        store(&self.run, &record)?;
        // This is done before the program starts, so that its first launch finds the gate in its final state.
        self.grants.lease_out(&state);
        Ok(state.find(id, peer)?.shown())
    }

    pub fn may_create(&self, peer: Peer) -> Result<(), Fault> {
        // What a worker is made to do by its tenant is not to take devices by itself; nor is what a guest has QEMU do.
        if peer.is_trusted(self.uid) || (self.settings.get().admit_others && !is_of_tenants(peer.uid)) {
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
