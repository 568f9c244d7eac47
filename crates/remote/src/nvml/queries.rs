//! The queries that are served, and what the C types of their arguments do not say.
//!
//! Only what reads is here, and of that nothing that names processes, sessions or devices of other tenants. All else
//! answers `NVML_ERROR_NOT_SUPPORTED`: it changes the device, or its structures hold addresses or handles.

use std::sync::OnceLock;

use divvy_abi::nvml::{Parameter, Symbol};

/// A list or text and the argument that counts it, by their places among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The place of the list or the text.
    pub list: usize,
    /// The place of its number of elements, or of characters.
    pub count: usize,
}

/// A query that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The symbol.
    pub symbol: Symbol,
    /// What its arguments are, by their C types.
    pub parameters: Vec<Parameter>,
    /// Its list or text.
    pub counted: Option<Counted>,
    /// The first member of this argument's structure says the structure's size, as NVML's versions do.
    pub versioned: Option<usize>,
    /// The query as messages name it: a hash of its name, its types and its counts. One of another version with other
    /// types is another query.
    pub id: u64,
}

macro_rules! queries {
    ($($name:ident $(($list:literal by $count:literal))? $(version $version:literal)?;)*) => {
        const SERVED: &[(Symbol, Option<Counted>, Option<usize>)] = &[$((
            Symbol::$name,
            first(&[$(Counted { list: $list, count: $count })?]),
            first_place(&[$($version)?]),
        ),)*];
    };
}

const fn first(counted: &[Counted]) -> Option<Counted> {
    match counted {
        [one, ..] => Some(*one),
        [] => None,
    }
}

const fn first_place(places: &[usize]) -> Option<usize> {
    match places {
        [one, ..] => Some(*one),
        [] => None,
    }
}

