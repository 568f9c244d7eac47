//! MIG: GPU instances, compute instances, and the handles of both.
//!
//! A handle is the number of a name that was given out once, and every call looks it up again. So a handle of an
//! instance that was removed is refused, and serves again if the same instance is made again.

use std::sync::{Mutex, PoisonError};

use divvy_abi::nvml::*;
use divvy_model::MigProfile;

use super::divisible::{Divisible, code, unprepared};
use super::{Result, state};
use crate::hardware;
use crate::mig::{
    ComputeInstance, ComputeKind, GpuInstance, compute_instance_uuid, compute_kinds, gpu_instance_uuid,
};
use crate::product::identity::Uuid;
use crate::run_directory::run_directory;

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
