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
pub use slice::name_processes;

/// The limiter as an NVML.
pub const TABLE: Table = divvy_abi::implemented! { Table over FORWARD {
    devices: nvmlInit nvmlInit_v2 nvmlInitWithFlags nvmlDeviceGetCount nvmlDeviceGetCount_v2
        nvmlDeviceGetHandleByIndex nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetHandleByPciBusId
        nvmlDeviceGetHandleByPciBusId_v2 nvmlDeviceGetHandleBySerial nvmlDeviceGetHandleByUUID
        nvmlDeviceGetHandleByUUIDV nvmlDeviceGetIndex;
    memory: nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetBAR1MemoryInfo;
    utilization: nvmlDeviceGetUtilizationRates nvmlDeviceGetProcessUtilization
        nvmlDeviceGetProcessesUtilizationInfo;
    processes: nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetComputeRunningProcesses_v2
        nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses
        nvmlDeviceGetGraphicsRunningProcesses_v2 nvmlDeviceGetGraphicsRunningProcesses_v3
        nvmlDeviceGetMPSComputeRunningProcesses nvmlDeviceGetMPSComputeRunningProcesses_v2
        nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlDeviceGetRunningProcessDetailList;
} };
