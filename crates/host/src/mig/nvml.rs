//! MIG through NVML: [`divvy_abi`]'s client, which has the calls that nvml-wrapper lacks.

use std::ffi::CString;
use std::path::Path;

use divvy_abi::nvml::client::{Client, Failure};
use divvy_model::{Code, Fault, MigProduct};

use super::driver::{ComputeInstance, GpuInstance, MigDevice, MigDriver, NewInstance, Tenant};
use super::geometry::{Geometry, Profile};

/// NVIDIA's driver.
pub struct NvmlMig {
    client: Client,
}

impl NvmlMig {
    /// Opens libnvidia-ml.so.1, or the file that `DIVVY_NVML` names.
    ///
    /// # Errors
    /// [`Code::NoMig`] where there is none, or no driver behind it.
    pub fn open() -> Result<Self, Fault> {
        let named = std::env::var_os("DIVVY_NVML").filter(|path| !path.is_empty());
        let library = named.unwrap_or_else(|| "libnvidia-ml.so.1".into());
        let library = CString::new(library.into_encoded_bytes()).unwrap_or_default();
        let client = Client::open(&library).map_err(|why| {
            Fault::new(Code::NoMig, "no NVIDIA driver answers, so nothing here has MIG")
                .cause(why)
                .hint("`divvy doctor` tells what was looked for; DIVVY_EMULATED=h100 makes a device to try it on")
        })?;
        Ok(Self { client })
    }

    /// The emulated devices of a specification in a run directory, by their own NVML in this process.
    ///
    /// # Errors
    /// [`Code::NoMig`] where they cannot be had.
    pub fn emulated(spec: &str, run_dir: &Path) -> Result<Self, Fault> {
        divvy_device::stand_for(spec, run_dir);
        let client = Client::over(divvy_device::NVML_TABLE)
            .map_err(|why| Fault::new(Code::NoMig, "the emulated devices do not answer").cause(why))?;
        Ok(Self { client })
    }

    fn device(&self, index: u32) -> Result<MigDevice, Failure> {
        let device = self.client.device(index)?;
        let pci_device = u16::try_from(device.pci_id >> 16).unwrap_or(0);
        let mode = match self.client.mig_mode(device.handle) {
            Ok(on) => Some(on),
            Err(failure) if failure.is_not_supported() => None,
            Err(failure) => return Err(failure),
        };
        let tenants = |pids: Vec<u32>| pids.into_iter().map(tenant).collect::<Vec<_>>();
        let mut found = MigDevice {
            index,
            uuid: device.uuid,
            name: device.name,
            pci_device,
            mode,
            geometry: Geometry::default(),
            instances: Vec::new(),
            tenants: Vec::new(),
        };
        if mode.is_none() {
            return Ok(found);
        }
        let table = MigProduct::of_pci(pci_device);
        found.geometry = geometry(&self.client.profiles(device.handle)?, table);
        if mode == Some(false) {
            found.tenants = tenants(self.client.processes(device.handle)?);
            // Profiles are told only where the mode is on.
            if let (true, Some(product)) = (found.geometry.profiles.is_empty(), table) {
                found.geometry = product.into();
            }
            return Ok(found);
        }
        let inside = self.client.mig_devices(device.handle)?;
        for profile in &found.geometry.profiles {
            for instance in self.client.instances(device.handle, profile.id)? {
                let mut compute = Vec::new();
                for part in self.client.compute_instances(device.handle, instance.id)? {
                    let seen = inside
                        .iter()
                        .find(|one| one.gpu_instance == instance.id && one.compute_instance == part.id);
                    compute.push(ComputeInstance {
                        id: part.id,
                        slices: small(part.slices),
                        start: small(part.start),
                        uuid: seen.map(|one| one.uuid.clone()),
                        tenants: tenants(seen.map(|one| one.processes.clone()).unwrap_or_default()),
                    });
                }
                found.instances.push(GpuInstance {
                    id: instance.id,
                    profile_id: profile.id,
                    start: small(instance.start),
                    compute,
                });
            }
        }
        found.instances.sort_by_key(|instance| instance.start);
        Ok(found)
    }

    /// The same, once more where it fails: it takes many calls, and another process may have changed the device between two.
    fn settled(&self, index: u32) -> Result<MigDevice, Failure> {
        const TRIES: usize = 3;
        let mut outcome = self.device(index);
        for _ in 1..TRIES {
            if outcome.is_ok() {
                break;
            }
            outcome = self.device(index);
        }
        outcome
    }
}

fn small(value: u32) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

