//! The slice as NVML shows it: its devices, its memory, its share of the compute, its processes.
//!
//! A limiter over any libnvidia-ml.so.1 below, for limit-nvml. Inside a slice it answers the queries that a tool makes
//! about a device, with the slice's figures. All else, and everything outside a slice, is a jump into the library below
//! ([`below`]). Devices keep the handles that the library below gave them, so forwarded calls need no translation.
//!
//! Observing takes no slot in the slice's ledger, and keeps no descriptor: each query is one short exchange with the
//! slice's page server. It is strict: if the slice cannot be observed, the result is `NVML_ERROR_NOT_READY`, never the
//! device's figure.

#![allow(non_snake_case, reason = "the hooks have the names of what they stand for")]

pub mod below;
mod devices;
mod memory;
mod outcome;
mod processes;
mod slice;
mod utilization;

use divvy_abi::nvml::Table;

use below::FORWARD;

/// The limiter as an NVML.
pub const TABLE: Table = Table {
    nvmlInit: devices::nvmlInit,
    nvmlInit_v2: devices::nvmlInit_v2,
    nvmlInitWithFlags: devices::nvmlInitWithFlags,
    nvmlDeviceGetCount: devices::nvmlDeviceGetCount,
    nvmlDeviceGetCount_v2: devices::nvmlDeviceGetCount_v2,
    nvmlDeviceGetHandleByIndex: devices::nvmlDeviceGetHandleByIndex,
    nvmlDeviceGetHandleByIndex_v2: devices::nvmlDeviceGetHandleByIndex_v2,
    nvmlDeviceGetHandleByPciBusId: devices::nvmlDeviceGetHandleByPciBusId,
    nvmlDeviceGetHandleByPciBusId_v2: devices::nvmlDeviceGetHandleByPciBusId_v2,
    nvmlDeviceGetHandleBySerial: devices::nvmlDeviceGetHandleBySerial,
    nvmlDeviceGetHandleByUUID: devices::nvmlDeviceGetHandleByUUID,
    nvmlDeviceGetHandleByUUIDV: devices::nvmlDeviceGetHandleByUUIDV,
    nvmlDeviceGetIndex: devices::nvmlDeviceGetIndex,
    nvmlDeviceGetMemoryInfo: memory::nvmlDeviceGetMemoryInfo,
    nvmlDeviceGetMemoryInfo_v2: memory::nvmlDeviceGetMemoryInfo_v2,
    nvmlDeviceGetBAR1MemoryInfo: memory::nvmlDeviceGetBAR1MemoryInfo,
    nvmlDeviceGetUtilizationRates: utilization::nvmlDeviceGetUtilizationRates,
    nvmlDeviceGetProcessUtilization: utilization::nvmlDeviceGetProcessUtilization,
    nvmlDeviceGetProcessesUtilizationInfo: utilization::nvmlDeviceGetProcessesUtilizationInfo,
    nvmlDeviceGetComputeRunningProcesses: processes::nvmlDeviceGetComputeRunningProcesses,
    nvmlDeviceGetComputeRunningProcesses_v2: processes::nvmlDeviceGetComputeRunningProcesses_v2,
    nvmlDeviceGetComputeRunningProcesses_v3: processes::nvmlDeviceGetComputeRunningProcesses_v3,
    nvmlDeviceGetGraphicsRunningProcesses: processes::nvmlDeviceGetGraphicsRunningProcesses,
    nvmlDeviceGetGraphicsRunningProcesses_v2: processes::nvmlDeviceGetGraphicsRunningProcesses_v2,
    nvmlDeviceGetGraphicsRunningProcesses_v3: processes::nvmlDeviceGetGraphicsRunningProcesses_v3,
    nvmlDeviceGetMPSComputeRunningProcesses: processes::nvmlDeviceGetMPSComputeRunningProcesses,
    nvmlDeviceGetMPSComputeRunningProcesses_v2: processes::nvmlDeviceGetMPSComputeRunningProcesses_v2,
    nvmlDeviceGetMPSComputeRunningProcesses_v3: processes::nvmlDeviceGetMPSComputeRunningProcesses_v3,
    nvmlDeviceGetRunningProcessDetailList: processes::nvmlDeviceGetRunningProcessDetailList,
    ..FORWARD
};
