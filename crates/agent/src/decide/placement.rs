//! Placement: which devices a request gets, and how much of each.

use std::collections::BTreeMap;

use divvy_host::Inventory;
use divvy_host::visible::{Environment, Runtime, Seen, explain};
use divvy_ledger::MAX_ACCOUNTS;
use divvy_model::{
    Bytes, Code, DeviceKind, DeviceRecord, Fault, Isolation, MemoryAmount, Mode, ModeTerms, Selector,
    SliceRequest,
};

use crate::decide::admission::DeviceView;
use crate::decide::modes::{part_of_gpu, part_of_memory};
use crate::decide::queue::{Ahead, may_change};
use crate::decide::rules::{Rules, Tenants, UsedOn};

/// The device part of a request.
#[derive(Clone, Debug)]
pub struct PlacementRequest<'a> {
    /// The request.
    pub request: &'a SliceRequest,
    /// The caller's CUDA_VISIBLE_DEVICES, where it is set.
    pub visible: Option<&'a str>,
    /// The devices that it names, in its order.
    pub chosen: Vec<DeviceRecord>,
    /// The emulated devices of the caller's own specification, by UUID.
    pub own: Vec<String>,
}

/// A request to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The agent's rules, for the caller.
    pub rules: Rules<'a>,
    /// The request.
    pub request: &'a SliceRequest,
    /// The isolation level that it gets.
    pub isolation: Isolation,
    /// The resources that earlier requests in the queue wait for.
    pub ahead: &'a Ahead,
}

/// The result of a look at a device.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// Bytes in use on the device.
    pub used: UsedOn,
    /// The slices, by what they held at that look.
    pub tenants: Tenants,
}

/// The host, as far as placement asks for looks at it.
pub trait Host {
    /// Refuses a device that another agent owns.
    ///
    /// # Errors
    /// The refusal.
    fn check_owner(&mut self, device: &DeviceRecord) -> Result<(), Fault>;

    /// Looks at a device.
    ///
    /// # Errors
    /// [`Code::Driver`] where its driver does not answer.
    fn look(&mut self, device: &DeviceRecord) -> Result<Sight, Fault>;
}

/// Devices with the request's share of each, in bytes.
pub type Placed = Vec<(DeviceRecord, Bytes)>;

