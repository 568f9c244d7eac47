//! The drivers' figures of device time by process, for the auditor of compute.

use std::collections::HashMap;
use std::sync::Arc;

use divvy_host::Nvidia;
use divvy_model::{DeviceKind, Isolation};

use crate::leasing::{Leasing, Meter, Use};
use crate::life::members::Members;
use crate::life::slice::Slice;
use crate::start::rundir::RunDir;
use crate::state::Shared;

/// The machine's drivers. Where a driver gives no figure, its processes' own figures are believed.
struct Drivers<'a>(&'a ComputeAudit, HashMap<String, DeviceKind>);

impl Meter for Drivers<'_> {
    fn uses(&self, device_uuid: &str) -> Vec<(u32, Use)> {
        match self.1.get(device_uuid) {
            Some(DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition) => self
                .0
                .nvidia
                .utilization(device_uuid)
                .into_iter()
                .map(|(pid, percent)| (pid, Use::Rate(percent.saturating_mul(100))))
                .collect(),
            Some(DeviceKind::Emulated) => divvy_host::emulated_busy(self.0.run.path(), device_uuid)
                .into_iter()
                .map(|(pid, busy)| (pid, Use::Total(busy)))
                .collect(),
            None => Vec::new(),
        }
    }

    fn clock_mhz(&self, device_uuid: &str) -> Option<u32> {
        match self.1.get(device_uuid)? {
            DeviceKind::Gpu | DeviceKind::Mig | DeviceKind::Partition => self.0.nvidia.clock_mhz(device_uuid),
            // It computes as fast at all times.
            DeviceKind::Emulated => None,
        }
    }
}

/// The audit of devices' time.
pub(crate) struct ComputeAudit {
    pub run: RunDir,
    pub nvidia: Arc<Nvidia>,
    pub state: Shared,
    pub leasing: Arc<Leasing>,
    pub members: Arc<Members>,
}

impl ComputeAudit {
    /// Compares the drivers' figures with the slices' charges.
    pub fn audit(&self) {
        self.ask_drivers(|drivers, slice_of| self.leasing.audit(drivers, slice_of));
    }

    /// Notes the drivers' figures for slices.
    pub fn meter(&self) {
        self.ask_drivers(|drivers, slice_of| self.leasing.meter(drivers, slice_of));
    }

    fn ask_drivers(&self, ask: impl FnOnce(&dyn Meter, &HashMap<u32, String>)) {
        let (kinds, shown) = {
            let mut state = self.state.lock();
            let devices = state.inventory.devices.iter();
            let kinds = devices.map(|device| (device.uuid.clone(), device.kind)).collect();
            let gated = state
                .slices
                .values_mut()
                .filter(|slice| slice.record.terms.isolation != Isolation::Env);
            (kinds, gated.map(Slice::shown).collect::<Vec<_>>())
        };
        // A process that passes the gate may be in no ledger, but every process that was started in the slice belongs
        // to it.
        let slice_of: HashMap<u32, String> = shown
            .iter()
            .flat_map(|slice| {
                self.members
                    .of(slice)
                    .into_iter()
                    .map(|pid| (pid, slice.id.clone()))
            })
            .collect();
        ask(&Drivers(self, kinds), &slice_of);
    }
}
