//! Instances by name: which part of a GPU each is.

use super::state::{ComputeInstance, GpuInstance};
use crate::product::identity::Uuid;
use divvy_model::MigProfile;

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
    /// The profile of the GPU instance.
    pub profile: &'static MigProfile,
    /// The first memory slice of the GPU instance.
    pub start: u8,
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

/// Where a compute instance is, in the numbers of its GPU's division.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// The GPU.
    pub gpu: Uuid,
    /// Its GPU instance, without what is inside.
    pub outer: GpuInstance,
    /// The compute instance in it.
    pub compute: ComputeInstance,
}

impl Placed {
    /// Names the memory.
    pub fn memory(&self) -> Uuid {
        gpu_instance_uuid(self.gpu, &self.outer)
    }

    /// Names the compute instance.
    pub fn uuid(&self) -> Uuid {
        compute_instance_uuid(self.memory(), &self.compute)
    }
}

/// Names a GPU instance. The name follows from its properties, so the same one made again has the same name. Another
/// one at the same place has another name.
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
