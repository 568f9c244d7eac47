//! MIG: the mode, GPU instances, compute instances, and the handles of all of them.
//!
//! A handle is the number of a name that was given out once, and every call looks it up again. So a handle of an
//! instance that was removed is refused, and serves again if the same instance is made again.

use std::io::ErrorKind;
use std::sync::{Mutex, PoisonError};

use divvy_abi::nvml::*;
use divvy_model::{MigProduct, MigProfile};

use super::{Result, state};
use crate::error::HardwareError;
use crate::hardware;
use crate::inventory::{self, DeviceFacts};
use crate::log;
use crate::mig::{
    ComputeInstance, ComputeKind, GpuInstance, Refusal, State, Store, StoreError, compute_instance_uuid,
    compute_kinds, gpu_instance_uuid,
};
use crate::product::identity::Uuid;
use crate::run_directory::{prepare, run_directory};

/// What NVML says for a refusal.
pub fn code(refusal: Refusal) -> nvmlReturn_t {
    match refusal {
        Refusal::Off => NVML_ERROR_NOT_SUPPORTED,
        Refusal::Invalid => NVML_ERROR_INVALID_ARGUMENT,
        Refusal::Full => NVML_ERROR_INSUFFICIENT_RESOURCES,
        Refusal::InUse => NVML_ERROR_IN_USE,
        Refusal::Unknown => NVML_ERROR_NOT_FOUND,
    }
}

/// A user that may not write the division may not divide the device, as a user other than root on hardware.
fn unreadable(why: StoreError) -> nvmlReturn_t {
    let code = match &why {
        StoreError::Io(_, error) if error.kind() == ErrorKind::PermissionDenied => NVML_ERROR_NO_PERMISSION,
        _ => NVML_ERROR_UNKNOWN,
    };
    log::once("nvml mig", why);
    code
}

fn unprepared(why: HardwareError) -> nvmlReturn_t {
    let code = match &why {
        HardwareError::Directory(_, error) if error.kind() == ErrorKind::PermissionDenied => {
            NVML_ERROR_NO_PERMISSION
        }
        _ => NVML_ERROR_UNKNOWN,
    };
    log::once("nvml mig directory", why);
    code
}

/// A GPU whose product has MIG.
#[derive(Clone, Copy)]
pub struct Divisible {
    /// The GPU.
    pub gpu: &'static DeviceFacts,
    /// Its product's table.
    pub product: &'static MigProduct,
}

impl Divisible {
    /// A GPU as one; a product without MIG does not support any of this.
    pub fn of(gpu: &'static DeviceFacts) -> Result<Divisible> {
        let product = gpu.mig_product().ok_or(NVML_ERROR_NOT_SUPPORTED)?;
        Ok(Divisible { gpu, product })
    }

    fn store(self) -> Store {
        Store::of(&run_directory(), self.gpu.uuid)
    }

    /// What it is divided into.
    pub fn state(self) -> Result<State> {
        self.store().read().map_err(unreadable)
    }

    /// The same where MIG mode is on; all calls about instances support nothing else.
    pub fn divided(self) -> Result<State> {
        self.state()
            .and_then(|state| state.on.then_some(state).ok_or(NVML_ERROR_NOT_SUPPORTED))
    }

    /// The profile with an id.
    pub fn profile(self, id: u32) -> Result<&'static MigProfile> {
        let mut profiles = self.product.profiles.iter();
        profiles
            .find(|profile| profile.id == id)
            .ok_or(NVML_ERROR_INVALID_ARGUMENT)
    }

    /// Changes it.
    pub fn change<T>(self, change: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        // Perhaps no emulated device of this run directory was used yet.
        prepare(&run_directory()).map_err(unprepared)?;
        self.store().change(change).map_err(unreadable)?
    }

    /// Turns MIG mode on or off, and returns the result. On a GPU that a process uses, or that still holds instances,
    /// the change waits until the GPU is free.
    pub fn set_mode(self, on: bool) -> Result<nvmlReturn_t> {
        let gpu = self.gpu.uuid;
        self.change(|state| {
            state.pending = on;
            let used = hardware::is_used(&run_directory(), gpu).map_err(unprepared)?;
            if state.on != on && (used || !state.instances.is_empty()) {
                return Ok(NVML_ERROR_IN_USE);
            }
            state.on = on;
            Ok(NVML_SUCCESS)
        })
    }

    /// The MIG devices, in the order of their indices.
    pub fn devices(self) -> Result<Vec<DeviceFacts>> {
        Ok(inventory::compute_instances(self.gpu, &self.divided()?))
    }
}

/// What a handle stands for when it is no device's.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    gpu: Uuid,
    instance: Uuid,
    compute: Option<Uuid>,
}

static NAMES: Mutex<Vec<Name>> = Mutex::new(Vec::new());

/// Handles are small odd numbers, which no address is.
fn handle_of(name: Name) -> usize {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    });
    place << 4 | 0xd
}

