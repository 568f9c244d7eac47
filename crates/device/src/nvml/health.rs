//! Errors of the memory and what became of them: an emulated device has none.

use divvy_abi::nvml::*;

use super::args::{Device, Out};
use super::board::board;
use crate::inventory::DeviceFacts;

/// From Ampere on bad rows are remapped; before, bad pages were retired.
fn remaps_rows(device: &DeviceFacts) -> bool {
    board(device.profile).architecture >= NVML_DEVICE_ARCH_AMPERE
}

fn ecc(device: &DeviceFacts) -> nvmlEnableState_t {
    match device.profile.has_ecc() {
        true => NVML_FEATURE_ENABLED,
        false => NVML_FEATURE_DISABLED,
    }
}

nvml_entry! {
    fn nvmlDeviceGetEccMode(device: Device, current: Out<nvmlEnableState_t>, pending: Out<nvmlEnableState_t>) {
        let mode = ecc(device.get()?);
        pending.required()?;
        current.set(mode)?;
        pending.set(mode)
    }

    fn nvmlDeviceGetDefaultEccMode(device: Device, mode: Out<nvmlEnableState_t>) {
        mode.set(ecc(device.get()?))
    }

    fn nvmlDeviceGetTotalEccErrors(
        device: Device,
        kind: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        count: Out<u64>,
    ) {
        device.get()?;
        if kind >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        count.set(0)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        device: Device,
        kind: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        place: nvmlMemoryLocation_t,
        count: Out<u64>,
    ) {
        device.get()?;
        if kind >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        match place {
            NVML_MEMORY_LOCATION_DRAM | NVML_MEMORY_LOCATION_SRAM => count.set(0),
            _ => Err(NVML_ERROR_NOT_SUPPORTED),
        }
    }

    fn nvmlDeviceGetRemappedRows(
        device: Device,
        correctable: Out<u32>,
        uncorrectable: Out<u32>,
        pending: Out<u32>,
        failed: Out<u32>,
    ) {
        if !remaps_rows(device.get()?) {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        for count in [correctable, uncorrectable, pending, failed] {
            count.set(0)?;
        }
        Ok(())
    }

    fn nvmlDeviceGetRetiredPages(
        device: Device,
        _cause: nvmlPageRetirementCause_t,
        count: Out<u32>,
        _addresses: Out<u64>,
    ) {
        if remaps_rows(device.get()?) {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        count.set(0)
    }

    fn nvmlDeviceGetRetiredPagesPendingStatus(device: Device, pending: Out<nvmlEnableState_t>) {
        if remaps_rows(device.get()?) {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        pending.set(NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceGetFieldValues(device: Device, count: i32, values: Out<nvmlFieldValue_t>) {
        device.get()?;
        let count = usize::try_from(count).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)?;
        for index in 0..count {
            let asked = values.before_at(index)?;
            values.set_at(index, nvmlFieldValue_t { nvmlReturn: NVML_ERROR_NOT_SUPPORTED, ..asked })?;
        }
        Ok(())
    }
}
