//! Which devices a request lands on, and what it gets of each.

use std::collections::{BTreeMap, HashMap, HashSet};

use divvy_host::emulated_devices;
use divvy_host::visible::{Environment, Runtime, Seen, explain};
use divvy_ledger::MAX_ACCOUNTS;
use divvy_model::{
    Bytes, Code, ComputeTerms, DeviceKind, DeviceRecord, Fault, Isolation, MemoryAmount, Mode, ModeTerms,
    Selector, SliceRequest,
};

use crate::admission::create::Wanted;
use crate::admission::owner::{self, Claim, Owner};
use crate::admission::queue::may_change;
use crate::api::CreateSlice;
use crate::daemon::{Daemon, State, UsedOn};
use crate::decide::admission::{DeviceView, Hold};
use crate::decide::modes::{part_of_gpu, part_of_memory};
use crate::decide::policy::Enforcement;
use crate::decide::quota::{Having, Quota};
use crate::life::pages::uuid_bytes;
use crate::start::trust::system_run_dir;
use crate::system::peer::Peer;

/// Who stands before a request in the queue: what those wait for, it must not take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Waiters by device.
    pub devices: HashMap<String, usize>,
    /// Users who wait for slices of their own to end.
    pub users: HashSet<u32>,
    /// Slices in which somebody waits for room.
    pub parents: HashSet<String>,
}

impl Daemon {
    /// The devices a request lands on, with its share of each: those it names, all of them or none; else the first with
    /// room among those it may have.
    pub(crate) fn place(
        &self,
        state: &mut State,
        peer: Peer,
        wanted: &Wanted,
        enforcement: &Enforcement,
        ahead: &Ahead,
    ) -> Result<Vec<(DeviceRecord, Bytes)>, Fault> {
        let ask = &wanted.ask;
        state.inventory.refresh(&self.nvidia);
        if let Some(parent) = &wanted.parent {
            return self.place_inside(state, parent, ask, ahead);
        }
        let mut refusals = Refusals::default();
        for together in self.candidates(state, ask)? {
            match self.place_together(state, peer, together, &ask.request, enforcement, ahead) {
                Ok(placed) => return Ok(placed),
                Err(refusal) => refusals.add(refusal),
            }
        }
        Err(refusals.tell().unwrap_or_else(|| no_device(state)))
    }

    /// All of these devices, or why not: first what can never be, then what others wait for or hold.
    fn place_together(
        &self,
        state: &mut State,
        peer: Peer,
        devices: Vec<DeviceRecord>,
        request: &SliceRequest,
        enforcement: &Enforcement,
        ahead: &Ahead,
    ) -> Result<Vec<(DeviceRecord, Bytes)>, Fault> {
        let mut placed = Vec::with_capacity(devices.len());
        for device in devices {
            self.check_owner(state, &device)?;
            if device.is_divided() {
                return Err(in_mig_mode(state, &device));
            }
            let share = self.share_of(state, peer, &device, request, enforcement)?;
            placed.push((device, share));
        }
        if ahead.users.contains(&peer.uid) {
            return Err(Fault::new(
                Code::QuotaFull,
                "other runs of yours wait until slices of yours have ended",
            )
            .hint("--wait stands in line behind them"));
        }
        for (device, share) in &placed {
            if let Some(waiters) = ahead.devices.get(&device.uuid) {
                return Err(in_line(device, *waiters));
            }
            self.fits(state, peer, device, *share, request, enforcement)?;
        }
        Ok(placed)
    }

    /// What a request means on a device, if a slice of that size can ever be on it.
    fn share_of(
        &self,
        state: &State,
        peer: Peer,
        device: &DeviceRecord,
        request: &SliceRequest,
        enforcement: &Enforcement,
    ) -> Result<Bytes, Fault> {
        let device_view = self.device_view(state, device, UsedOn::default(), peer.uid);
        let replicas = device_view.replicas(request.mode_terms(), self.settings.timeslice_replicas);
        let share = match (request.memory, replicas) {
            _ if request.whole => device.memory_usable_bytes(),
            (Some(amount), _) => device_view.share(amount),
            (None, Some(replicas)) => part_of_memory(device, replicas),
            (None, None) => device_view.share(MemoryAmount::Share(10_000)),
        };
        if request.whole || enforcement.isolation != Isolation::Env {
            if !request.whole {
                device_view.check_least(share)?;
                device_view.check_size(share)?;
                let compute = request.compute_terms().share;
                self.quota().check_compute(peer.uid, device, compute)?;
            }
            self.quota().check_size(peer.uid, device, share)?;
        }
        Ok(share)
    }

