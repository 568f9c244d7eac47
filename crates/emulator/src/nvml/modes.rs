//! Modes of operation: those of a data-centre card as it is delivered.

use divvy_abi::nvml::*;

use super::args::{Device, Out};
use super::board::board;

nvml_entry! {
    fn nvmlDeviceGetDisplayMode(device: Device, mode: Out<nvmlEnableState_t>) {
        device.get()?;
        mode.set(NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceGetDisplayActive(device: Device, mode: Out<nvmlEnableState_t>) {
        device.get()?;
        mode.set(NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceGetPersistenceMode(device: Device, mode: Out<nvmlEnableState_t>) {
        device.get()?;
        mode.set(NVML_FEATURE_ENABLED)
    }

    fn nvmlDeviceGetComputeMode(device: Device, mode: Out<nvmlComputeMode_t>) {
        device.get()?;
        mode.set(NVML_COMPUTEMODE_DEFAULT)
    }

    fn nvmlDeviceGetAccountingMode(device: Device, mode: Out<nvmlEnableState_t>) {
        device.get()?;
        mode.set(NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceGetVirtualizationMode(device: Device, mode: Out<nvmlGpuVirtualizationMode_t>) {
        device.get()?;
        mode.set(NVML_GPU_VIRTUALIZATION_MODE_NONE)
    }

    fn nvmlDeviceGetMigMode(device: Device, current: Out<u32>, pending: Out<u32>) {
        if !board(device.get()?.profile).mig {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        pending.required()?;
        current.set(NVML_DEVICE_MIG_DISABLE)?;
        pending.set(NVML_DEVICE_MIG_DISABLE)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: Out<u32>) {
        device.get()?;
        count.set(0)
    }

    fn nvmlDeviceIsMigDeviceHandle(device: Device, is_mig: Out<u32>) {
        device.get()?;
        is_mig.set(0)
    }

    // A device whose chip has MIG tells its parts also while MIG is off.
    fn nvmlDeviceGetAttributes_v2(device: Device, attributes: Out<nvmlDeviceAttributes_t>) {
        let profile = device.get()?.profile;
        if !board(profile).mig {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        attributes.set(nvmlDeviceAttributes_t {
            multiprocessorCount: profile.sm_count,
            sharedCopyEngineCount: profile.copy_engines,
            memorySizeMB: profile.memory_bytes >> 20,
            ..nvmlDeviceAttributes_t::default()
        })
    }

    fn nvmlDeviceValidateInforom(device: Device) {
        device.get().map(drop)
    }
}
