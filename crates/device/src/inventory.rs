//! The emulated devices of this host as anyone may ask for them, without initialising a driver.

use crate::granted::{Granted, granted};
use crate::mig::{self, Instance, State, Store, StoreError};
use crate::product::identity::{PciAddress, Uuid};
use crate::product::processors;
use crate::product::profile::Profile;
use crate::product::spec::{self, SpecError, Timing};
use crate::run_directory::run_directory;
use crate::stand_in;
use divvy_model::MigProduct;
use std::path::Path;

/// What an emulated device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Place in PCI bus order, from 0.
    pub index: usize,
    /// Stable across runs; differs between run directories.
    pub uuid: Uuid,
    /// PCI address, in a domain no hardware uses.
    pub pci: PciAddress,
    /// The product it stands for.
    pub profile: &'static Profile,
    /// Device memory that each context takes while it lives, in bytes.
    pub context_bytes: u64,
    /// How time passes for its kernels.
    pub timing: Timing,
    /// How long a process keeps its engine while others want it, in nanoseconds; None: as the device has it.
    pub timeslice_ns: Option<u64>,
    /// Its kernels are compiled to machine code where that is possible.
    pub compile: bool,
    /// Of a MIG device: which part of the GPU it is. `index`, `pci` and `profile` are then the GPU's.
    pub instance: Option<Instance>,
}

impl DeviceFacts {
    /// Product name, as cuDeviceGetName gives it: `NVIDIA H100 80GB HBM3`. A part of one has ` MIG 1g.10gb` behind it.
    pub fn name(&self) -> String {
        match &self.instance {
            None => self.profile.name.into(),
            Some(instance) => format!("{} MIG {}", self.profile.name, instance.name()),
        }
    }

    /// Device memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        match &self.instance {
            None if self.is_opencl_only() => processors::memory_bytes(),
            None => self.profile.memory_bytes,
            Some(instance) => instance.profile.memory_mib << 20,
        }
    }

    /// Whether it is PoCL: no CUDA driver and no NVML shows it.
    pub fn is_opencl_only(&self) -> bool {
        self.profile.is_opencl_only()
    }

    /// Streaming multiprocessors; of PoCL, processors.
    pub fn sm_count(&self) -> u32 {
        if self.is_opencl_only() {
            return processors::count();
        }
        self.instance
            .map_or(self.profile.sm_count, |instance| instance.sm_count)
    }

    /// Copy engines.
    pub fn copy_engines(&self) -> u32 {
        self.instance.map_or(self.profile.copy_engines, |instance| {
            instance.profile.engines[0].into()
        })
    }

    /// The UUID in its usual form: `GPU-…`, or `MIG-…` of a MIG device.
    pub fn id(&self) -> String {
        match self.instance {
            None => self.uuid.to_string(),
            Some(_) => self.uuid.of_mig_device(),
        }
    }

    /// UUID of the GPU that it is, or is a part of.
    pub fn gpu(&self) -> Uuid {
        self.instance.map_or(self.uuid, |instance| instance.gpu)
    }

    /// The product's MIG geometry, where it has MIG.
    pub fn mig_product(&self) -> Option<&'static MigProduct> {
        MigProduct::of_key(self.profile.key)
    }

    /// What it, or its GPU, is divided into in a run directory. None where the product has no MIG.
    ///
    /// # Errors
    /// [`StoreError`] where that cannot be read.
    pub fn division(&self, run_directory: &Path) -> Result<Option<State>, StoreError> {
        match self.mig_product() {
            None => Ok(None),
            Some(_) => Store::of(run_directory, self.gpu()).read().map(Some),
        }
    }

    /// The MIG devices that it is divided into, in NVML's order; none where MIG is off.
    ///
    /// # Errors
    /// As [`Self::division`].
    pub fn mig_devices(&self, run_directory: &Path) -> Result<Vec<DeviceFacts>, StoreError> {
        let state = self.division(run_directory)?.unwrap_or_default();
        Ok(compute_instances(self, &state))
    }

    /// Compute capability, major and minor.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.profile.compute_capability
    }
}