fn name_of(handle: usize) -> Result<(Divisible, Name)> {
    let devices = state::devices()?;
    let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let name = match handle & 0xf {
        0xd => names.get(handle >> 4).copied(),
        _ => None,
    }
    .ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    let gpu = devices.iter().find(|gpu| gpu.uuid == name.gpu);
    Ok((Divisible::of(gpu.ok_or(NVML_ERROR_INVALID_ARGUMENT)?)?, name))
}

/// A GPU instance that is there.
pub struct Inner {
    /// Its GPU.
    pub on: Divisible,
    /// The instance itself.
    pub instance: GpuInstance,
    /// Its profile.
    pub profile: &'static MigProfile,
}

impl Inner {
    /// The one with an id.
    pub fn of_id(on: Divisible, id: u32) -> Result<Inner> {
        let state = on.divided()?;
        let instance = state.instance(id).ok_or(NVML_ERROR_NOT_FOUND)?.clone();
        Ok(Inner {
            on,
            profile: on.profile(instance.profile)?,
            instance,
        })
    }

    /// The one that a handle stands for.
    pub fn of_handle(handle: nvmlGpuInstance_t) -> Result<Inner> {
        let (on, name) = name_of(handle as usize)?;
        let mut there = on.divided()?.instances.into_iter();
        let instance =
            there.find(|held| name.compute.is_none() && gpu_instance_uuid(name.gpu, held) == name.instance);
        let instance = instance.ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
        Ok(Inner {
            on,
            profile: on.profile(instance.profile)?,
            instance,
        })
    }

    /// Its handle.
    pub fn handle(&self) -> nvmlGpuInstance_t {
        handle_of(Name {
            gpu: self.on.gpu.uuid,
            instance: gpu_instance_uuid(self.on.gpu.uuid, &self.instance),
            compute: None,
        }) as nvmlGpuInstance_t
    }

    /// The kinds of compute instances that it can hold.
    pub fn kinds(&self) -> Vec<ComputeKind> {
        compute_kinds(self.on.product, self.profile)
    }

    /// The kind with an id.
    pub fn kind(&self, id: u32) -> Result<ComputeKind> {
        let mut kinds = self.kinds().into_iter();
        kinds
            .find(|kind| kind.id == id)
            .ok_or(NVML_ERROR_INVALID_ARGUMENT)
    }

    /// The handle of a compute instance in it.
    pub fn compute_handle(&self, compute: &ComputeInstance) -> nvmlComputeInstance_t {
        let instance = gpu_instance_uuid(self.on.gpu.uuid, &self.instance);
        handle_of(Name {
            gpu: self.on.gpu.uuid,
            instance,
            compute: Some(compute_instance_uuid(instance, compute)),
        }) as nvmlComputeInstance_t
    }

    /// What `nvidia-smi` calls a kind in it: `MIG 1c.3g.40gb`, or the instance's own name for the whole.
    pub fn kind_name(&self, kind: ComputeKind) -> String {
        match kind.slices == self.profile.compute_slices {
            true => format!("MIG {}", self.profile.name),
            false => format!("MIG {}c.{}", kind.slices, self.profile.name),
        }
    }

    /// Removes it.
    pub fn destroy(&self) -> Result {
        let gpu = self.on.gpu.uuid;
        let own = gpu_instance_uuid(gpu, &self.instance);
        self.on.change(|state| match state.instance(self.instance.id) {
            Some(held) if gpu_instance_uuid(gpu, held) == own => {
                state.destroy(self.instance.id).map_err(code)
            }
            _ => Err(NVML_ERROR_NOT_FOUND),
        })
    }
}

/// A compute instance that is there, by its handle.
pub fn compute_of_handle(handle: nvmlComputeInstance_t) -> Result<(Inner, ComputeInstance)> {
    let (on, name) = name_of(handle as usize)?;
    let wanted = name.compute.ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    for instance in on.divided()?.instances {
        let own = gpu_instance_uuid(name.gpu, &instance);
        let mut inner = instance.compute.iter();
        if let Some(compute) = inner
            .find(|compute| compute_instance_uuid(own, compute) == wanted)
            .copied()
        {
            let profile = on.profile(instance.profile)?;
            return Ok((
                Inner {
                    on,
                    instance,
                    profile,
                },
                compute,
            ));
        }
    }
    Err(NVML_ERROR_INVALID_ARGUMENT)
}

/// Removes a compute instance, unless a process runs there.
pub fn destroy_compute(handle: nvmlComputeInstance_t) -> Result {
    let (inner, compute) = compute_of_handle(handle)?;
    let memory = gpu_instance_uuid(inner.on.gpu.uuid, &inner.instance);
    let uuid = compute_instance_uuid(memory, &compute);
    inner.on.change(|state| {
        if hardware::is_used(&run_directory(), uuid).map_err(unprepared)? {
            return Err(NVML_ERROR_IN_USE);
        }
        state.destroy_compute(inner.instance.id, compute.id).map_err(code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_write_is_told_so() {
        let io = |kind: ErrorKind| StoreError::Io("state".into(), kind.into());
        assert_eq!(
            unreadable(io(ErrorKind::PermissionDenied)),
            NVML_ERROR_NO_PERMISSION
        );
        assert_eq!(unreadable(io(ErrorKind::StorageFull)), NVML_ERROR_UNKNOWN);
    }
}
