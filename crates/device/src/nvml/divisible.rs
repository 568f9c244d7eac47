//! A GPU that MIG can divide: its mode, its profiles, what it is divided into, and what NVML says where that fails.

use std::io::ErrorKind;

use divvy_abi::nvml::*;
use divvy_model::{MigProduct, MigProfile};

use super::Result;
use crate::error::HardwareError;
use crate::hardware;
use crate::inventory::{self, DeviceFacts};
use crate::log;
use crate::mig::{Refusal, State, Store, StoreError};
use crate::run_directory::{prepare, run_directory};

/// What NVML says for a refusal.
pub fn code(refusal: Refusal) -> nvmlReturn_t {
    match refusal {
        Refusal::Off => NVML_ERROR_NOT_SUPPORTED,
        Refusal::Invalid => NVML_ERROR_INVALID_ARGUMENT,
        Refusal::Full => NVML_ERROR_INSUFFICIENT_RESOURCES,
        Refusal::InUse => NVML_ERROR_IN_USE,
        Refusal::Unknown => NVML_ERROR_NOT_FOUND,
    }
}

/// A user that may not write the division may not divide the device, as a user other than root on hardware.
fn unreadable(why: StoreError) -> nvmlReturn_t {
    let code = match &why {
        StoreError::Io(_, error) if error.kind() == ErrorKind::PermissionDenied => NVML_ERROR_NO_PERMISSION,
        _ => NVML_ERROR_UNKNOWN,
    };
    log::once("nvml mig", why);
    code
}

pub fn unprepared(why: HardwareError) -> nvmlReturn_t {
    let code = match &why {
        HardwareError::Directory(_, error) if error.kind() == ErrorKind::PermissionDenied => {
            NVML_ERROR_NO_PERMISSION
        }
        _ => NVML_ERROR_UNKNOWN,
    };
    log::once("nvml mig directory", why);
    code
}

/// A GPU whose product has MIG.
#[derive(Clone, Copy)]
pub struct Divisible {
    /// The GPU.
    pub gpu: &'static DeviceFacts,
    /// Its product's table.
    pub product: &'static MigProduct,
}

impl Divisible {
    /// A GPU as one; a product without MIG does not support any of this.
    pub fn of(gpu: &'static DeviceFacts) -> Result<Divisible> {
        let product = gpu.mig_product().ok_or(NVML_ERROR_NOT_SUPPORTED)?;
        Ok(Divisible { gpu, product })
    }

    fn store(self) -> Store {
        Store::of(&run_directory(), self.gpu.uuid)
    }

    /// What it is divided into.
    pub fn state(self) -> Result<State> {
        self.store().read().map_err(unreadable)
    }

    /// The same where MIG mode is on; all calls about instances support nothing else.
    pub fn divided(self) -> Result<State> {
        self.state()
            .and_then(|state| state.on.then_some(state).ok_or(NVML_ERROR_NOT_SUPPORTED))
    }

    /// The profile with an id.
    pub fn profile(self, id: u32) -> Result<&'static MigProfile> {
        let mut profiles = self.product.profiles.iter();
        profiles
            .find(|profile| profile.id == id)
            .ok_or(NVML_ERROR_INVALID_ARGUMENT)
    }

    /// Changes it.
    pub fn change<T>(self, change: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        // Perhaps no emulated device of this run directory was used yet.
        prepare(&run_directory()).map_err(unprepared)?;
        self.store().change(change).map_err(unreadable)?
    }

    /// Turns MIG mode on or off, and returns the result. On a GPU that a process uses, or that still holds instances,
    /// the change waits until the GPU is free.
    pub fn set_mode(self, on: bool) -> Result<nvmlReturn_t> {
        let gpu = self.gpu.uuid;
        self.change(|state| {
            state.pending = on;
            let used = hardware::is_used(&run_directory(), gpu).map_err(unprepared)?;
            if state.on != on && (used || !state.instances.is_empty()) {
                return Ok(NVML_ERROR_IN_USE);
            }
            state.on = on;
            Ok(NVML_SUCCESS)
        })
    }

    /// The MIG devices, in the order of their indices.
    pub fn devices(self) -> Result<Vec<DeviceFacts>> {
        Ok(inventory::compute_instances(self.gpu, &self.divided()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_write_is_told_so() {
        let io = |kind: ErrorKind| StoreError::Io("state".into(), kind.into());
        assert_eq!(
            unreadable(io(ErrorKind::PermissionDenied)),
            NVML_ERROR_NO_PERMISSION
        );
        assert_eq!(unreadable(io(ErrorKind::StorageFull)), NVML_ERROR_UNKNOWN);
    }
}
