//! Devices and slices as they are shown.

use std::sync::Arc;

use divvy_host::Nvidia;
use divvy_model::{DeviceRecord, Fault, SliceRecord};

use crate::decide::rules::Rules;
use crate::leasing::Leasing;
use crate::life::names::user_name;
use crate::life::programs::all_named;
use crate::life::slice::Slice;
use crate::lookout::audit::MemoryAudit;
use crate::lookout::silence::DriverWatch;
use crate::start::settings::Current;
use crate::state::Shared;
use crate::supervisor::Supervisor;
use crate::system::peer::Peer;

/// Lists devices and slices.
pub(crate) struct Lists {
    /// The agent's own user.
    pub uid: u32,
    pub settings: Arc<Current>,
    pub nvidia: Arc<Nvidia>,
    pub state: Shared,
    pub leasing: Arc<Leasing>,
    pub audit: Arc<MemoryAudit>,
    pub driver: Arc<DriverWatch>,
    pub supervisor: Arc<Supervisor>,
}

impl Lists {
    /// The devices, with what is handed out of each.
    pub fn devices(&self) -> Vec<DeviceRecord> {
        let mut state = self.state.lock();
        state.inventory.refresh(&self.nvidia);
        let devices = state.inventory.devices.clone();
        let settings = self.settings.get();
        let rules = Rules {
            settings: &settings,
            asker: self.uid,
            account: self.uid,
            name_of: user_name,
        };
        devices
            .into_iter()
            .map(|mut device| {
                let used = self.audit.used_on(&mut state, &device);
                device.memory_used_bytes = used.device;
                if let Some(other) = state.contested.get(&device.uuid) {
                    let health = &mut device.hardware.get_or_insert_default().health;
                    health.push(format!(
                        "process {} of user {} claims it too",
                        other.pid, other.uid
                    ));
                }
                device.sharing = Some(rules.view(&device, used, &state.tenants()).sharing());
                device
            })
            .collect()
    }

    /// The slices, oldest first.
    pub fn slices(&self) -> Vec<SliceRecord> {
        let mut state = self.state.lock();
        self.audit.audit(&mut state);
        let devices = state.inventory.devices.clone();
        let records = state.slices.values_mut().map(Slice::shown);
        let mut records: Vec<SliceRecord> = records
            .map(|shown| self.audit.with_device_figures(&devices, shown))
            .map(|shown| self.with_conditions(&devices, shown))
            .collect();
        records.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        records
    }

    /// The slices that were made for jobs, oldest first. No device is looked at for them: many jobs that start at once ask for this
    /// list, and what programs hold beside their ledgers is nothing to it.
    pub fn of_jobs(&self) -> Vec<SliceRecord> {
        let mut state = self.state.lock();
        let of_jobs = state
            .slices
            .values_mut()
            .filter(|slice| slice.record.job.is_some());
        let mut records: Vec<SliceRecord> = of_jobs.map(Slice::shown).collect();
        records.sort_by(|a, b| (&a.created_at, &a.id).cmp(&(&b.created_at, &b.id)));
        records
    }

    /// One slice.
    ///
    /// # Errors
    /// [`divvy_model::Code::UnknownSlice`].
    pub fn slice(&self, peer: Peer, which: &str) -> Result<SliceRecord, Fault> {
        let mut state = self.state.lock();
        self.audit.audit(&mut state);
        let shown = state.find(which, peer)?.shown();
        let devices = &state.inventory.devices;
        Ok(self.with_conditions(devices, self.audit.with_device_figures(devices, shown)))
    }

    /// Notes on its leases and on the state of its devices' drivers, where something is out of the ordinary.
    fn with_conditions(&self, devices: &[DeviceRecord], mut shown: SliceRecord) -> SliceRecord {
        shown.conditions.extend(self.leasing.conditions(&shown.id));
        let silence = self.driver.silence_of(devices, &shown);
        shown.conditions.extend(silence);
        shown.conditions.extend(self.supervisor.conditions(&shown.id));
        all_named(&mut shown);
        shown
    }
}