fn tenant(pid: u32) -> Tenant {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = match name.trim() {
        "" => "a program",
        name => name,
    };
    Tenant {
        pid: Some(pid),
        name: name.to_owned(),
    }
}

fn geometry(told: &[divvy_abi::nvml::client::ProfileFacts], table: Option<&MigProduct>) -> Geometry {
    let mut profiles: Vec<Profile> = Vec::new();
    for facts in told {
        let name = if facts.name.is_empty() {
            // Older drivers tell no names: the memory in GiB makes one, as nvidia-smi does.
            format!("{}g.{}gb", facts.slices, facts.memory_mib.div_ceil(1024))
        } else {
            facts.name.trim_start_matches("MIG ").to_owned()
        };
        let starts: Vec<u8> = facts.placements.iter().map(|(start, _)| small(*start)).collect();
        profiles.push(Profile {
            name,
            id: facts.id,
            compute_slices: small(facts.slices),
            max: small(facts.max),
            size: facts.placements.first().map_or(0, |(_, size)| small(*size)),
            starts,
            sm_count: facts.sm_count,
            memory_bytes: facts.memory_mib << 20,
        });
    }
    // Placements are not told for a profile that cannot be had just now on some drivers: the table knows them.
    if let Some(product) = table {
        let known = Geometry::from(product);
        for profile in profiles.iter_mut().filter(|profile| profile.starts.is_empty()) {
            if let Some(same) = known.profiles.iter().find(|known| known.id == profile.id) {
                profile.starts.clone_from(&same.starts);
                profile.size = same.size;
            }
        }
    }
    profiles.retain(|profile| !profile.starts.is_empty());
    profiles.sort_by_key(|profile| (profile.size, profile.compute_slices, profile.name.len()));
    let ends = profiles
        .iter()
        .flat_map(|profile| profile.starts.iter().map(|start| start + profile.size));
    Geometry {
        memory_slices: ends.max().unwrap_or(0),
        compute_slices: profiles
            .iter()
            .map(|profile| profile.compute_slices)
            .max()
            .unwrap_or(0),
        profiles,
    }
}

fn fault(what: &str, failure: &Failure) -> Fault {
    let code = match failure {
        failure if failure.is_permission() => Code::Privilege,
        failure if failure.is_in_use() => Code::MigBusy,
        _ => Code::MigDriver,
    };
    let fault = Fault::new(code, what.to_owned()).cause(failure.to_string());
    match code {
        Code::Privilege => fault.hint("run it as root"),
        _ => fault,
    }
}

impl MigDriver for NvmlMig {
    fn devices(&mut self) -> Result<Vec<MigDevice>, Fault> {
        let read = || -> Result<Vec<MigDevice>, Failure> {
            let count = self.client.device_count()?;
            (0..count).map(|index| self.settled(index)).collect()
        };
        read().map_err(|failure| fault("the driver does not tell what the devices hold", &failure))
    }

    fn set_mode(&mut self, uuid: &str, on: bool) -> Result<bool, Fault> {
        let change = || {
            let device = self.client.device_by_uuid(uuid)?;
            self.client.set_mig_mode(device, on)
        };
        change().map_err(|failure| fault("the MIG mode cannot be changed", &failure))
    }

    fn create(&mut self, uuid: &str, new: &NewInstance) -> Result<u32, Fault> {
        let change = || {
            let device = self.client.device_by_uuid(uuid)?;
            let parts: Vec<u32> = new.parts.iter().copied().map(u32::from).collect();
            let (start, size) = (u32::from(new.start), u32::from(new.size));
            self.client.create(device, new.profile_id, start, size, &parts)
        };
        change().map_err(|failure| fault("the instance cannot be made", &failure))
    }

    fn create_compute(&mut self, uuid: &str, instance: u32, slices: u8) -> Result<(), Fault> {
        let change = || {
            let device = self.client.device_by_uuid(uuid)?;
            self.client.create_compute(device, instance, u32::from(slices))
        };
        change().map_err(|failure| fault("the compute instance cannot be made", &failure))
    }

    fn destroy_compute(&mut self, uuid: &str, instance: u32, compute: u32) -> Result<(), Fault> {
        let change = || {
            let device = self.client.device_by_uuid(uuid)?;
            self.client.destroy_compute(device, instance, compute)
        };
        change().map_err(|failure| fault("the compute instance cannot be removed", &failure))
    }

    fn destroy(&mut self, uuid: &str, instance: u32) -> Result<(), Fault> {
        let change = || {
            let device = self.client.device_by_uuid(uuid)?;
            self.client.destroy(device, instance)
        };
        change().map_err(|failure| fault("the instance cannot be removed", &failure))
    }
}