    /// What a request may land on, best first: devices that it gets together. Without a selector, each alone of those that
    /// CUDA_VISIBLE_DEVICES shows, in its order.
    pub(crate) fn candidates(
        &self,
        state: &mut State,
        ask: &CreateSlice,
    ) -> Result<Vec<Vec<DeviceRecord>>, Fault> {
        let visible = ask.visible.as_deref().map(|text| (text, seen(state, ask, text)));
        let chosen = chosen(state, &ask.request)?;
        let each_alone = |devices: Vec<DeviceRecord>| Ok(devices.into_iter().map(|one| vec![one]).collect());
        if ask.request.share_mode == Mode::Mig {
            let among = meant(state, ask)?;
            return each_alone(instances(state, &among, &ask.request)?);
        }
        if chosen.is_empty() {
            return match visible {
                None => each_alone(default_candidates(state, ask)),
                Some((text, visible)) if visible.is_empty() => Err(Fault::new(
                    Code::NotVisible,
                    format!("CUDA_VISIBLE_DEVICES={text} shows no device"),
                )
                .hint("`divvy env explain` says how it is read; unset it to choose among all")),
                Some((_, visible)) => each_alone(visible),
            };
        }
        // An emulated device that was asked for by name is no hardware that a scheduler hands out.
        if let Some((text, visible)) = &visible {
            let hidden = chosen
                .iter()
                .zip(ask.request.selectors())
                .find(|(device, selector)| {
                    !matches!(selector, Selector::Emulated(_))
                        && visible.iter().all(|shown| shown.uuid != device.uuid)
                });
            if let Some((hidden, _)) = hidden {
                return Err(not_visible(hidden, text, visible));
            }
        }
        if chosen.len() > 1 {
            go_together(state, &chosen)?;
        }
        Ok(vec![chosen])
    }

    /// Whether there is room for `share` of a device now.
    fn fits(
        &self,
        state: &mut State,
        peer: Peer,
        device: &DeviceRecord,
        share: Bytes,
        request: &SliceRequest,
        enforcement: &Enforcement,
    ) -> Result<(), Fault> {
        if !request.whole && enforcement.isolation == Isolation::Env {
            return Ok(());
        }
        let used = self.used_on(state, device);
        self.require_answers(device)?;
        let device_view = self.device_view(state, device, used, peer.uid);
        match request.whole {
            true => device_view.admit_whole()?,
            false => device_view.admit(share)?,
        }
        self.check_quota(state, peer.uid, device, share, 1)?;
        if !request.whole {
            self.mode_on(&device_view, request)?;
            self.check_compute(state, peer.uid, device, &request.compute_terms(), None)?;
        }
        Ok(())
    }

    /// How a new slice would share a device.
    fn mode_on(&self, device: &DeviceView<'_>, request: &SliceRequest) -> Result<ModeTerms, Fault> {
        device.admit_mode(
            request.mode_terms(),
            &request.compute_terms(),
            self.settings.timeslice_replicas,
        )
    }

    /// How a new slice shares the devices that were found for it: all alike.
    pub(crate) fn mode_of(
        &self,
        state: &State,
        uid: u32,
        devices: &[DeviceRecord],
        request: &SliceRequest,
    ) -> Result<ModeTerms, Fault> {
        let mut agreed: Option<ModeTerms> = None;
        for device in devices {
            let device_view = self.device_view(state, device, UsedOn::default(), uid);
            let terms = self.mode_on(&device_view, request)?;
            if agreed.is_some_and(|agreed| agreed != terms) {
                return Err(
                    Fault::new(Code::OtherMode, "these devices are shared in different parts")
                        .hint("make a slice of each device"),
                );
            }
            agreed = Some(terms);
        }
        Ok(agreed.unwrap_or_default())
    }

    /// Whether user `uid` may have `more` of `device`, in `new` new slices.
    pub(crate) fn check_quota(
        &self,
        state: &State,
        uid: u32,
        device: &DeviceRecord,
        more: Bytes,
        new: u32,
    ) -> Result<(), Fault> {
        let own = || state.outermost().filter(|slice| slice.record.uid == uid);
        let holds: Vec<Hold> = own().filter_map(|slice| slice.hold_on(&device.uuid)).collect();
        let having = Having {
            holds: holds.iter().collect(),
            slices: u32::try_from(own().count()).unwrap_or(u32::MAX),
        };
        self.quota().admit(uid, &having, device, more, new)
    }

    pub(crate) fn quota(&self) -> Quota {
        Quota {
            memory: self.settings.user_memory,
            slices: self.settings.user_slices,
            compute: self.settings.user_compute,
        }
    }

