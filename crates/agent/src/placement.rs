//! Which devices a request lands on, and what it gets of each.

use std::collections::{BTreeMap, HashMap, HashSet};

use divvy_host::emulated_devices;
use divvy_host::visible::{Environment, Runtime, Seen, explain};
use divvy_ledger::MAX_ACCOUNTS;
use divvy_model::{
    Bytes, Code, DeviceKind, DeviceRecord, Fault, Isolation, MemoryAmount, Selector, SliceRequest,
};

use crate::admission::Hold;
use crate::api::CreateSlice;
use crate::create::Wanted;
use crate::daemon::{Book, Daemon, Peer};
use crate::owner;
use crate::pages::uuid_bytes;
use crate::policy::Enforcement;
use crate::quota::{Having, Quota};

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
        book: &mut Book,
        peer: Peer,
        wanted: &Wanted,
        enforcement: &Enforcement,
        ahead: &Ahead,
    ) -> Result<Vec<(DeviceRecord, Bytes)>, Fault> {
        let ask = &wanted.ask;
        if let Some(parent) = &wanted.parent {
            if ahead.parents.contains(parent) {
                return Err(Fault::new(Code::SliceFull, "others wait for room in this slice")
                    .hint("--wait stands in line behind them"));
            }
            return self.place_inside(book, parent, ask);
        }
        if ahead.users.contains(&peer.uid) {
            return Err(Fault::new(
                Code::QuotaFull,
                "other runs of yours wait until slices of yours have ended",
            )
            .hint("--wait stands in line behind them"));
        }
        let mut first_refusal = None;
        for together in self.candidates(book, ask)? {
            let placed = together.into_iter().map(|device| {
                let share = match ahead.devices.get(&device.uuid) {
                    Some(waiters) => Err(in_line(&device, *waiters)),
                    None => self.fits(book, peer, &device, &ask.request, enforcement),
                }?;
                Ok((device, share))
            });
            match placed.collect::<Result<Vec<_>, Fault>>() {
                Ok(placed) => return Ok(placed),
                Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
            }
        }
        Err(first_refusal.unwrap_or_else(|| {
            Fault::new(Code::NoDevice, "there is no device to take a slice of")
                .hint("`--device emulated:h100` uses an emulated one")
        }))
    }

    /// What a request may land on, best first: devices that it gets together. Without a selector, each alone of those that
    /// CUDA_VISIBLE_DEVICES shows, in its order.
    pub(crate) fn candidates(
        &self,
        book: &mut Book,
        ask: &CreateSlice,
    ) -> Result<Vec<Vec<DeviceRecord>>, Fault> {
        let visible = ask.visible.as_deref().map(|text| (text, seen(book, ask, text)));
        let chosen = chosen(book, &ask.request)?;
        let each_alone = |devices: Vec<DeviceRecord>| Ok(devices.into_iter().map(|one| vec![one]).collect());
        if chosen.is_empty() {
            return match visible {
                None => each_alone(default_candidates(book, ask)),
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
            go_together(book, &chosen)?;
        }
        Ok(vec![chosen])
    }

    fn fits(
        &self,
        book: &mut Book,
        peer: Peer,
        device: &DeviceRecord,
        request: &SliceRequest,
        enforcement: &Enforcement,
    ) -> Result<Bytes, Fault> {
        self.check_owner(book, device)?;
        let unmanaged = self.used_on(book, device).unmanaged;
        let device_book = self.device_book(book, device, unmanaged, peer.uid);
        if request.whole {
            device_book.admit_whole()?;
            let share = device.memory_total_bytes;
            self.check_quota(book, peer.uid, device, share, 1)?;
            return Ok(share);
        }
        let amount = request.memory.unwrap_or(MemoryAmount::Share(10_000));
        let share = device_book.share(amount);
        if enforcement.isolation != Isolation::Env {
            device_book.admit(share)?;
            self.check_quota(book, peer.uid, device, share, 1)?;
        }
        Ok(share)
    }

    /// Whether user `uid` may have `more` of `device`, in `new` new slices.
    pub(crate) fn check_quota(
        &self,
        book: &Book,
        uid: u32,
        device: &DeviceRecord,
        more: Bytes,
        new: u32,
    ) -> Result<(), Fault> {
        let quota = Quota {
            memory: self.settings.user_memory,
            slices: self.settings.user_slices,
        };
        let own = || book.outermost().filter(|slice| slice.record.uid == uid);
        let holds: Vec<Hold> = own().filter_map(|slice| slice.hold_on(&device.uuid)).collect();
        let having = Having {
            holds: holds.iter().collect(),
            slices: u32::try_from(own().count()).unwrap_or(u32::MAX),
        };
        quota.admit(uid, &having, device, more, new)
    }

    /// Refuses a device that another agent owns, without taking it yet.
    fn check_owner(&self, book: &Book, device: &DeviceRecord) -> Result<(), Fault> {
        let key = device.uuid.clone();
        match owner::owner(&key) {
            Some(other) if !book.owned.contains(&key) => Err(owner::taken(&key, &other)),
            _ => Ok(()),
        }
    }

    pub(crate) fn take_device(&self, book: &mut Book, device: &DeviceRecord) -> Result<(), Fault> {
        let key = device.uuid.clone();
        if !book.owned.contains(&key) {
            owner::own(&key, self.run.path())?;
            book.owned.insert(key);
        }
        Ok(())
    }
}

