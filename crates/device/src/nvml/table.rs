//! The table of everything that is implemented.

use divvy_abi::nvml::Table;

use super::{
    clocks, compute_instances, events, gpu_instances, health, identity, library, links, memory, modes,
    processes, sensors, utilization,
};

/// The emulated devices' NVML: a libnvidia-ml.so.1 that needs no GPU.
pub const TABLE: Table = divvy_abi::implemented! { Table {
    clocks: nvmlDeviceGetApplicationsClock nvmlDeviceGetClock nvmlDeviceGetClockInfo nvmlDeviceGetCurrPcieLinkGeneration
        nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetCurrentClocksThrottleReasons
        nvmlDeviceGetDefaultApplicationsClock nvmlDeviceGetGpuMaxPcieLinkGeneration nvmlDeviceGetMaxClockInfo
        nvmlDeviceGetMaxCustomerBoostClock nvmlDeviceGetMaxPcieLinkGeneration nvmlDeviceGetMaxPcieLinkWidth
        nvmlDeviceGetPcieReplayCounter nvmlDeviceGetPcieThroughput nvmlDeviceGetPerformanceState nvmlDeviceGetPowerState
        nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetSupportedClocksThrottleReasons
        nvmlDeviceGetSupportedGraphicsClocks nvmlDeviceGetSupportedMemoryClocks;
    compute_instances: nvmlComputeInstanceDestroy nvmlComputeInstanceGetInfo nvmlComputeInstanceGetInfo_v2
        nvmlGpuInstanceCreateComputeInstance nvmlGpuInstanceCreateComputeInstanceWithPlacement
        nvmlGpuInstanceGetComputeInstanceById nvmlGpuInstanceGetComputeInstancePossiblePlacements
        nvmlGpuInstanceGetComputeInstanceProfileInfo nvmlGpuInstanceGetComputeInstanceProfileInfoV
        nvmlGpuInstanceGetComputeInstanceRemainingCapacity nvmlGpuInstanceGetComputeInstances;
    events: nvmlDeviceGetSupportedEventTypes nvmlEventSetCreate nvmlEventSetFree nvmlEventSetWait nvmlEventSetWait_v2;
    gpu_instances: nvmlDeviceCreateGpuInstance nvmlDeviceCreateGpuInstanceWithPlacement nvmlDeviceGetAttributes_v2
        nvmlDeviceGetComputeInstanceId nvmlDeviceGetDeviceHandleFromMigDeviceHandle nvmlDeviceGetGpuInstanceById
        nvmlDeviceGetGpuInstanceId nvmlDeviceGetGpuInstancePossiblePlacements
        nvmlDeviceGetGpuInstancePossiblePlacements_v2 nvmlDeviceGetGpuInstanceProfileInfo
        nvmlDeviceGetGpuInstanceProfileInfoByIdV nvmlDeviceGetGpuInstanceProfileInfoV
        nvmlDeviceGetGpuInstanceRemainingCapacity nvmlDeviceGetGpuInstances nvmlDeviceGetMaxMigDeviceCount
        nvmlDeviceGetMigDeviceHandleByIndex nvmlDeviceGetMigMode nvmlDeviceIsMigDeviceHandle nvmlDeviceSetMigMode
        nvmlGpuInstanceDestroy nvmlGpuInstanceGetInfo;
    health: nvmlDeviceGetDefaultEccMode nvmlDeviceGetEccMode nvmlDeviceGetFieldValues nvmlDeviceGetMemoryErrorCounter
        nvmlDeviceGetRemappedRows nvmlDeviceGetRetiredPages nvmlDeviceGetRetiredPagesPendingStatus
        nvmlDeviceGetTotalEccErrors;
    identity: nvmlDeviceGetArchitecture nvmlDeviceGetBoardId nvmlDeviceGetBrand nvmlDeviceGetBusType nvmlDeviceGetCount
        nvmlDeviceGetCount_v2 nvmlDeviceGetCudaComputeCapability nvmlDeviceGetHandleByIndex
        nvmlDeviceGetHandleByIndex_v2 nvmlDeviceGetHandleByPciBusId nvmlDeviceGetHandleByPciBusId_v2
        nvmlDeviceGetHandleBySerial nvmlDeviceGetHandleByUUID nvmlDeviceGetHandleByUUIDV nvmlDeviceGetIndex
        nvmlDeviceGetMemoryBusWidth nvmlDeviceGetMinorNumber nvmlDeviceGetModuleId nvmlDeviceGetMultiGpuBoard
        nvmlDeviceGetName nvmlDeviceGetNumGpuCores nvmlDeviceGetPciInfo nvmlDeviceGetPciInfoExt nvmlDeviceGetPciInfo_v2
        nvmlDeviceGetPciInfo_v3 nvmlDeviceGetSerial nvmlDeviceGetUUID;
    library: nvmlErrorString nvmlGetBlacklistDeviceCount nvmlGetExcludedDeviceCount nvmlInit nvmlInitWithFlags
        nvmlInit_v2 nvmlInternalGetExportTable nvmlShutdown nvmlSystemGetCudaDriverVersion
        nvmlSystemGetCudaDriverVersion_v2 nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion nvmlSystemGetProcessName
        nvmlUnitGetCount;
    links: nvmlDeviceGetNvLinkRemoteDeviceType nvmlDeviceGetNvLinkRemotePciInfo_v2 nvmlDeviceGetNvLinkState;
    memory: nvmlDeviceGetBAR1MemoryInfo nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2;
    modes: nvmlDeviceGetAccountingMode nvmlDeviceGetComputeMode nvmlDeviceGetDisplayActive nvmlDeviceGetDisplayMode
        nvmlDeviceGetPersistenceMode nvmlDeviceGetVirtualizationMode nvmlDeviceValidateInforom;
    processes: nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetComputeRunningProcesses_v2
        nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses
        nvmlDeviceGetGraphicsRunningProcesses_v2 nvmlDeviceGetGraphicsRunningProcesses_v3
        nvmlDeviceGetMPSComputeRunningProcesses nvmlDeviceGetMPSComputeRunningProcesses_v2
        nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlDeviceGetRunningProcessDetailList;
    sensors: nvmlDeviceGetDecoderUtilization nvmlDeviceGetEncoderStats nvmlDeviceGetEncoderUtilization
        nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetFBCStats nvmlDeviceGetJpgUtilization nvmlDeviceGetOfaUtilization
        nvmlDeviceGetPowerManagementDefaultLimit nvmlDeviceGetPowerManagementLimit
        nvmlDeviceGetPowerManagementLimitConstraints nvmlDeviceGetPowerManagementMode nvmlDeviceGetPowerUsage
        nvmlDeviceGetTemperature nvmlDeviceGetTemperatureThreshold nvmlDeviceGetTemperatureV
        nvmlDeviceGetUtilizationRates;
    utilization: nvmlDeviceGetProcessUtilization nvmlDeviceGetProcessesUtilizationInfo;
} };