    /// Whether user `uid` may be promised so much of a device's time; `without` is the slice that is to have this in the
    /// place of what it has.
    pub(crate) fn check_compute(
        &self,
        state: &State,
        uid: u32,
        device: &DeviceRecord,
        terms: &ComputeTerms,
        without: Option<&str>,
    ) -> Result<(), Fault> {
        let device_view = self.device_view(state, device, UsedOn::default(), uid);
        device_view.admit_compute(terms, without)?;
        let own = |hold: &&Hold| hold.uid == uid && Some(hold.id.as_str()) != without;
        let holds: Vec<&Hold> = device_view.holds.iter().filter(own).collect();
        self.quota().admit_compute(uid, &holds, device, terms.share)
    }

    /// Refuses a device that another agent owns, without taking it yet.
    fn check_owner(&self, state: &State, device: &DeviceRecord) -> Result<(), Fault> {
        let key = device.uuid.clone();
        if state.owned.contains(&key) {
            return Ok(());
        }
        // Emulated devices are their run directory's: no other agent has the same.
        if !self.prevails && device.kind != DeviceKind::Emulated {
            let system = system_run_dir();
            let elsewhere = self.run.path() != system;
            if let Some(other) = elsewhere.then(|| owner::system_owner(&system, &key)).flatten() {
                return Err(owner::taken(&key, &other, self.run.path()));
            }
        }
        match owner::owner(&key) {
            Some(other) if self.yields(&other) => Err(owner::taken(&key, &other, self.run.path())),
            _ => Ok(()),
        }
    }

    pub(crate) fn take_device(&self, state: &mut State, device: &DeviceRecord) -> Result<(), Fault> {
        let key = device.uuid.clone();
        if state.owned.contains(&key) {
            if state.contested.contains_key(&key) && owner::is_free_now(&key, self.run.path()) {
                state.contested.remove(&key);
            }
            return Ok(());
        }
        match owner::claim(&key, self.run.path(), |other| self.yields(other))? {
            Claim::Own => {}
            Claim::Contested(other) => {
                tracing::error!(
                    device = key,
                    pid = other.pid,
                    uid = other.uid,
                    "another user's process claims this device: it is handed out all the same"
                );
                state.contested.insert(key.clone(), other);
            }
        }
        state.owned.insert(key);
        Ok(())
    }

    /// Whether this agent leaves a device to one that holds its name. The system agent does so for root only.
    fn yields(&self, other: &Owner) -> bool {
        !self.prevails || other.uid == 0 || other.uid == self.uid
    }

    /// Takes every device at the start, for an agent that serves the whole host.
    pub(crate) fn take_all(&self) {
        if !self.prevails && !self.settings.admit_others {
            return;
        }
        let mut state = self.state();
        for device in state.inventory.devices.clone() {
            if let Err(fault) = self.take_device(&mut state, &device) {
                tracing::error!(hint = fault.hint.as_deref(), "{fault}");
            }
        }
    }
}

/// No device may be had that was not asked for by name.
fn no_device(state: &State) -> Fault {
    state.inventory.unanswered.clone().unwrap_or_else(|| {
        Fault::new(Code::NoDevice, "there is no device to take a slice of")
            .hint("`--device emulated:h100` uses an emulated one")
    })
}

/// Why none of several places will do.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Option<Fault>);

impl Refusals {
    /// The first counts; but one that time may mend counts before those it does not.
    pub fn add(&mut self, refusal: Fault) {
        let told = self.0.as_ref().map(|told| may_change(told.code));
        if told.is_none_or(|told| !told && may_change(refusal.code)) {
            self.0 = Some(refusal);
        }
    }

    pub fn tell(self) -> Option<Fault> {
        self.0
    }
}

/// The devices that a request names, in its order.
pub(crate) fn chosen(state: &mut State, request: &SliceRequest) -> Result<Vec<DeviceRecord>, Fault> {
    let mut chosen: Vec<DeviceRecord> = Vec::new();
    for selector in request.selectors() {
        let mut device = state.inventory.choose(selector)?;
        let is_new = |device: &DeviceRecord| chosen.iter().all(|other| other.uuid != device.uuid);
        if let Selector::Emulated(profile) = selector
            && !is_new(&device)
        {
            // Devices of one product are alike: the next one is meant.
            let mut alike = state.inventory.devices.iter();
            let another = alike.find(|one| one.profile.as_ref() == Some(profile) && is_new(one));
            device = another.cloned().unwrap_or(device);
        }
        if !is_new(&device) {
            return Err(Fault::new(
                Code::OneSlice,
                format!("device {} ({}) is asked for twice", device.index, device.uuid),
            )
            .hint("name each device of a slice once"));
        }
        chosen.push(device);
    }
    Ok(chosen)
}