/// The devices that a request names, in its order.
pub(crate) fn chosen(book: &mut Book, request: &SliceRequest) -> Result<Vec<DeviceRecord>, Fault> {
    let mut chosen: Vec<DeviceRecord> = Vec::new();
    for selector in request.selectors() {
        let mut device = book.inventory.choose(selector)?;
        let is_new = |device: &DeviceRecord| chosen.iter().all(|other| other.uuid != device.uuid);
        if let Selector::Emulated(profile) = selector
            && !is_new(&device)
        {
            // Devices of one product are alike: the next one is meant.
            let mut alike = book.inventory.devices.iter();
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

/// Whether one program can use these devices under one slice.
fn go_together(book: &Book, devices: &[DeviceRecord]) -> Result<(), Fault> {
    let cannot = |message: String, hint: &str| Err(Fault::new(Code::OneSlice, message).hint(hint));
    if devices.len() > MAX_ACCOUNTS as usize {
        return cannot(
            format!("{} devices are too many for one slice", devices.len()),
            &format!("a slice has at most {MAX_ACCOUNTS}"),
        );
    }
    if let Some(mig) = devices.iter().find(|device| device.kind == DeviceKind::Mig) {
        return cannot(
            format!(
                "{} is a MIG instance, beside which a program sees no other device",
                mig.uuid
            ),
            "CUDA shows a program one MIG instance at a time: make a slice of each",
        );
    }
    let spec = |device: &DeviceRecord| book.inventory.emulated_spec(&device.uuid).map(str::to_owned);
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

fn in_line(device: &DeviceRecord, waiters: usize) -> Fault {
    let runs = match waiters {
        1 => "a run waits".into(),
        many => format!("{many} runs wait"),
    };
    Fault::new(Code::DeviceFull, format!("{runs} for memory of {}", device.uuid))
        .hint("nobody overtakes: --wait stands in line behind them")
}

/// The devices that CUDA_VISIBLE_DEVICES=`text` shows, in the program's order.
fn seen(book: &Book, ask: &CreateSlice, text: &str) -> Vec<DeviceRecord> {
    let all = default_candidates(book, ask);
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

/// Without a selector: the emulated devices of the caller's own specification, else every device, a physical one
/// before an emulated one that somebody asked for by name.
fn default_candidates(book: &Book, ask: &CreateSlice) -> Vec<DeviceRecord> {
    let devices = &book.inventory.devices;
    let own: Vec<DeviceRecord> = match &ask.emulated {
        Some(spec) => emulated_devices(spec, &book.inventory.run_dir)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|wanted| {
                devices
                    .iter()
                    .find(|device| device.uuid == wanted.record.uuid)
                    .cloned()
            })
            .collect(),
        None => Vec::new(),
    };
    if !own.is_empty() {
        return own;
    }
    let mut candidates = devices.clone();
    candidates.sort_by_key(|device| (device.kind == DeviceKind::Emulated, device.index));
    candidates
}
