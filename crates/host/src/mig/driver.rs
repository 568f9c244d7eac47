//! What changes MIG: NVIDIA's driver through NVML, or a fake in tests.

use divvy_model::Fault;

use super::geometry::Geometry;

/// A program or slice that uses an instance or a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its process id; None for a slice in which nothing runs just now.
    pub pid: Option<u32>,
    /// The program's name, where it can be told, or the slice's.
    pub name: String,
}

impl std::fmt::Display for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{} (process {pid})", self.name),
            None => write!(f, "slice {}", self.name),
        }
    }
}

/// A compute instance: what a program runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeInstance {
    /// The driver's id of it within its GPU instance.
    pub id: u32,
    /// Compute slices.
    pub slices: u8,
    /// First compute slice.
    pub start: u8,
    /// `MIG-…`, where the driver tells.
    pub uuid: Option<String>,
    /// Who runs there.
    pub tenants: Vec<Tenant>,
}

/// A GPU instance and the compute instances in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInstance {
    /// The driver's id of it.
    pub id: u32,
    /// The profile's id.
    pub profile_id: u32,
    /// First memory slice.
    pub start: u8,
    /// By id.
    pub compute: Vec<ComputeInstance>,
}

impl GpuInstance {
    /// Who runs in any part of it.
    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.compute.iter().flat_map(|compute| &compute.tenants)
    }

    /// Whether any program or slice does.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.tenants().next().is_some()
    }
}

/// A device that may be divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigDevice {
    /// Its index among the driver's GPUs.
    pub index: u32,
    /// `GPU-…`
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// PCI device id of vendor 10de.
    pub pci_device: u16,
    /// Whether MIG mode is on; None where the device has none.
    pub mode: Option<bool>,
    /// What it offers.
    pub geometry: Geometry,
    /// What it holds.
    pub instances: Vec<GpuInstance>,
    /// Who runs on it as a whole, MIG mode being off.
    pub tenants: Vec<Tenant>,
}

/// An instance that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInstance {
    /// The driver's number of its profile.
    pub profile_id: u32,
    /// Its first memory slice.
    pub start: u8,
    /// Its memory slices.
    pub size: u8,
    /// Its compute instances, in this order, by their compute slices.
    pub parts: Vec<u8>,
}

/// The privileged boundary. Each call is one change, made or refused as a whole.
pub trait MigDriver {
    /// The devices as they are now.
    ///
    /// # Errors
    /// [`divvy_model::Code::Driver`] where the driver does not answer.
    fn devices(&mut self) -> Result<Vec<MigDevice>, Fault>;

    /// Turns MIG mode on or off; false where it waits for a reset of the device.
    ///
    /// # Errors
    /// [`divvy_model::Code::Privilege`], [`divvy_model::Code::MigBusy`], [`divvy_model::Code::MigDriver`].
    fn set_mode(&mut self, uuid: &str, on: bool) -> Result<bool, Fault>;

    /// Makes an instance; its id.
    ///
    /// # Errors
    /// As [`Self::set_mode`].
    fn create(&mut self, uuid: &str, new: &NewInstance) -> Result<u32, Fault>;

    /// Removes an instance and the compute instances in it.
    ///
    /// # Errors
    /// As [`Self::set_mode`].
    fn destroy(&mut self, uuid: &str, instance: u32) -> Result<(), Fault>;

    /// Makes a compute instance of so many slices in an instance.
    ///
    /// # Errors
    /// As [`Self::set_mode`].
    fn create_compute(&mut self, uuid: &str, instance: u32, slices: u8) -> Result<(), Fault>;

    /// Removes a compute instance.
    ///
    /// # Errors
    /// As [`Self::set_mode`].
    fn destroy_compute(&mut self, uuid: &str, instance: u32, compute: u32) -> Result<(), Fault>;
}
