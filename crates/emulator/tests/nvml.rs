//! NVML of the emulated devices: identities, memory and processes as the hardware pages tell them, and refusals.

mod common;

use common::{alone, code, cu, get, process, role, start};
use divvy_abi::nvml::*;
use std::ffi::{CStr, CString};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Calls an NVML function and gives its result.
macro_rules! nvml {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: a test passes arguments of the kinds the function takes, or those whose refusal it tests.
        unsafe { (divvy_device::NVML_TABLE.$function)($($argument),*) }
    };
}

/// Calls an NVML function that must succeed and writes one result last, and gives that.
macro_rules! ask {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: all-zero bytes are a value of every number, record and handle.
        let mut value = unsafe { std::mem::zeroed() };
        assert_eq!(nvml!($function($($argument,)* &raw mut value)), NVML_SUCCESS, stringify!($function));
        value
    }};
}

fn device(index: u32) -> nvmlDevice_t {
    ask!(nvmlDeviceGetHandleByIndex_v2(index))
}

type TextFunction = unsafe extern "C-unwind" fn(nvmlDevice_t, *mut c_char, u32) -> nvmlReturn_t;

fn text(function: TextFunction, device: nvmlDevice_t) -> String {
    let mut text = [1; 96];
    // SAFETY: the buffer has 96 bytes.
    assert_eq!(unsafe { function(device, text.as_mut_ptr(), 96) }, NVML_SUCCESS);
    string(&text)
}

fn string(text: &[c_char]) -> String {
    // SAFETY: the function succeeded, so the text ends with a NUL.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    text.to_str().unwrap().to_owned()
}

const T: divvy_abi::nvml::Table = divvy_device::NVML_TABLE;

#[test]
fn the_devices_are_those_of_the_driver() {
    alone(
        "the_devices_are_those_of_the_driver",
        &[("DIVVY_EMULATED", "h100,t4"), ("CUDA_VISIBLE_DEVICES", "1")],
        || {
            assert_eq!(nvml!(nvmlDeviceGetCount_v2(&mut 0)), NVML_ERROR_UNINITIALIZED);
            assert_eq!(nvml!(nvmlShutdown()), NVML_ERROR_UNINITIALIZED);
            assert_eq!(nvml!(nvmlInit_v2()), NVML_SUCCESS);
            let count: u32 = ask!(nvmlDeviceGetCount_v2());
            assert_eq!(count, 2, "NVML does not heed CUDA_VISIBLE_DEVICES");
            let known = divvy_device::devices("h100,t4", &divvy_device::run_directory()).unwrap();
            for (index, facts) in (0..).zip(&known) {
                let handle = device(index);
                assert_eq!(text(T.nvmlDeviceGetName, handle), facts.name());
                let uuid = text(T.nvmlDeviceGetUUID, handle);
                assert_eq!(uuid, facts.uuid.to_string());
                let asked = CString::new(uuid).unwrap();
                let found: nvmlDevice_t = ask!(nvmlDeviceGetHandleByUUID(asked.as_ptr()));
                assert_eq!(found, handle);
                let pci: nvmlPciInfo_t = ask!(nvmlDeviceGetPciInfo_v3(handle));
                assert_eq!((pci.domain, pci.bus), (0xd1d1, index + 1));
                let found: nvmlDevice_t = ask!(nvmlDeviceGetHandleByPciBusId_v2(pci.busId.as_ptr()));
                assert_eq!(found, handle);
                let number: u32 = ask!(nvmlDeviceGetIndex(handle));
                assert_eq!(number, index);
                let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(handle));
                assert_eq!(
                    (memory.total, memory.used, memory.free),
                    (facts.memory_bytes(), 0, facts.memory_bytes())
                );
            }
            let t4 = device(1);
            let generation: u32 = ask!(nvmlDeviceGetMaxPcieLinkGeneration(t4));
            let limit: u32 = ask!(nvmlDeviceGetEnforcedPowerLimit(t4));
            let sm_clock: u32 = ask!(nvmlDeviceGetMaxClockInfo(t4, NVML_CLOCK_SM));
            let cores: u32 = ask!(nvmlDeviceGetNumGpuCores(t4));
            assert_eq!((generation, limit, sm_clock, cores), (3, 70_000, 1590, 2560));
            assert_eq!(nvml!(nvmlShutdown()), NVML_SUCCESS);
            assert_eq!(nvml!(nvmlDeviceGetCount_v2(&mut 0)), NVML_ERROR_UNINITIALIZED);
        },
    );
}

