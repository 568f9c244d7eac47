//! One list of the devices of this machine, real and emulated.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use divvy_model::{Code, DeviceKind, DeviceRecord, Fault, MigPlace, Selector};

use crate::emulated::{DEFAULT_EMULATED, EmulatedDevice, emulated_devices};
use crate::machine::Sysroot;
use crate::nvidia::{Nvidia, NvidiaReport};
use crate::timeout::Silence;
use crate::unanswered;

/// What the inventory is taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// A specification of emulated devices (`DIVVY_EMULATED`, `emulated` in the configuration). Where there is one,
    /// these devices stand in the place of the machine's own.
    pub emulated: Option<String>,
    /// The run directory, which emulated devices belong to.
    pub run_dir: PathBuf,
}

/// The devices of this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// The devices, in the order shown: real ones by PCI address, then emulated ones.
    pub devices: Vec<DeviceRecord>,
    /// The emulated ones among them, with the specification that shows each to its driver.
    pub emulated: Vec<EmulatedDevice>,
    /// Version of NVIDIA's driver, where there is one.
    pub driver_version: Option<String>,
    /// What was looked for and not found.
    pub notes: Vec<String>,
    /// This machine has no GPU at all and none is configured, and an emulated one stands in.
    pub stand_in: bool,
    /// The specification of the emulated devices that are this machine's own: the configured one, or the stand-in's.
    pub own_spec: Option<String>,
    /// Why a GPU of this machine cannot be used, where there is one that does not answer.
    pub unanswered: Option<Fault>,
    /// The run directory that emulated devices belong to.
    pub run_dir: PathBuf,
}

/// Takes the inventory: what is configured, else what NVML finds, else one emulated device as a stand-in. Where a GPU is
/// here and does not answer, nothing stands in for it.
///
/// # Errors
/// [`divvy_model::Code::Config`] for an emulated specification that is not understood; [`divvy_model::Code::Driver`] where
/// NVIDIA's library does not answer.
pub fn take(sources: &Sources, nvidia: &Nvidia) -> Result<Inventory, Fault> {
    let root = Sysroot::of_process();
    assemble(sources, (!nvidia.is_absent()).then_some(&root), || {
        nvidia.report()
    })
}

/// `root` is where GPUs are looked for that do not answer; None for a machine whose devices are all emulated.
fn assemble(
    sources: &Sources,
    root: Option<&Sysroot>,
    report: impl FnOnce() -> Result<NvidiaReport, Silence>,
) -> Result<Inventory, Fault> {
    if let Some(spec) = &sources.emulated {
        return Inventory::of_emulated(spec, &sources.run_dir);
    }
    // No stand-in for devices that are there and cannot be asked.
    let report = report()?;
    let mut inventory = Inventory {
        unanswered: root.and_then(|root| unanswered::unanswered(root, &report)),
        devices: report.devices,
        driver_version: report.driver_version,
        notes: report.notes,
        run_dir: sources.run_dir.clone(),
        ..Inventory::default()
    };
    if inventory.devices.is_empty() && inventory.unanswered.is_none() {
        inventory.add(emulated_devices(DEFAULT_EMULATED, &sources.run_dir)?);
        inventory.stand_in = true;
        inventory.own_spec = Some(DEFAULT_EMULATED.to_owned());
    }
    Ok(inventory)
}

impl Inventory {
    fn of_emulated(spec: &str, run_dir: &Path) -> Result<Self, Fault> {
        let mut inventory = Self {
            run_dir: run_dir.to_owned(),
            own_spec: Some(spec.to_owned()),
            ..Self::default()
        };
        inventory.add(emulated_devices(spec, run_dir)?);
        Ok(inventory)
    }

    /// Adds emulated devices that are not there yet.
    pub fn add(&mut self, devices: Vec<EmulatedDevice>) {
        let known: HashSet<String> = self.devices.iter().map(|device| device.uuid.clone()).collect();
        for mut device in devices {
            if known.contains(&device.record.uuid) {
                continue;
            }
            device.record.index = u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
            self.devices.push(device.record.clone());
            self.emulated.push(device);
        }
    }

    /// Whether a device is this machine's own: real, or emulated in the place of real ones. Others were asked for by name.
    #[must_use]
    pub fn is_own(&self, device: &DeviceRecord) -> bool {
        let spec = self.own_spec.as_deref();
        device.kind != DeviceKind::Emulated || (spec.is_some() && self.emulated_spec(&device.uuid) == spec)
    }