queries! {
    nvmlDeviceGetAdaptiveClockInfoStatus;
    nvmlDeviceGetApplicationsClock;
    nvmlDeviceGetArchitecture;
    nvmlDeviceGetAutoBoostedClocksEnabled;
    nvmlDeviceGetBAR1MemoryInfo;
    nvmlDeviceGetBoardId;
    nvmlDeviceGetBoardPartNumber (1 by 2);
    nvmlDeviceGetBrand;
    nvmlDeviceGetBusType;
    nvmlDeviceGetClock;
    nvmlDeviceGetClockInfo;
    nvmlDeviceGetComputeMode;
    nvmlDeviceGetComputeRunningProcesses (2 by 1);
    nvmlDeviceGetComputeRunningProcesses_v2 (2 by 1);
    nvmlDeviceGetComputeRunningProcesses_v3 (2 by 1);
    nvmlDeviceGetCount;
    nvmlDeviceGetCount_v2;
    nvmlDeviceGetCpuAffinity (2 by 1);
    nvmlDeviceGetCudaComputeCapability;
    nvmlDeviceGetCurrPcieLinkGeneration;
    nvmlDeviceGetCurrPcieLinkWidth;
    nvmlDeviceGetCurrentClocksEventReasons;
    nvmlDeviceGetCurrentClocksThrottleReasons;
    nvmlDeviceGetDecoderUtilization;
    nvmlDeviceGetDefaultApplicationsClock;
    nvmlDeviceGetDefaultEccMode;
    nvmlDeviceGetDisplayActive;
    nvmlDeviceGetDisplayMode;
    nvmlDeviceGetEccMode;
    nvmlDeviceGetEncoderStats;
    nvmlDeviceGetEncoderUtilization;
    nvmlDeviceGetEnforcedPowerLimit;
    nvmlDeviceGetFBCStats;
    nvmlDeviceGetFanSpeed;
    nvmlDeviceGetFanSpeedRPM version 1;
    nvmlDeviceGetFanSpeed_v2;
    nvmlDeviceGetFieldValues (2 by 1);
    nvmlDeviceGetGpuMaxPcieLinkGeneration;
    nvmlDeviceGetGpuOperationMode;
    nvmlDeviceGetGraphicsRunningProcesses (2 by 1);
    nvmlDeviceGetGraphicsRunningProcesses_v2 (2 by 1);
    nvmlDeviceGetGraphicsRunningProcesses_v3 (2 by 1);
    nvmlDeviceGetHandleByIndex;
    nvmlDeviceGetHandleByIndex_v2;
    nvmlDeviceGetHandleByPciBusId;
    nvmlDeviceGetHandleByPciBusId_v2;
    nvmlDeviceGetHandleBySerial;
    nvmlDeviceGetHandleByUUID;
    nvmlDeviceGetIndex;
    nvmlDeviceGetInforomConfigurationChecksum;
    nvmlDeviceGetInforomImageVersion (1 by 2);
    nvmlDeviceGetInforomVersion (2 by 3);
    nvmlDeviceGetIrqNum;
    nvmlDeviceGetJpgUtilization;
    nvmlDeviceGetMPSComputeRunningProcesses (2 by 1);
    nvmlDeviceGetMPSComputeRunningProcesses_v2 (2 by 1);
    nvmlDeviceGetMPSComputeRunningProcesses_v3 (2 by 1);
    nvmlDeviceGetMarginTemperature version 1;
    nvmlDeviceGetMaxClockInfo;
    nvmlDeviceGetMaxCustomerBoostClock;
    nvmlDeviceGetMaxMigDeviceCount;
    nvmlDeviceGetMaxPcieLinkGeneration;
    nvmlDeviceGetMaxPcieLinkWidth;
    nvmlDeviceGetMemoryAffinity (2 by 1);
    nvmlDeviceGetMemoryBusWidth;
    nvmlDeviceGetMemoryErrorCounter;
    nvmlDeviceGetMemoryInfo;
    nvmlDeviceGetMemoryInfo_v2 version 1;
    nvmlDeviceGetMigMode;
    nvmlDeviceGetMinMaxClockOfPState;
    nvmlDeviceGetMinMaxFanSpeed;
    nvmlDeviceGetMinorNumber;
    nvmlDeviceGetModuleId;
    nvmlDeviceGetMultiGpuBoard;
    nvmlDeviceGetName (1 by 2);
    nvmlDeviceGetNumFans;
    nvmlDeviceGetNumGpuCores;
    nvmlDeviceGetNumaNodeId;
    nvmlDeviceGetNvLinkCapability;
    nvmlDeviceGetNvLinkErrorCounter;
    nvmlDeviceGetNvLinkState;
    nvmlDeviceGetNvLinkVersion;
    nvmlDeviceGetOfaUtilization;
    nvmlDeviceGetP2PStatus;
    nvmlDeviceGetPciInfo;
    nvmlDeviceGetPciInfoExt version 1;
    nvmlDeviceGetPciInfo_v2;
    nvmlDeviceGetPciInfo_v3;
    nvmlDeviceGetPcieLinkMaxSpeed;
    nvmlDeviceGetPcieReplayCounter;
    nvmlDeviceGetPcieSpeed;
    nvmlDeviceGetPcieThroughput;
    nvmlDeviceGetPerformanceState;
    nvmlDeviceGetPersistenceMode;
    nvmlDeviceGetPowerManagementDefaultLimit;
    nvmlDeviceGetPowerManagementLimit;
    nvmlDeviceGetPowerManagementLimitConstraints;
    nvmlDeviceGetPowerManagementMode;
    nvmlDeviceGetPowerSource;
    nvmlDeviceGetPowerState;
    nvmlDeviceGetPowerUsage;
    nvmlDeviceGetProcessUtilization (1 by 2);
    nvmlDeviceGetRemappedRows;
    nvmlDeviceGetRetiredPages (3 by 2);
    nvmlDeviceGetRetiredPagesPendingStatus;
    nvmlDeviceGetSerial (1 by 2);
    nvmlDeviceGetSupportedClocksEventReasons;
    nvmlDeviceGetSupportedClocksThrottleReasons;
    nvmlDeviceGetSupportedEventTypes;
    nvmlDeviceGetSupportedGraphicsClocks (3 by 2);
    nvmlDeviceGetSupportedMemoryClocks (2 by 1);
    nvmlDeviceGetTargetFanSpeed;
    nvmlDeviceGetTemperature;
    nvmlDeviceGetTemperatureThreshold;
    nvmlDeviceGetTemperatureV version 1;
    nvmlDeviceGetTopologyCommonAncestor;
    nvmlDeviceGetTotalEccErrors;
    nvmlDeviceGetTotalEnergyConsumption;
    nvmlDeviceGetUUID (1 by 2);
    nvmlDeviceGetUtilizationRates;
    nvmlDeviceGetVbiosVersion (1 by 2);
    nvmlDeviceGetViolationStatus;
    nvmlDeviceGetVirtualizationMode;
    nvmlDeviceIsMigDeviceHandle;
    nvmlDeviceOnSameBoard;
    nvmlGetBlacklistDeviceCount;
    nvmlGetExcludedDeviceCount;
    nvmlSystemGetCudaDriverVersion;
    nvmlSystemGetCudaDriverVersion_v2;
    nvmlSystemGetDriverVersion (0 by 1);
    nvmlSystemGetNVMLVersion (0 by 1);
    nvmlUnitGetCount;
}

/// All of them, in the order of their symbols.
pub fn all() -> &'static [Query] {
    static ALL: OnceLock<Vec<Query>> = OnceLock::new();
    ALL.get_or_init(|| {
        let query = |(symbol, counted, versioned): &(Symbol, Option<Counted>, Option<usize>)| {
            let parameters = symbol.parameters();
            Query {
                symbol: *symbol,
                id: id(*symbol, &parameters, *counted),
                parameters,
                counted: *counted,
                versioned: *versioned,
            }
        };
        let mut all: Vec<Query> = SERVED.iter().map(query).collect();
        all.sort_by_key(|query| query.symbol);
        all
    })
}

/// The query of a symbol, if it is served.
pub fn of(symbol: Symbol) -> Option<&'static Query> {
    let all = all();
    let place = all.binary_search_by_key(&symbol, |query| query.symbol).ok()?;
    all.get(place)
}

/// The query that a message names.
pub fn named(id: u64) -> Option<&'static Query> {
    all().iter().find(|query| query.id == id)
}

/// FNV-1a of all that has to be the same on both sides.
fn id(symbol: Symbol, parameters: &[Parameter], counted: Option<Counted>) -> u64 {
    let text = format!("{symbol} {parameters:?} {counted:?}");
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
