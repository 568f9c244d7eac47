//! Modes of operation: those of a data-centre card as it is delivered.

use divvy_abi::nvml::*;

use super::args::{Device, Out};

nvml_entry! {
    fn nvmlDeviceGetDisplayMode
        | nvmlDeviceGetDisplayActive
        | nvmlDeviceGetAccountingMode(device: Device, mode: Out<nvmlEnableState_t>) {
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

    fn nvmlDeviceGetVirtualizationMode(device: Device, mode: Out<nvmlGpuVirtualizationMode_t>) {
        device.get()?;
        mode.set(NVML_GPU_VIRTUALIZATION_MODE_NONE)
    }

    fn nvmlDeviceValidateInforom(device: Device) {
        device.get().map(drop)
    }
}