    /// Takes in the GPUs that did not answer and do now, as after their driver was loaded.
    fn look_again(&mut self, nvidia: &Nvidia) {
        let Some(Ok(report)) = self.unanswered.is_some().then(|| nvidia.report()) else {
            return;
        };
        self.unanswered = unanswered::unanswered(&Sysroot::of_process(), &report);
        self.notes = report.notes;
        self.driver_version = report.driver_version;
        let (emulated, mut real): (Vec<_>, Vec<_>) = std::mem::take(&mut self.devices)
            .into_iter()
            .partition(|device| device.kind == DeviceKind::Emulated);
        for device in report.devices {
            if real.iter().all(|other| other.uuid != device.uuid) {
                real.push(device);
            }
        }
        // Emulated ones stand behind: a request for them is by name.
        self.devices = real.into_iter().chain(emulated).collect();
        for (index, device) in (0..).zip(&mut self.devices) {
            device.index = index;
        }
    }

    /// Takes note of MIG instances that were made and removed since, and of MIG modes. GPUs keep their numbers.
    pub fn refresh(&mut self, nvidia: &Nvidia) {
        self.look_again(nvidia);
        let mut now: Vec<DeviceRecord> = Vec::new();
        let has_mig = |device: &DeviceRecord| {
            device.kind == DeviceKind::Mig
                || device
                    .hardware
                    .as_ref()
                    .is_some_and(|facts| facts.mig_mode.is_some())
        };
        let mut real = self
            .devices
            .iter()
            .filter(|device| device.kind != DeviceKind::Emulated);
        if real.any(has_mig) {
            let Ok(report) = nvidia.report() else {
                // The driver hangs: the last known facts stand.
                return;
            };
            now.extend(report.devices);
        }
        let mut specs: Vec<&str> = self.emulated.iter().map(|device| device.spec.as_str()).collect();
        specs.dedup();
        let mut emulated: Vec<EmulatedDevice> = Vec::new();
        for spec in specs {
            emulated.extend(emulated_devices(spec, &self.run_dir).unwrap_or_default());
        }
        now.extend(emulated.iter().map(|device| device.record.clone()));
        if now.is_empty() {
            return;
        }
        self.devices.retain(|device| device.mig_instance().is_none());
        self.emulated
            .retain(|device| device.record.mig_instance().is_none());
        for device in &mut self.devices {
            if let Some(seen) = now.iter().find(|seen| seen.uuid == device.uuid) {
                device.hardware.clone_from(&seen.hardware);
            }
        }
        for instance in now {
            let of_ours = |place: &MigPlace| self.devices.iter().any(|gpu| gpu.uuid == place.gpu_uuid);
            let known = self.devices.iter().any(|device| device.uuid == instance.uuid);
            if known || !instance.mig_instance().is_some_and(of_ours) {
                continue;
            }
            let index = u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
            let record = DeviceRecord { index, ..instance };
            if let Some(device) = emulated.iter().find(|device| device.record.uuid == record.uuid) {
                self.emulated.push(EmulatedDevice {
                    record: record.clone(),
                    spec: device.spec.clone(),
                });
            }
            self.devices.push(record);
        }
        for (index, device) in (0..).zip(&mut self.devices) {
            device.index = index;
        }
    }

    /// The device that `selector` names; `emulated:PRODUCT` makes one where there is none of that product.
    ///
    /// # Errors
    /// No or several such devices, or no such product.
    pub fn choose(&mut self, selector: &Selector) -> Result<DeviceRecord, Fault> {
        if let Selector::Emulated(profile) = selector {
            let known = self
                .devices
                .iter()
                .any(|device| device.profile.as_deref() == Some(profile));
            if !known {
                self.add(emulated_devices(profile, &self.run_dir)?);
            }
        }
        let by_place = matches!(selector, Selector::Index(_) | Selector::Pci(_));
        let may_be = |device: &&DeviceRecord| {
            !by_place || self.own_spec.is_some() || device.kind != DeviceKind::Emulated
        };
        let among: Vec<DeviceRecord> = self.devices.iter().filter(may_be).cloned().collect();
        let chosen = selector.choose(&among).map_err(Fault::from);
        match (chosen, &self.unanswered) {
            // It may well be the one that does not answer.
            (Err(fault), Some(why)) if fault.code == Code::UnknownDevice => Err(why.clone()),
            (chosen, _) => chosen.cloned(),
        }
    }

