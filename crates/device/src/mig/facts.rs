//! Compute instances as devices: what a program that runs in one sees.

use super::rules::{compute_kinds, profile};
use super::state::{ComputeInstance, GpuInstance, State};
use crate::inventory::DeviceFacts;
use crate::product::identity::Uuid;
use divvy_model::{MigProduct, MigProfile};

/// Which part of a GPU a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// The GPU.
    pub gpu: Uuid,
    /// Names the memory, which all compute instances of a GPU instance share.
    pub memory: Uuid,
    /// Id of the GPU instance.
    pub gpu_instance: u32,
    /// Id of the compute instance in it.
    pub compute_instance: u32,
    /// What the GPU instance is.
    pub profile: &'static MigProfile,
    /// Compute slices of the compute instance.
    pub slices: u8,
    /// Its multiprocessors.
    pub sm_count: u32,
}

impl Instance {
    /// What follows `MIG ` in its name: `1g.10gb`, or `1c.3g.40gb` for a part.
    pub fn name(&self) -> String {
        match self.slices == self.profile.compute_slices {
            true => self.profile.name.into(),
            false => format!("{}c.{}", self.slices, self.profile.name),
        }
    }
}

/// Names a GPU instance. What it is decides it, so that the same one made again has the same name, and another one at the
/// same place has not.
pub fn gpu_instance_uuid(gpu: Uuid, instance: &GpuInstance) -> Uuid {
    Uuid::within(
        gpu,
        &format!("gi {} {} {}", instance.id, instance.profile, instance.start),
    )
}

/// The same for a compute instance.
pub fn compute_instance_uuid(memory: Uuid, compute: &ComputeInstance) -> Uuid {
    Uuid::within(
        memory,
        &format!("ci {} {} {}", compute.id, compute.slices, compute.start),
    )
}

/// The compute instances of a GPU, in the order of NVML's indices: by GPU instance, then by compute instance.
pub fn compute_instances(gpu: &DeviceFacts, state: &State) -> Vec<DeviceFacts> {
    let Some(product) = MigProduct::of_key(gpu.profile.key).filter(|_| state.on) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for held in &state.instances {
        let Some(outer) = profile(product, held.profile) else {
            continue;
        };
        let memory = gpu_instance_uuid(gpu.uuid, held);
        let kinds = compute_kinds(product, outer);
        for compute in &held.compute {
            let kind = kinds.iter().find(|kind| kind.slices == compute.slices);
            found.push(DeviceFacts {
                uuid: compute_instance_uuid(memory, compute),
                instance: Some(Instance {
                    gpu: gpu.uuid,
                    memory,
                    gpu_instance: held.id,
                    compute_instance: compute.id,
                    profile: outer,
                    slices: compute.slices,
                    sm_count: kind.map_or(0, |kind| kind.sm_count),
                }),
                ..*gpu
            });
        }
    }
    found
}