/// The devices that a request may have, whether they are divided or not.
pub(crate) fn meant(state: &mut State, ask: &CreateSlice) -> Result<Vec<DeviceRecord>, Fault> {
    let chosen = chosen(state, &ask.request)?;
    Ok(match (&ask.visible, chosen.is_empty()) {
        (_, false) => chosen,
        (Some(text), true) => seen(state, ask, text),
        (None, true) => default_candidates(state, ask),
    })
}

/// Whether one program can use these devices under one slice.
fn go_together(state: &State, devices: &[DeviceRecord]) -> Result<(), Fault> {
    let cannot = |message: String, hint: &str| Err(Fault::new(Code::OneSlice, message).hint(hint));
    if devices.len() > MAX_ACCOUNTS as usize {
        return cannot(
            format!("{} devices are too many for one slice", devices.len()),
            &format!("a slice has at most {MAX_ACCOUNTS}"),
        );
    }
    if let Some(mig) = devices.iter().find(|device| device.mig_instance().is_some()) {
        return cannot(
            format!(
                "{} is a MIG instance, beside which a program sees no other device",
                mig.uuid
            ),
            "CUDA shows a program one MIG instance at a time: make a slice of each",
        );
    }
    let spec = |device: &DeviceRecord| state.inventory.emulated_spec(&device.uuid).map(str::to_owned);
    let first = devices.first().and_then(spec);
    if devices.iter().any(|device| spec(device) != first) {
        return cannot(
            "these devices have no driver in common".into(),
            "choose real devices, or emulated ones of one DIVVY_EMULATED, as h100*2",
        );
    }
    match devices.iter().find(|device| uuid_bytes(&device.uuid) == [0; 16]) {
        Some(device) => cannot(
            format!(
                "{} has no UUID by which its programs' memory could be told apart",
                device.uuid
            ),
            "make a slice of each device",
        ),
        None => Ok(()),
    }
}

/// Whether a device is a MIG instance of a GPU.
fn is_part_of(instance: &DeviceRecord, gpu: &DeviceRecord) -> bool {
    instance
        .mig_instance()
        .is_some_and(|place| place.gpu_uuid == gpu.uuid)
}

/// The MIG instances among these devices, and of them, that are large enough: the smallest first.
fn instances(
    state: &State,
    among: &[DeviceRecord],
    request: &SliceRequest,
) -> Result<Vec<DeviceRecord>, Fault> {
    let all = &state.inventory.devices;
    let meant = |one: &&DeviceRecord| {
        one.mig_instance().is_some()
            && among
                .iter()
                .any(|device| device.uuid == one.uuid || is_part_of(one, device))
    };
    let large_enough = |one: &&DeviceRecord| {
        let memory = match request.memory {
            Some(MemoryAmount::Bytes(bytes)) => bytes <= one.memory_usable_bytes(),
            Some(MemoryAmount::Share(_)) | None => true,
        };
        let part = part_of_gpu(one, all);
        memory
            && request
                .compute
                .is_none_or(|least| part.is_none_or(|part| part >= least))
    };
    let mut found: Vec<DeviceRecord> = all.iter().filter(meant).filter(large_enough).cloned().collect();
    found.sort_by_key(|one| (one.memory_total_bytes, one.sm_count, one.index));
    if !found.is_empty() {
        return Ok(found);
    }
    let (memory, compute) = (request.memory, request.compute);
    let with = match (memory, compute) {
        (None, None) => String::new(),
        (Some(memory), None) => format!(" of {memory}"),
        (None, Some(compute)) => format!(" of {compute} of a device"),
        (Some(memory), Some(compute)) => format!(" of {memory} and {compute} of a device"),
    };
    Err(
        Fault::new(Code::NoMig, format!("there is no MIG instance{with} here"))
            .hint("`divvy mig list` shows what there is, `divvy mig apply` makes instances"),
    )
}

fn not_visible(chosen: &DeviceRecord, text: &str, visible: &[DeviceRecord]) -> Fault {
    let shown: Vec<String> = visible
        .iter()
        .map(|device| format!("{} ({})", device.index, device.uuid))
        .collect();
    let fault = Fault::new(
        Code::NotVisible,
        format!(
            "device {} ({}) is not among those of CUDA_VISIBLE_DEVICES={text}",
            chosen.index, chosen.uuid
        ),
    );
    match shown.as_slice() {
        [] => fault.hint("it shows no device; unset it to choose among all"),
        shown => fault.hint(format!("choose among {}", shown.join(", "))),
    }
}