/// The compute instances of a GPU, in the order of NVML's indices: by GPU instance, then by compute instance.
pub fn compute_instances(gpu: &DeviceFacts, state: &State) -> Vec<DeviceFacts> {
    let Some(product) = MigProduct::of_key(gpu.profile.key).filter(|_| state.on) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for outer_instance in &state.instances {
        let Some(outer) = mig::profile(product, outer_instance.profile) else {
            continue;
        };
        let memory = mig::gpu_instance_uuid(gpu.uuid, outer_instance);
        let kinds = mig::compute_kinds(product, outer);
        for compute in &outer_instance.compute {
            let kind = kinds.iter().find(|kind| kind.slices == compute.slices);
            found.push(DeviceFacts {
                uuid: mig::compute_instance_uuid(memory, compute),
                instance: Some(Instance {
                    gpu: gpu.uuid,
                    memory,
                    gpu_instance: outer_instance.id,
                    compute_instance: compute.id,
                    profile: outer,
                    start: outer_instance.start,
                    slices: compute.slices,
                    sm_count: kind.map_or(0, |kind| kind.sm_count),
                }),
                ..*gpu
            });
        }
    }
    found
}

/// The devices that a specification (`h100`, `a100-40gb*2`, the value of `DIVVY_EMULATED`) describes in a run
/// directory, in order of their index.
///
/// ```
/// let devices = divvy_device::devices("a100-40gb*2,h100", "/run/user/1000/divvy".as_ref())?;
/// assert_eq!(devices.len(), 3);
/// assert_eq!(devices[2].compute_capability(), (9, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`SpecError`]: the text describes no devices; the variant says where.
pub fn devices(spec: &str, run_directory: &Path) -> Result<Vec<DeviceFacts>, SpecError> {
    let items = spec::parse(spec)?;
    let facts = items.into_iter().enumerate().map(|(index, item)| DeviceFacts {
        index,
        uuid: Uuid::derive(run_directory, item.profile, index),
        pci: PciAddress::derive(index),
        profile: item.profile,
        context_bytes: item.context_bytes,
        timing: item.timing,
        timeslice_ns: item.timeslice_ns,
        compile: item.compile,
        instance: None,
    });
    Ok(facts.collect())
}

/// The devices that a container was granted, numbered from 0.
///
/// # Errors
/// A specification that is not understood.
pub fn granted_devices(granted: &Granted) -> Result<Vec<DeviceFacts>, SpecError> {
    let mut found = devices(&granted.spec, &granted.run_directory)?;
    found.retain(|facts| granted.has(facts.uuid));
    for (index, facts) in found.iter_mut().enumerate() {
        facts.index = index;
    }
    Ok(found)
}

/// The CUDA devices that a container was granted; else those `DIVVY_EMULATED` describes, or the default's where it is
/// unset or empty. PoCL's is none of them.
///
/// # Errors
/// [`SpecError`]: the variable's text describes no devices.
pub fn devices_from_env() -> Result<Vec<DeviceFacts>, SpecError> {
    let mut devices = all_from_env()?;
    devices.retain(|facts| !facts.is_opencl_only());
    for (index, facts) in devices.iter_mut().enumerate() {
        facts.index = index;
    }
    Ok(devices)
}

fn all_from_env() -> Result<Vec<DeviceFacts>, SpecError> {
    if let Some((spec, directory)) = stand_in::settings() {
        return devices(&spec, &directory);
    }
    if let Some(granted) = granted() {
        return granted_devices(granted);
    }
    let setting = std::env::var("DIVVY_EMULATED").unwrap_or_default();
    let spec = if setting.trim().is_empty() {
        spec::DEFAULT_SPEC
    } else {
        &setting
    };
    devices(spec, &run_directory())
}
