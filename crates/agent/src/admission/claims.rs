//! Devices that this agent claims for itself: each has one owner on the host.

use divvy_model::{DeviceKind, DeviceRecord, Fault};

use crate::admission::owner::{self, Claim, Owner};
use crate::start::rundir::RunDir;
use crate::start::trust::system_run_dir;
use crate::state::State;

/// The claims of an agent.
#[derive(Debug)]
pub(crate) struct Claims {
    pub run: RunDir,
    /// The agent's own user.
    pub uid: u32,
    /// This is the system agent: no other user's claim keeps it from a device.
    pub prevails: bool,
    /// Other users may have slices: this agent serves the whole host.
    pub admits_others: bool,
}

impl Claims {
    /// Refuses a device that another agent owns, without taking it yet.
    ///
    /// # Errors
    /// [`divvy_model::Code::DeviceTaken`].
    pub fn check(&self, state: &State, device: &DeviceRecord) -> Result<(), Fault> {
        let key = device.uuid.clone();
        if state.owned.contains(&key) {
            return Ok(());
        }
        // Emulated devices belong to their run directory: no other agent has the same ones.
        if !self.prevails && device.kind != DeviceKind::Emulated {
            let system = system_run_dir();
            let elsewhere = self.run.path() != system;
            if let Some(other) = elsewhere.then(|| owner::system_owner(&system, &key)).flatten() {
                return Err(owner::taken(&key, &other, self.run.path()));
            }
        }
        match owner::owner(&key) {
            Some(other) if self.yields(&other) => Err(owner::taken(&key, &other, self.run.path())),
            _ => Ok(()),
        }
    }

    /// Takes a device for this agent.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn take(&self, state: &mut State, device: &DeviceRecord) -> Result<(), Fault> {
        let key = device.uuid.clone();
        if state.owned.contains(&key) {
            if state.contested.contains_key(&key) && owner::is_free_now(&key, self.run.path()) {
                state.contested.remove(&key);
            }
            return Ok(());
        }
        match owner::claim(&key, self.run.path(), |other| self.yields(other))? {
            Claim::Own => {}
            Claim::Contested(other) => {
                tracing::error!(
                    device = key,
                    pid = other.pid,
                    uid = other.uid,
                    "another user's process claims this device: it is handed out all the same"
                );
                state.contested.insert(key.clone(), other);
            }
        }
        state.owned.insert(key);
        Ok(())
    }

    /// Whether this agent leaves a device to the process that holds its name. The system agent does so for root only.
    fn yields(&self, other: &Owner) -> bool {
        !self.prevails || other.uid == 0 || other.uid == self.uid
    }

    /// Takes every device at the start, for an agent that serves the whole host.
    pub fn take_all(&self, state: &mut State) {
        if !self.prevails && !self.admits_others {
            return;
        }
        for device in state.inventory.devices.clone() {
            if let Err(fault) = self.take(state, &device) {
                tracing::error!(hint = fault.hint.as_deref(), "{fault}");
            }
        }
    }
}