#[test]
fn bad_arguments_get_nvmls_own_codes() {
    alone("bad_arguments_get_nvmls_own_codes", &[], || {
        assert_eq!(nvml!(nvmlInitWithFlags(0)), NVML_SUCCESS);
        let null = std::ptr::null_mut();
        let mut handle = std::ptr::null_mut();
        assert_eq!(
            nvml!(nvmlDeviceGetHandleByIndex_v2(1, &raw mut handle)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(
            nvml!(nvmlDeviceGetHandleByUUID(c"GPU-absent".as_ptr(), &raw mut handle)),
            NVML_ERROR_NOT_FOUND
        );
        assert_eq!(
            nvml!(nvmlDeviceGetHandleByUUID(std::ptr::null(), &raw mut handle)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(
            nvml!(nvmlDeviceGetIndex(null, &mut 0)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let inside = device(0).wrapping_byte_add(8);
        assert_eq!(
            nvml!(nvmlDeviceGetIndex(inside, &mut 0)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let handle = device(0);
        assert_eq!(
            nvml!(nvmlDeviceGetIndex(handle, std::ptr::null_mut())),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let mut short = [7; 4];
        assert_eq!(
            nvml!(nvmlDeviceGetName(handle, short.as_mut_ptr(), 4)),
            NVML_ERROR_INSUFFICIENT_SIZE
        );
        assert_eq!(short, [7; 4]);
        let mut memory = nvmlMemory_v2_t::default();
        assert_eq!(
            nvml!(nvmlDeviceGetMemoryInfo_v2(handle, &raw mut memory)),
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        );
        // A data-centre card has no fan, and no function of a newer NVML is implemented.
        assert_eq!(
            nvml!(nvmlDeviceGetFanSpeed(handle, &mut 0)),
            NVML_ERROR_NOT_SUPPORTED
        );
        let mut table = std::ptr::null();
        let id = [0u8; 16];
        assert_eq!(
            nvml!(nvmlInternalGetExportTable(&raw mut table, id.as_ptr().cast())),
            NVML_ERROR_NOT_SUPPORTED
        );
        // SAFETY: any code may be asked for.
        let said = unsafe { CStr::from_ptr((T.nvmlErrorString)(NVML_ERROR_NOT_SUPPORTED)) };
        assert_eq!(said, c"Not Supported");
    });
}

/// nvmlPciInfo_t grew in its third version: the older functions must not write beyond the structure of older programs.
#[test]
fn older_pci_structures_are_not_overrun() {
    alone("older_pci_structures_are_not_overrun", &[], || {
        assert_eq!(nvml!(nvmlInit()), NVML_SUCCESS);
        for function in [T.nvmlDeviceGetPciInfo, T.nvmlDeviceGetPciInfo_v2] {
            let mut info = nvmlPciInfo_t {
                busId: [1; 32],
                ..nvmlPciInfo_t::default()
            };
            // SAFETY: valid arguments.
            assert_eq!(unsafe { function(device(0), &raw mut info) }, NVML_SUCCESS);
            assert_eq!((info.domain, info.busId), (0xd1d1, [1; 32]));
            assert_eq!(string(&info.busIdLegacy), "D1D1:01:00.0");
        }
    });
}

/// Another process computes; this one has never called CUDA and sees it, in every version of the list.
#[test]
fn memory_and_processes_are_everybodys() {
    const TEST: &str = "memory_and_processes_are_everybodys";
    if role().as_deref() == Some("user") {
        start(0);
        let _held: u64 = get!(cuMemAlloc_v2(64 << 20));
        println!("holding");
        let _closed = std::io::stdin().lines().next();
        return;
    }
    alone(TEST, &[], || {
        let run = divvy_device::run_directory();
        let mut user = process(TEST, "user", run.to_str().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(user.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        assert!(said.any(|line| line.contains("holding")));
        assert_eq!(nvml!(nvmlInit_v2()), NVML_SUCCESS);
        let handle = device(0);
        let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(handle));
        assert!(memory.used >= 64 << 20, "{memory:?}");
        assert_eq!(memory.total - memory.free, memory.used);
        let mut count = 0;
        assert_eq!(
            nvml!(nvmlDeviceGetComputeRunningProcesses_v3(
                handle,
                &raw mut count,
                std::ptr::null_mut()
            )),
            NVML_ERROR_INSUFFICIENT_SIZE
        );
        assert_eq!(count, 1);
        let mut newest = [nvmlProcessInfo_v2_t::default(); 2];
        count = 2;
        assert_eq!(
            nvml!(nvmlDeviceGetComputeRunningProcesses_v3(
                handle,
                &raw mut count,
                newest.as_mut_ptr()
            )),
            NVML_SUCCESS
        );
        assert_eq!(
            (count, newest[0].pid, newest[0].usedGpuMemory),
            (1, user.id(), memory.used)
        );
        assert_eq!(newest[0].gpuInstanceId, u32::MAX);
        let mut oldest = [nvmlProcessInfo_v1_t::default(); 2];
        count = 2;
        assert_eq!(
            nvml!(nvmlDeviceGetComputeRunningProcesses(
                handle,
                &raw mut count,
                oldest.as_mut_ptr()
            )),
            NVML_SUCCESS
        );
        assert_eq!(
            (count, oldest[0].pid, oldest[0].usedGpuMemory),
            (1, user.id(), memory.used)
        );
        assert_eq!(oldest[1].pid, 0);
        let mut entries = [nvmlProcessDetail_v1_t::default(); 1];
        let mut list = nvmlProcessDetailList_t {
            version: nvmlProcessDetailList_v1,
            mode: 0,
            numProcArrayEntries: 1,
            procArray: entries.as_mut_ptr(),
        };
        assert_eq!(
            nvml!(nvmlDeviceGetRunningProcessDetailList(handle, &raw mut list)),
            NVML_SUCCESS
        );
        assert_eq!((list.numProcArrayEntries, entries[0].pid), (1, user.id()));
        drop(user.stdin.take());
        assert!(user.wait().unwrap().success());
        let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(handle));
        assert_eq!(memory.used, 0);
    });
}

#[test]
fn utilisation_is_what_the_engine_did() {
    let settings = [("DIVVY_EMULATED", "h100,timing=model")];
    alone("utilisation_is_what_the_engine_did", &settings, || {
        start(0);
        assert_eq!(nvml!(nvmlInit_v2()), NVML_SUCCESS);
        let idle: nvmlUtilization_t = ask!(nvmlDeviceGetUtilizationRates(device(0)));
        assert_eq!(idle.gpu, 0);
        let mut count = 0;
        let found = nvml!(nvmlDeviceGetProcessUtilization(
            device(0),
            std::ptr::null_mut(),
            &raw mut count,
            0
        ));
        assert_eq!((found, count), (NVML_ERROR_NOT_FOUND, 0));
        // More than a second of kernels, and a look while they run.
        let spin = common::spin::spin();
        for _ in 0..130 {
            common::spin::go(spin, 10 * common::spin::MS, std::ptr::null_mut());
        }
        common::spin::wait_until(|usage| usage.busy_ns > 1200 * common::spin::MS);
        let busy: nvmlUtilization_t = ask!(nvmlDeviceGetUtilizationRates(device(0)));
        assert!(busy.gpu >= 98, "{} %", busy.gpu);
        let found = nvml!(nvmlDeviceGetProcessUtilization(
            device(0),
            std::ptr::null_mut(),
            &raw mut count,
            0
        ));
        assert_eq!((found, count), (NVML_ERROR_INSUFFICIENT_SIZE, 1));
        let mut sample = nvmlProcessUtilizationSample_t::default();
        assert_eq!(
            nvml!(nvmlDeviceGetProcessUtilization(
                device(0),
                &raw mut sample,
                &raw mut count,
                0
            )),
            NVML_SUCCESS
        );
        assert_eq!(sample.pid, std::process::id());
        assert!(sample.smUtil >= 98, "{sample:?}");
        let mut entry = nvmlProcessUtilizationInfo_v1_t::default();
        let mut info = nvmlProcessesUtilizationInfo_t {
            version: nvmlProcessesUtilizationInfo_v1,
            processSamplesCount: 1,
            lastSeenTimeStamp: 0,
            procUtilArray: &raw mut entry,
        };
        assert_eq!(
            nvml!(nvmlDeviceGetProcessesUtilizationInfo(device(0), &raw mut info)),
            NVML_SUCCESS
        );
        assert_eq!((entry.pid, info.processSamplesCount), (std::process::id(), 1));
        cu!(cuCtxSynchronize());
    });
}
