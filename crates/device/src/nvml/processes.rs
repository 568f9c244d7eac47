//! The processes that use a device: the process lists, in the layouts of their three versions.

use divvy_abi::nvml::*;

use super::Result;
use super::args::{Device, Out};
use super::memory::usage;
use crate::hardware::ProcessUsage;

/// NVML's "not part of a MIG device".
const NO_INSTANCE: u32 = u32::MAX;

/// Fills a list by NVML's protocol: `count` holds the list's capacity and becomes the number of entries. Too small a
/// capacity is an error that tells how much is needed.
fn list<T>(
    processes: &[ProcessUsage],
    count: &Out<u32>,
    infos: &Out<T>,
    info: impl Fn(&ProcessUsage) -> T,
) -> Result {
    let room = count.before()?;
    count.set(processes.len() as u32)?;
    if processes.len() as u64 > u64::from(room) {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (index, process) in processes.iter().enumerate() {
        infos.set_at(index, info(process))?;
    }
    Ok(())
}

fn first_version(process: &ProcessUsage) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t {
        pid: process.pid,
        usedGpuMemory: process.used_bytes,
    }
}

fn ids(process: &ProcessUsage) -> (u32, u32) {
    process.instance.unwrap_or((NO_INSTANCE, NO_INSTANCE))
}

fn second_version(process: &ProcessUsage) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: process.used_bytes,
        gpuInstanceId: ids(process).0,
        computeInstanceId: ids(process).1,
    }
}

nvml_entry! {
    fn nvmlDeviceGetComputeRunningProcesses(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) {
        list(&usage(device.any()?)?.processes, &count, &infos, first_version)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2
        | nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: Out<u32>, infos: Out<nvmlProcessInfo_v2_t>) {
        list(&usage(device.any()?)?.processes, &count, &infos, second_version)
    }

    // Every user of an emulated device computes; none draws, and none comes through MPS.
    fn nvmlDeviceGetGraphicsRunningProcesses
        | nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: Out<u32>, _infos: Out<nvmlProcessInfo_v1_t>) {
        device.any()?;
        count.set(0)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2
        | nvmlDeviceGetGraphicsRunningProcesses_v3
        | nvmlDeviceGetMPSComputeRunningProcesses_v2
        | nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: Out<u32>, _infos: Out<nvmlProcessInfo_v2_t>) {
        device.any()?;
        count.set(0)
    }

    fn nvmlDeviceGetRunningProcessDetailList(device: Device, list: Out<nvmlProcessDetailList_t>) {
        let device = device.any()?;
        let mut asked = list.before()?;
        if asked.version != nvmlProcessDetailList_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        // Mode 0 is compute, 1 graphics, 2 MPS.
        let processes = match asked.mode {
            0 => usage(device)?.processes,
            1 | 2 => Vec::new(),
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        };
        let room = asked.numProcArrayEntries;
        asked.numProcArrayEntries = processes.len() as u32;
        list.set(asked)?;
        if processes.len() as u64 > u64::from(room) {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        // SAFETY: the program gave room for this many entries.
        let entries: Out<nvmlProcessDetail_v1_t> = unsafe { super::args::Argument::from_raw(asked.procArray) };
        for (index, process) in processes.iter().enumerate() {
            entries.set_at(index, nvmlProcessDetail_v1_t {
                pid: process.pid,
                usedGpuMemory: process.used_bytes,
                gpuInstanceId: ids(process).0,
                computeInstanceId: ids(process).1,
                usedGpuCcProtectedMemory: 0,
            })?;
        }
        Ok(())
    }
}
