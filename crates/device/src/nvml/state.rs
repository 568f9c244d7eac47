//! The library's state in this process: how often it was initialised, and its devices.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use divvy_abi::nvml::*;

use super::Result;
use super::divisible::Divisible;
use crate::inventory::{self, DeviceFacts};
use crate::log;

/// Calls of nvmlInit that no nvmlShutdown has ended.
static USERS: AtomicU32 = AtomicU32::new(0);
/// What the last initialisation found. Handles point into it, so a former list is kept for ever.
static DEVICES: Mutex<Option<Found>> = Mutex::new(None);

#[derive(Clone, Copy)]
struct Found(&'static [DeviceFacts]);

/// nvmlInit: one more user. The first one finds the devices.
pub fn initialise() -> Result {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    if USERS.load(Ordering::Acquire) == 0 {
        on_unsupported(|symbol| {
            log::once(
                symbol.name(),
                format_args!("{symbol} is not supported by the emulated device"),
            );
        });
        let found = inventory::devices_from_env().map_err(|why| {
            log::line(format_args!("DIVVY_EMULATED: {why}"));
            NVML_ERROR_DRIVER_NOT_LOADED
        })?;
        // The same devices keep their handles from one initialisation to the next.
        if devices.is_none_or(|former| former.0 != found) {
            *devices = Some(Found(Vec::leak(found)));
        }
    }
    USERS.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// nvmlShutdown: one user less.
pub fn shut_down() -> Result {
    USERS
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |users| users.checked_sub(1))
        .map(drop)
        .map_err(|_| NVML_ERROR_UNINITIALIZED)
}

/// The devices, in PCI bus order, of an initialised library. CUDA_VISIBLE_DEVICES does not matter to NVML.
pub fn devices() -> Result<&'static [DeviceFacts]> {
    if USERS.load(Ordering::Acquire) == 0 {
        return Err(NVML_ERROR_UNINITIALIZED);
    }
    let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    devices.map(|found| found.0).ok_or(NVML_ERROR_UNINITIALIZED)
}

/// The handle of a device of [`devices`].
pub fn handle(device: &'static DeviceFacts) -> nvmlDevice_t {
    core::ptr::from_ref(device).cast_mut().cast()
}

/// MIG devices of which handles were given out; a handle points to one.
static MIG_DEVICES: Mutex<Vec<&'static DeviceFacts>> = Mutex::new(Vec::new());

/// The handle of a MIG device: the same for the same device.
pub fn mig_handle(device: &DeviceFacts) -> nvmlDevice_t {
    let mut known = MIG_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known.iter().find(|known| ***known == *device).copied();
    handle(found.unwrap_or_else(|| {
        let kept: &'static DeviceFacts = Box::leak(Box::new(*device));
        known.push(kept);
        kept
    }))
}

/// The device of a handle: a GPU's, or that of a MIG device that is there now.
pub fn of_handle(handle: nvmlDevice_t) -> Result<&'static DeviceFacts> {
    let devices = devices()?;
    let is_it = |device: &&'static DeviceFacts| core::ptr::eq(core::ptr::from_ref(*device).cast(), handle);
    if let Some(gpu) = devices.iter().find(is_it) {
        return Ok(gpu);
    }
    let known = MIG_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known
        .iter()
        .copied()
        .find(is_it)
        .ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    let gpu = devices.iter().find(|gpu| gpu.uuid == found.gpu());
    let there = Divisible::of(gpu.ok_or(NVML_ERROR_INVALID_ARGUMENT)?)?.devices()?;
    match there.iter().any(|device| device == found) {
        true => Ok(found),
        false => Err(NVML_ERROR_INVALID_ARGUMENT),
    }
}
