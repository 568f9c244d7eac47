//! The slice's own processes instead of the device's.

use divvy_abi::nvml::*;
use divvy_ledger::attach::ObservedProcess;

use super::below::forward;
use super::outcome::{Result, code, done};
use super::slice;

/// NVML's "not part of a MIG device".
const NO_INSTANCE: u32 = u32::MAX;

/// Fills a list by NVML's protocol: `count` holds the capacity and becomes the number of entries. If the capacity is
/// too small, the call fails and tells how many entries are needed.
///
/// # Safety
/// `count` is null or valid for reading and writing, and `infos` has space for as many entries as it says.
unsafe fn fill<T>(
    processes: &[ObservedProcess],
    count: *mut u32,
    infos: *mut T,
    info: impl Fn(&ObservedProcess) -> T,
) -> Result {
    if count.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid by the caller's promise.
    let room = unsafe { count.replace(processes.len() as u32) };
    if processes.len() as u64 > u64::from(room) {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    if infos.is_null() && !processes.is_empty() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    for (index, process) in processes.iter().enumerate() {
        // SAFETY: within the capacity that the caller guarantees.
        unsafe { infos.add(index).write(info(process)) };
    }
    Ok(())
}

fn first_version(process: &ObservedProcess) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t {
        pid: slice::shown(process.pid),
        usedGpuMemory: process.used_bytes,
    }
}

fn second_version(process: &ObservedProcess) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid: slice::shown(process.pid),
        usedGpuMemory: process.used_bytes,
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
    }
}

/// Whether the library below accepts the handle, or its error: a wrong argument gets NVML's own code.
fn check(device: nvmlDevice_t) -> Result {
    let mut index = 0;
    // SAFETY: a valid out-parameter; the library below checks handles as it does without us.
    done(unsafe { forward::nvmlDeviceGetIndex(device, &raw mut index) })
}

macro_rules! lists {
    ($($name:ident($of:ty) = $processes:expr, $info:ident;)*) => {$(
        pub unsafe extern "C-unwind" fn $name(
            device: nvmlDevice_t,
            count: *mut u32,
            infos: *mut $of,
        ) -> nvmlReturn_t {
            let Some(path) = slice::path() else {
                // SAFETY: the program's arguments.
                return unsafe { forward::$name(device, count, infos) };
            };
            let list = || -> Result {
                check(device)?;
                let slice = slice::account_of(path, device)?;
                let chosen: fn(&[ObservedProcess]) -> &[ObservedProcess] = $processes;
                // SAFETY: the program's arguments, by NVML's contract.
                unsafe { fill(chosen(&slice.processes), count, infos, $info) }
            };
            code(list())
        }
    )*};
}

/// A process that holds memory in the ledger counts as a compute process, since nothing else is known.
const EVERYBODY: fn(&[ObservedProcess]) -> &[ObservedProcess] = |processes| processes;
/// The other lists would repeat the same processes.
const NONE: fn(&[ObservedProcess]) -> &[ObservedProcess] = |_| &[];

lists! {
    nvmlDeviceGetComputeRunningProcesses(nvmlProcessInfo_v1_t) = EVERYBODY, first_version;
    nvmlDeviceGetComputeRunningProcesses_v2(nvmlProcessInfo_v2_t) = EVERYBODY, second_version;
    nvmlDeviceGetComputeRunningProcesses_v3(nvmlProcessInfo_v2_t) = EVERYBODY, second_version;
    nvmlDeviceGetGraphicsRunningProcesses(nvmlProcessInfo_v1_t) = NONE, first_version;
    nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlProcessInfo_v2_t) = NONE, second_version;
    nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlProcessInfo_v2_t) = NONE, second_version;
    nvmlDeviceGetMPSComputeRunningProcesses(nvmlProcessInfo_v1_t) = NONE, first_version;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlProcessInfo_v2_t) = NONE, second_version;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlProcessInfo_v2_t) = NONE, second_version;
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetRunningProcessDetailList(
    device: nvmlDevice_t,
    list: *mut nvmlProcessDetailList_t,
) -> nvmlReturn_t {
    let Some(path) = slice::path() else {
        // SAFETY: the program's arguments.
        return unsafe { forward::nvmlDeviceGetRunningProcessDetailList(device, list) };
    };
    let fill_in = || -> Result {
        check(device)?;
        if list.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not null, so valid by NVML's contract.
        let asked = unsafe { &mut *list };
        if asked.version != nvmlProcessDetailList_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let slice = slice::account_of(path, device)?;
        // Mode 0 is compute, 1 graphics, 2 MPS.
        let processes = match asked.mode {
            0 => EVERYBODY(&slice.processes),
            1 | 2 => &[],
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        };
        let detail = |process: &ObservedProcess| nvmlProcessDetail_v1_t {
            pid: slice::shown(process.pid),
            usedGpuMemory: process.used_bytes,
            gpuInstanceId: NO_INSTANCE,
            computeInstanceId: NO_INSTANCE,
            usedGpuCcProtectedMemory: 0,
        };
        // SAFETY: the list has space for as many entries as it says, by NVML's contract.
        unsafe {
            fill(
                processes,
                &raw mut asked.numProcArrayEntries,
                asked.procArray,
                detail,
            )
        }
    };
    code(fill_in())
}