    /// The specification under which an emulated device is shown to its driver; None for a real one.
    #[must_use]
    pub fn emulated_spec(&self, uuid: &str) -> Option<&str> {
        self.emulated
            .iter()
            .find(|device| device.record.uuid == uuid)
            .map(|device| device.spec.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::built::Built;
    use divvy_model::Bytes;

    fn gpu() -> NvidiaReport {
        NvidiaReport {
            devices: vec![DeviceRecord {
                index: 0,
                uuid: "GPU-1a2b".into(),
                name: "a GPU".into(),
                kind: DeviceKind::Gpu,
                profile: None,
                pci_address: "0000:65:00.0".into(),
                memory_total_bytes: Bytes(80 << 30),
                memory_reserved_bytes: Bytes(0),
                memory_used_bytes: Bytes(0),
                sm_count: 132,
                compute_capability: "9.0".into(),
                context_bytes: None,
                sharing: None,
                hardware: None,
            }],
            driver_version: Some("550.54.15".into()),
            ..NvidiaReport::default()
        }
    }

    #[test]
    fn a_machine_with_a_gpu_emulates_nothing() {
        let inventory = assemble(&Sources::default(), None, || Ok(gpu())).expect("an inventory");
        assert_eq!(inventory.devices.len(), 1);
        assert!(!inventory.stand_in);
    }

    #[test]
    fn a_machine_without_one_gets_a_stand_in() {
        let inventory =
            assemble(&Sources::default(), None, || Ok(NvidiaReport::default())).expect("an inventory");
        assert_eq!(inventory.devices[0].kind, DeviceKind::Emulated);
        assert!(inventory.stand_in);
        let uuid = inventory.devices[0].uuid.clone();
        assert!(inventory.emulated_spec(&uuid).is_some());
    }

    #[test]
    fn nothing_stands_in_for_a_gpu_that_does_not_answer() {
        let base = tempfile::tempdir().expect("a folder");
        let root = Sysroot::at(Built::passed_through(base.path()).root());
        let inventory = assemble(&Sources::default(), Some(&root), || Ok(NvidiaReport::default()));
        let mut inventory = inventory.expect("an inventory");
        assert!(inventory.devices.is_empty() && !inventory.stand_in);
        let by_index = inventory.choose(&Selector::Index(0)).expect_err("no device");
        assert_eq!(by_index.code, Code::NoDevice);
        let named = inventory.choose(&Selector::Emulated("h100".into()));
        assert_eq!(named.expect("asked for by name").kind, DeviceKind::Emulated);
        // It has a number now, and is not to be had by it.
        assert!(inventory.choose(&Selector::Index(0)).is_err());
        let configured = Sources {
            emulated: Some("l4".into()),
            ..Sources::default()
        };
        let inventory = assemble(&configured, Some(&root), || Ok(NvidiaReport::default()));
        assert_eq!(inventory.expect("an inventory").devices.len(), 1);
    }

    #[test]
    fn configured_emulation_stands_in_the_place_of_the_gpus() {
        let sources = Sources {
            emulated: Some("h100*2,l4".into()),
            ..Sources::default()
        };
        let inventory = assemble(&sources, None, || Ok(gpu())).expect("an inventory");
        let kinds: Vec<_> = inventory.devices.iter().map(|device| device.kind).collect();
        assert_eq!(kinds, [DeviceKind::Emulated; 3]);
        let indices: Vec<_> = inventory.devices.iter().map(|device| device.index).collect();
        assert_eq!(indices, [0, 1, 2]);
    }

    #[test]
    fn an_emulated_product_is_made_on_demand() {
        let mut inventory = assemble(&Sources::default(), None, || Ok(gpu())).expect("an inventory");
        let l4 = inventory
            .choose(&Selector::Emulated("l4".into()))
            .expect("made on demand");
        assert_eq!((l4.index, l4.profile.as_deref()), (1, Some("l4")));
        let again = inventory
            .choose(&Selector::Emulated("l4".into()))
            .expect("still there");
        assert_eq!((again.uuid, inventory.devices.len()), (l4.uuid, 2));
        let unknown = inventory
            .choose(&Selector::Emulated("b9000".into()))
            .expect_err("no such product");
        assert!(matches!(unknown.code, Code::Config | Code::UnknownDevice));
    }
}
