//! MIG instances that are made at admission: for which request, of which GPU, and what is undone after their slices.

use divvy_host::mig::{Least, MigDevice};
use divvy_model::{Code, DeviceKind, DeviceRecord, MemoryAmount, Mode, SliceRequest};

use crate::decide::family::Family;

/// Whether a new instance could change the refusal of a request.
#[must_use]
pub fn may_help(request: &SliceRequest, refusal: Code) -> bool {
    request.terms.sharing.mode == Mode::Mig && matches!(refusal, Code::NoMig | Code::OtherMode)
}

/// The least that an instance must have for a request: memory in bytes, compute in parts of 10,000 of its GPU.
#[must_use]
pub fn least(request: &SliceRequest) -> Least {
    Least {
        memory_bytes: match request.memory {
            Some(MemoryAmount::Bytes(bytes)) => bytes.0,
            Some(MemoryAmount::Share(_)) | None => 0,
        },
        compute: request
            .terms
            .compute
            .share
            .map_or(0, |compute| u64::from(compute.0)),
    }
}

/// The GPUs among `devices` that could be divided, those without a slice first; with each, whether slices have it
/// whole.
#[must_use]
pub fn gpus_to_divide(devices: Vec<DeviceRecord>, family: &Family<'_>) -> Vec<(DeviceRecord, bool)> {
    let gpus = devices.into_iter().filter(|device| {
        device.mig_instance().is_none() && matches!(device.kind, DeviceKind::Gpu | DeviceKind::Emulated)
    });
    let mut gpus: Vec<(DeviceRecord, bool)> = gpus
        .map(|device| {
            let taken = family
                .all()
                .any(|record| record.shares.place_of(&device.uuid).is_some());
            (device, taken)
        })
        .collect();
    gpus.sort_by_key(|(_, taken)| *taken);
    gpus
}

/// Whether a GPU may get one more instance: MIG mode is on, or may be turned on because no slice and no program has it.
#[must_use]
pub fn may_be_divided(gpu: &MigDevice, taken: bool) -> bool {
    match gpu.mode {
        Some(true) => true,
        Some(false) => !taken && gpu.tenants.is_empty(),
        None => false,
    }
}

/// The action for an instance that the agent made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutBack {
    /// Its GPU is gone: nothing can be undone.
    Forget,
    /// A slice has it.
    Keep,
    /// The instance is removed, by the driver's id.
    Remove(u32),
    /// The instance was never made, or is gone already.
    IsRemoved,
}

/// The action for instance `made` of `gpu`. `has_slice` tells whether a slice has the device of a UUID.
#[must_use]
pub fn put_back(gpu: Option<&MigDevice>, made: Option<u32>, has_slice: impl Fn(&str) -> bool) -> PutBack {
    let Some(gpu) = gpu else {
        return PutBack::Forget;
    };
    let mut instances = gpu.instances.iter();
    let Some(instance) = instances.find(|instance| Some(instance.id) == made) else {
        return PutBack::IsRemoved;
    };
    let mut uuids = instance.compute.iter().filter_map(|one| one.uuid.as_deref());
    match uuids.any(has_slice) {
        true => PutBack::Keep,
        false => PutBack::Remove(instance.id),
    }
}

/// The action for MIG mode after an instance is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeAfter {
    /// The mode was on before the agent made the instance.
    Stays,
    /// The last instance is gone.
    TurnOff,
    /// Other instances remain: the last one that the agent made turns the mode off.
    HandOn,
}

/// The action for MIG mode on `gpu` in its present state. `turned_on`: the agent turned the mode on for the instance.
#[must_use]
pub fn mode_after(turned_on: bool, gpu: Option<&MigDevice>) -> ModeAfter {
    let empty = gpu.is_some_and(|gpu| gpu.mode == Some(true) && gpu.instances.is_empty());
    match (turned_on, empty) {
        (false, _) => ModeAfter::Stays,
        (true, true) => ModeAfter::TurnOff,
        (true, false) => ModeAfter::HandOn,
    }
}
