//! Compute instances: the parts of a GPU instance that programs run in.

use super::super::*;
use super::{Client, Failure, Handle, check};

/// A compute instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeFacts {
    /// Its id within its GPU instance.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// First compute slice.
    pub start: u32,
}

impl Client {
    /// The compute instances of a GPU instance, by id.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn compute_instances(&self, device: Handle, instance: u32) -> Result<Vec<ComputeFacts>, Failure> {
        let mut found = Vec::new();
        for (compute, slices) in self.inner(self.instance(device, instance)?)? {
            let info = self.compute_info(compute)?;
            found.push(ComputeFacts {
                id: info.id,
                slices,
                start: info.placement.start,
            });
        }
        found.sort_by_key(|compute| compute.id);
        Ok(found)
    }

    /// Makes a compute instance of so many slices where the library finds space for it.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn create_compute(&self, device: Handle, instance: u32, slices: u32) -> Result<(), Failure> {
        self.add_compute(self.instance(device, instance)?, slices)
    }

    /// Removes a compute instance.
    ///
    /// # Errors
    /// The error that the library returns.
    pub fn destroy_compute(&self, device: Handle, instance: u32, id: u32) -> Result<(), Failure> {
        let mut compute: nvmlComputeInstance_t = core::ptr::null_mut();
        let instance = self.instance(device, instance)?;
        // SAFETY: the instance's handle was just given by this library; the pointer is to a live variable.
        let found = unsafe { (self.table.nvmlGpuInstanceGetComputeInstanceById)(instance, id, &mut compute) };
        check("nvmlGpuInstanceGetComputeInstanceById", found)?;
        // SAFETY: the handle was just given by this library.
        check("nvmlComputeInstanceDestroy", unsafe {
            (self.table.nvmlComputeInstanceDestroy)(compute)
        })
    }

    /// The kinds of compute instances that a GPU instance offers: id and slices.
    fn kinds(&self, instance: nvmlGpuInstance_t) -> Vec<(u32, u32)> {
        let kind = |number: u32| {
            let mut info = nvmlComputeInstanceProfileInfo_t::default();
            // SAFETY: the instance's handle is this library's; the pointer is to a live record.
            let told = unsafe {
                (self.table.nvmlGpuInstanceGetComputeInstanceProfileInfo)(
                    instance,
                    number,
                    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                    &mut info,
                )
            };
            (told == NVML_SUCCESS).then_some((info.id, info.sliceCount))
        };
        (0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
            .filter_map(kind)
            .collect()
    }

    pub(super) fn add_compute(&self, instance: nvmlGpuInstance_t, slices: u32) -> Result<(), Failure> {
        let kinds = self.kinds(instance);
        let kind = kinds.iter().find(|(_, offered)| *offered == slices);
        let (id, _) = kind.ok_or(Failure {
            call: "nvmlGpuInstanceGetComputeInstanceProfileInfo",
            result: NVML_ERROR_NOT_SUPPORTED,
        })?;
        let mut made: nvmlComputeInstance_t = core::ptr::null_mut();
        // SAFETY: the instance's handle is this library's; the pointer is to a live variable.
        let told = unsafe { (self.table.nvmlGpuInstanceCreateComputeInstance)(instance, *id, &mut made) };
        check("nvmlGpuInstanceCreateComputeInstance", told)
    }

    /// Handle and slices of every compute instance of a GPU instance.
    pub(super) fn inner(
        &self,
        instance: nvmlGpuInstance_t,
    ) -> Result<Vec<(nvmlComputeInstance_t, u32)>, Failure> {
        let mut found: Vec<(nvmlComputeInstance_t, u32)> = Vec::new();
        for (id, slices) in self.kinds(instance) {
            let mut inner: [nvmlComputeInstance_t; 64] = [core::ptr::null_mut(); 64];
            let mut count = inner.len() as u32;
            // SAFETY: the instance's handle is this library's; the array is live and has `count` elements.
            let told = unsafe {
                (self.table.nvmlGpuInstanceGetComputeInstances)(instance, id, inner.as_mut_ptr(), &mut count)
            };
            check("nvmlGpuInstanceGetComputeInstances", told)?;
            for compute in &inner[..(count as usize).min(inner.len())] {
                // Two kinds of one size may both tell of it.
                if found.iter().all(|(known, _)| known != compute) {
                    found.push((*compute, slices));
                }
            }
        }
        Ok(found)
    }

    fn compute_info(&self, compute: nvmlComputeInstance_t) -> Result<nvmlComputeInstanceInfo_t, Failure> {
        let mut info = nvmlComputeInstanceInfo_t::default();
        // SAFETY: the handle was just given by this library; the pointer is to a live record.
        check("nvmlComputeInstanceGetInfo", unsafe {
            (self.table.nvmlComputeInstanceGetInfo_v2)(compute, &mut info)
        })?;
        Ok(info)
    }
}
