//! How much memory a device has, and how much of it is in use by all processes.

use divvy_abi::nvml::*;

use super::Result;
use super::args::{Device, Out};
use super::board::board;
use crate::hardware::{self, Usage};
use crate::inventory::DeviceFacts;
use crate::log;

/// The processes that use a device, from its page.
pub fn usage(device: &DeviceFacts) -> Result<Usage> {
    hardware::usage(&device.id()).map_err(|why| {
        log::once(
            "nvml usage",
            format_args!("cannot read the emulated device {}: {why}", device.uuid),
        );
        NVML_ERROR_UNKNOWN
    })
}

fn used_bytes(device: &DeviceFacts) -> Result<u64> {
    Ok(usage(device)?.used_bytes.min(device.memory_bytes()))
}

nvml_entry! {
    fn nvmlDeviceGetMemoryInfo(device: Device, memory: Out<nvmlMemory_t>) {
        let device = device.any()?;
        memory.required()?;
        let used = used_bytes(device)?;
        let total = device.memory_bytes();
        memory.set(nvmlMemory_t { total, free: total - used, used })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: Out<nvmlMemory_v2_t>) {
        let device = device.any()?;
        if memory.before()?.version != nvmlMemory_v2 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let used = used_bytes(device)?;
        let total = device.memory_bytes();
        // All of an emulated device's memory is its users'.
        memory.set(nvmlMemory_v2_t { version: nvmlMemory_v2, total, reserved: 0, free: total - used, used })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: Device, memory: Out<nvmlBAR1Memory_t>) {
        // Nothing maps an emulated device's memory through a window.
        let total = board(device.get()?.profile).bar1_bytes;
        memory.set(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total, bar1Used: 0 })
    }
}