impl Question<'_> {
    /// The first of `candidates` with space: devices that the request gets together, all of them or none.
    ///
    /// # Errors
    /// The reason why no candidate will do.
    pub fn place(
        &self,
        inventory: &Inventory,
        candidates: Vec<Vec<DeviceRecord>>,
        tenants: &Tenants,
        host: &mut dyn Host,
    ) -> Result<Placed, Fault> {
        let mut refusals = Refusals::default();
        for together in candidates {
            match self.place_together(inventory, together, tenants, host) {
                Ok(placed) => return Ok(placed),
                Err(refusal) => refusals.add(refusal),
            }
        }
        Err(refusals.tell().unwrap_or_else(|| no_device(inventory)))
    }

    /// Takes all of these devices, or says why not: first what can never fit, then what others wait for or hold.
    fn place_together(
        &self,
        inventory: &Inventory,
        devices: Vec<DeviceRecord>,
        tenants: &Tenants,
        host: &mut dyn Host,
    ) -> Result<Placed, Fault> {
        let mut placed = Vec::with_capacity(devices.len());
        for device in devices {
            host.check_owner(&device)?;
            if device.is_divided() {
                return Err(in_mig_mode(inventory, &device));
            }
            let share = self.share_of(&device, tenants)?;
            placed.push((device, share));
        }
        if self.ahead.accounts.contains(&self.rules.account) {
            return Err(Fault::new(
                Code::QuotaFull,
                "other runs of yours wait until slices of yours have ended",
            )
            .hint("--wait stands in line behind them"));
        }
        for (device, share) in &placed {
            if let Some(waiters) = self.ahead.devices.get(&device.uuid) {
                return Err(in_line(device, *waiters));
            }
            self.check_room(device, *share, host)?;
        }
        Ok(placed)
    }

    /// The request's size on a device, if a slice of that size can ever be on it.
    fn share_of(&self, device: &DeviceRecord, tenants: &Tenants) -> Result<Bytes, Fault> {
        let (rules, request) = (&self.rules, self.request);
        let view = rules.view(device, UsedOn::default(), tenants);
        let replicas = view.replicas(request.terms.sharing, rules.settings.timeslice_replicas);
        let share = match (request.memory, replicas) {
            _ if request.terms.whole => device.memory_usable_bytes(),
            (Some(amount), _) => view.share(amount),
            (None, Some(replicas)) => part_of_memory(device, replicas),
            (None, None) => view.share(MemoryAmount::Share(10_000)),
        };
        if request.terms.whole || self.isolation != Isolation::Env {
            if !request.terms.whole {
                view.check_least(share)?;
                view.check_size(share)?;
                let compute = request.terms.compute.share;
                rules.quota().check_compute(rules.account, device, compute)?;
            }
            rules.quota().check_size(rules.account, device, share)?;
        }
        Ok(share)
    }

    /// Whether `share` of a device is free now.
    fn check_room(&self, device: &DeviceRecord, share: Bytes, host: &mut dyn Host) -> Result<(), Fault> {
        let (rules, request) = (&self.rules, self.request);
        if !request.terms.whole && self.isolation == Isolation::Env {
            return Ok(());
        }
        let Sight { used, tenants } = host.look(device)?;
        let view = rules.view(device, used, &tenants);
        match request.terms.whole {
            true => view.admit_whole()?,
            false => view.admit(share)?,
        }
        rules.check_quota(&tenants, rules.account, device, share, 1)?;
        if !request.terms.whole {
            self.mode_on(&view)?;
            rules.check_compute(&tenants, rules.account, device, &request.terms.compute, None)?;
        }
        Ok(())
    }

    /// How a new slice would share a device.
    fn mode_on(&self, device: &DeviceView<'_>) -> Result<ModeTerms, Fault> {
        device.admit_mode(
            self.request.terms.sharing,
            &self.request.terms.compute,
            self.rules.settings.timeslice_replicas,
        )
    }

    /// The sharing mode of a new slice on the devices that were found for it: the same on all.
    ///
    /// # Errors
    /// [`Code::OtherMode`], [`Code::TooManySlices`], [`Code::NoMig`].
    pub fn mode_of<'d>(
        &self,
        devices: impl IntoIterator<Item = &'d DeviceRecord>,
        tenants: &Tenants,
    ) -> Result<ModeTerms, Fault> {
        let mut agreed: Option<ModeTerms> = None;
        for device in devices {
            let view = self.rules.view(device, UsedOn::default(), tenants);
            let terms = self.mode_on(&view)?;
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
}

/// The candidates for a request, best first; a candidate's devices are taken together. Without a selector, each visible
/// device is a candidate, in the order of CUDA_VISIBLE_DEVICES.
///
/// # Errors
/// [`Code::NotVisible`], [`Code::NoMig`], [`Code::OneSlice`].
pub fn candidates(
    inventory: &Inventory,
    asked: &PlacementRequest<'_>,
) -> Result<Vec<Vec<DeviceRecord>>, Fault> {
    let visible = asked.visible.map(|text| (text, seen(inventory, asked, text)));
    let each_alone = |devices: Vec<DeviceRecord>| Ok(devices.into_iter().map(|one| vec![one]).collect());
    if asked.request.terms.sharing.mode == Mode::Mig {
        let among = meant(inventory, asked);
        return each_alone(instances(inventory, &among, asked.request)?);
    }
    if asked.chosen.is_empty() {
        return match visible {
            None => each_alone(default_candidates(inventory, asked)),
            Some((text, visible)) if visible.is_empty() => Err(Fault::new(
                Code::NotVisible,
                format!("CUDA_VISIBLE_DEVICES={text} shows no device"),
            )
            .hint("`divvy env explain` says how it is read; unset it to choose among all")),
            Some((_, visible)) => each_alone(visible),
        };
    }
    // An emulated device that is named is not hardware that a scheduler hands out.
    if let Some((text, visible)) = &visible {
        let hidden = asked
            .chosen
            .iter()
            .zip(asked.request.selectors())
            .find(|(device, selector)| {
                !matches!(selector, Selector::Emulated(_))
                    && visible.iter().all(|shown| shown.uuid != device.uuid)
            });
        if let Some((hidden, _)) = hidden {
            return Err(not_visible(hidden, text, visible));
        }
    }
    if asked.chosen.len() > 1 {
        check_together(inventory, &asked.chosen)?;
    }
    Ok(vec![asked.chosen.clone()])
}

/// The refusal where no device is available that was not named.
fn no_device(inventory: &Inventory) -> Fault {
    inventory.unanswered.clone().unwrap_or_else(|| {
        Fault::new(Code::NoDevice, "there is no device to take a slice of")
            .hint("`--device emulated:h100` uses an emulated one")
    })
}

/// The device of this UUID.
///
/// # Errors
/// [`Code::UnknownDevice`]: the device is gone since a slice was made of it.
pub fn device_of(inventory: &Inventory, uuid: &str) -> Result<DeviceRecord, Fault> {
    let mut devices = inventory.devices.iter();
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

/// The reason why none of several candidates will do.
#[derive(Debug, Default)]
pub struct Refusals(Option<Fault>);

impl Refusals {
    /// The first refusal counts, but one that time may change counts before those that it does not.
    pub fn add(&mut self, refusal: Fault) {
        let told = self.0.as_ref().map(|told| may_change(told.code));
        if told.is_none_or(|told| !told && may_change(refusal.code)) {
            self.0 = Some(refusal);
        }
    }

    /// The refusal that counts.
    pub fn tell(self) -> Option<Fault> {
        self.0
    }
}

/// Adds `device`, which `selector` names, to those that a request has `chosen` before. Devices of one emulated product
/// are alike: where this one is chosen already, the next one is meant.
///
/// # Errors
/// [`Code::OneSlice`] for a device that is asked for twice.
pub fn choose(
    inventory: &Inventory,
    chosen: &mut Vec<DeviceRecord>,
    selector: &Selector,
    mut device: DeviceRecord,
) -> Result<(), Fault> {
    let is_new = |device: &DeviceRecord| chosen.iter().all(|other| other.uuid != device.uuid);
    if let Selector::Emulated(profile) = selector
        && !is_new(&device)
    {
        let mut alike = inventory.devices.iter();
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
    Ok(())
}

/// The devices that a request may have, divided or not.
#[must_use]
pub fn meant(inventory: &Inventory, asked: &PlacementRequest<'_>) -> Vec<DeviceRecord> {
    match (asked.visible, asked.chosen.is_empty()) {
        (_, false) => asked.chosen.clone(),
        (Some(text), true) => seen(inventory, asked, text),
        (None, true) => default_candidates(inventory, asked),
    }
}

/// Whether one program can use these devices under one slice.
fn check_together(inventory: &Inventory, devices: &[DeviceRecord]) -> Result<(), Fault> {
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
    let spec = |device: &DeviceRecord| inventory.emulated_spec(&device.uuid).map(str::to_owned);
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

/// The MIG instances among these devices that are large enough, the smallest first.
fn instances(
    inventory: &Inventory,
    among: &[DeviceRecord],
    request: &SliceRequest,
) -> Result<Vec<DeviceRecord>, Fault> {
    let all = &inventory.devices;
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
                .terms
                .compute
                .share
                .is_none_or(|least| part.is_none_or(|part| part >= least))
    };
    let mut found: Vec<DeviceRecord> = all.iter().filter(meant).filter(large_enough).cloned().collect();
    found.sort_by_key(|one| (one.memory_total_bytes, one.sm_count, one.index));
    if !found.is_empty() {
        return Ok(found);
    }
    let (memory, compute) = (request.memory, request.terms.compute.share);
    let with = match (memory, compute) {
        (None, None) => String::new(),
        (Some(memory), None) => format!(" of {memory}"),
        (None, Some(compute)) => format!(" of {compute} of a device"),
        (Some(memory), Some(compute)) => format!(" of {memory} and {compute} of a device"),
    };
    Err(
        Fault::new(Code::NoMig, format!("there is no MIG instance{with} here"))
            .hint("`divvy gpu mig list` shows what there is, `divvy gpu mig apply` makes instances"),
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

fn in_mig_mode(inventory: &Inventory, gpu: &DeviceRecord) -> Fault {
    let of_it = |device: &&DeviceRecord| {
        device
            .mig_instance()
            .is_some_and(|place| place.gpu_uuid == gpu.uuid)
    };
    let instances: Vec<&str> = inventory
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
        [] => fault.hint("it has no instances: `divvy gpu mig apply` makes some, or turns the mode off"),
        some => fault.hint(format!("name one of its instances: {}", some.join(", "))),
    }
}

fn in_line(device: &DeviceRecord, waiters: usize) -> Fault {
    let runs = match waiters {
        1 => "a run waits".into(),
        many => format!("{many} runs wait"),
    };
    Fault::new(Code::DeviceFull, format!("{runs} for room on {}", device.uuid))
        .hint("no request overtakes: --wait stands in line behind them")
}

/// The devices that CUDA_VISIBLE_DEVICES=`text` shows, in the program's order.
fn seen(inventory: &Inventory, asked: &PlacementRequest<'_>, text: &str) -> Vec<DeviceRecord> {
    let all = default_candidates(inventory, asked);
    // Where there is hardware, the variable refers to that.
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

/// Of a slice's devices, by UUID, those that CUDA_VISIBLE_DEVICES shows to a caller inside the slice, in its order.
///
/// # Errors
/// [`Code::NotVisible`] where it shows none of them.
pub fn shown_inside(
    inventory: &Inventory,
    asked: &PlacementRequest<'_>,
    own: &[String],
) -> Result<Vec<String>, Fault> {
    // The variable that the slice itself sets is not read again: it names all devices.
    let Some(text) = asked.visible.filter(|text| *text != own.join(",")) else {
        return Ok(own.to_vec());
    };
    let shown: Vec<String> = seen(inventory, asked, text)
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

/// Without a selector: the emulated devices of the caller's own specification where they exist, else the machine's
/// devices. An emulated device that was made by name is for requests that name it.
fn default_candidates(inventory: &Inventory, asked: &PlacementRequest<'_>) -> Vec<DeviceRecord> {
    let devices = &inventory.devices;
    let found = asked.own.iter().filter_map(|uuid| {
        let mut here = devices.iter();
        here.find(|device| device.uuid == *uuid).cloned()
    });
    let mut own: Vec<DeviceRecord> = found.collect();
    own.sort_by_key(DeviceRecord::is_divided);
    if !own.is_empty() {
        return own;
    }
    let own = devices.iter().filter(|device| inventory.is_own(device));
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

/// The sixteen bytes of a UUID written `GPU-1a2b…` (or `MIG-…`); zeros for text that is not a UUID.
#[must_use]
pub fn uuid_bytes(text: &str) -> [u8; 16] {
    let digits: Vec<u8> = text
        .split_once('-')
        .map_or("", |(_, digits)| digits)
        .bytes()
        .filter_map(|byte| char::from(byte).to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    let mut bytes = [0; 16];
    if digits.len() == 32 {
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
    }
    bytes
}