fn in_mig_mode(state: &State, gpu: &DeviceRecord) -> Fault {
    let of_it = |device: &&DeviceRecord| {
        device
            .mig_instance()
            .is_some_and(|place| place.gpu_uuid == gpu.uuid)
    };
    let instances: Vec<&str> = state
        .inventory
        .devices
        .iter()
        .filter(of_it)
        .map(|device| device.uuid.as_str())
        .collect();
    let fault = Fault::new(
        Code::MigMode,
        format!("device {} ({}) is in MIG mode", gpu.index, gpu.uuid),
    );
    match instances.as_slice() {
        [] => fault.hint("it has no instances: `divvy mig apply` makes some, or turns the mode off"),
        some => fault.hint(format!("name one of its instances: {}", some.join(", "))),
    }
}

fn in_line(device: &DeviceRecord, waiters: usize) -> Fault {
    let runs = match waiters {
        1 => "a run waits".into(),
        many => format!("{many} runs wait"),
    };
    Fault::new(Code::DeviceFull, format!("{runs} for room on {}", device.uuid))
        .hint("nobody overtakes: --wait stands in line behind them")
}

/// The devices that CUDA_VISIBLE_DEVICES=`text` shows, in the program's order.
fn seen(state: &State, ask: &CreateSlice, text: &str) -> Vec<DeviceRecord> {
    let all = default_candidates(state, ask);
    // Where there is hardware, the variable speaks of that.
    let hardware = all.iter().any(|device| device.kind != DeviceKind::Emulated);
    let mut devices: Vec<DeviceRecord> = all
        .into_iter()
        .filter(|device| !hardware || device.kind != DeviceKind::Emulated)
        .collect();
    devices.sort_by_key(|device| device.index);
    let environment: Environment = BTreeMap::from([("CUDA_VISIBLE_DEVICES".to_owned(), text.to_owned())]);
    let explained = explain(&environment, &Seen::of(&devices));
    let shown = explained
        .of(Runtime::Cuda)
        .map_or(&[][..], |view| view.visible.as_slice());
    let find = |index: &u32| devices.iter().find(|device| device.index == *index).cloned();
    shown.iter().filter_map(find).collect()
}

/// Of a slice's devices, by their UUIDs, those that CUDA_VISIBLE_DEVICES shows who asks inside the slice, in its order.
///
/// # Errors
/// [`Code::NotVisible`] where it shows none of them.
pub(crate) fn shown_inside(state: &State, ask: &CreateSlice, own: &[String]) -> Result<Vec<String>, Fault> {
    // What the slice itself says is not read again: it names all there are.
    let Some(text) = ask.visible.as_deref().filter(|text| *text != own.join(",")) else {
        return Ok(own.to_vec());
    };
    let shown: Vec<String> = seen(state, ask, text)
        .into_iter()
        .map(|device| device.uuid)
        .filter(|uuid| own.contains(uuid))
        .collect();
    match shown.is_empty() {
        false => Ok(shown),
        true => Err(Fault::new(
            Code::NotVisible,
            format!("CUDA_VISIBLE_DEVICES={text} shows no device of this slice"),
        )
        .hint(format!(
            "`divvy env explain` says how it is read; the slice has {}",
            own.join(" and ")
        ))),
    }
}

/// Without a selector: the emulated devices of the caller's own specification, as far as they are here, else the machine's.
/// An emulated device that was asked for by name is for those who name it.
fn default_candidates(state: &State, ask: &CreateSlice) -> Vec<DeviceRecord> {
    let devices = &state.inventory.devices;
    if let Some(spec) = &ask.emulated {
        let wanted = emulated_devices(spec, &state.inventory.run_dir).unwrap_or_default();
        let found = wanted.into_iter().filter_map(|wanted| {
            let mut here = devices.iter();
            here.find(|device| device.uuid == wanted.record.uuid).cloned()
        });
        let mut own: Vec<DeviceRecord> = found.collect();
        own.sort_by_key(DeviceRecord::is_divided);
        if !own.is_empty() {
            return own;
        }
    }
    let own = devices.iter().filter(|device| state.inventory.is_own(device));
    let mut candidates: Vec<DeviceRecord> = own.cloned().collect();
    candidates.sort_by_key(|device| {
        (
            device.kind == DeviceKind::Emulated,
            device.is_divided(),
            device.index,
        )
    });
    candidates
}
