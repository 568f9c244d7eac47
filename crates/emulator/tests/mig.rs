//! MIG on the emulated device: NVML's calls and refusals, and what a CUDA program sees of an instance.

mod common;

use common::{
    VECTOR_ADD, alone, code, cu, download, function, get, launch, memory_info, module, param, process, role,
    start, upload,
};
use divvy_abi::nvml::*;
use divvy_abi::{
    CUDA_ERROR_DEVICE_UNAVAILABLE, CUDA_ERROR_NO_DEVICE, CUDA_ERROR_OUT_OF_MEMORY, CUcontext, CUdevice,
    CUdevice_attribute, CUuuid,
};
use std::ffi::{CStr, CString};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::ptr::null_mut;

const MIB: u64 = 1 << 20;

macro_rules! nvml {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: a test passes arguments of the kinds the function takes, or those whose refusal it tests.
        unsafe { (divvy_device::NVML_TABLE.$function)($($argument),*) }
    };
}

macro_rules! ask {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: all-zero bytes are a value of every number, record and handle.
        let mut value = unsafe { std::mem::zeroed() };
        assert_eq!(nvml!($function($($argument,)* &raw mut value)), NVML_SUCCESS, stringify!($function));
        value
    }};
}

fn gpu(index: u32) -> nvmlDevice_t {
    ask!(nvmlDeviceGetHandleByIndex_v2(index))
}

/// GPU 0 in MIG mode.
fn divided() -> nvmlDevice_t {
    assert_eq!(nvml!(nvmlInit_v2()), NVML_SUCCESS);
    let gpu = gpu(0);
    let activated: nvmlReturn_t = ask!(nvmlDeviceSetMigMode(gpu, 1));
    assert_eq!(activated, NVML_SUCCESS);
    gpu
}

/// An instance at a place, filled by one compute instance; both handles.
fn instance(
    gpu: nvmlDevice_t,
    profile: u32,
    start: u32,
    size: u32,
) -> (nvmlGpuInstance_t, nvmlComputeInstance_t) {
    let place = nvmlGpuInstancePlacement_t { start, size };
    let made: nvmlGpuInstance_t = ask!(nvmlDeviceCreateGpuInstanceWithPlacement(
        gpu,
        profile,
        &raw const place
    ));
    let whole = (0..9).rev().find_map(|number| {
        let mut info = nvmlComputeInstanceProfileInfo_t::default();
        let told = nvml!(nvmlGpuInstanceGetComputeInstanceProfileInfo(
            made,
            number,
            0,
            &raw mut info
        ));
        (told == NVML_SUCCESS).then_some(info.id)
    });
    (
        made,
        ask!(nvmlGpuInstanceCreateComputeInstance(
            made,
            whole.expect("a whole one")
        )),
    )
}

fn text(device: nvmlDevice_t) -> String {
    let mut text = [0; 96];
    assert_eq!(
        nvml!(nvmlDeviceGetUUID(device, text.as_mut_ptr(), 96)),
        NVML_SUCCESS
    );
    // SAFETY: the function succeeded, so the text ends with a NUL.
    unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_str()
        .unwrap()
        .to_owned()
}

#[test]
fn the_calls_answer_in_nvmls_order_and_with_its_codes() {
    const TEST: &str = "the_calls_answer_in_nvmls_order_and_with_its_codes";
    alone(TEST, &[("DIVVY_EMULATED", "h100,l4")], || {
        assert_eq!(nvml!(nvmlInit_v2()), NVML_SUCCESS);
        let (gpu, l4) = (gpu(0), gpu(1));
        let (mut mode, mut pending, mut activated) = (7, 7, NVML_SUCCESS);
        assert_eq!(
            nvml!(nvmlDeviceGetMigMode(l4, &raw mut mode, &raw mut pending)),
            NVML_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            nvml!(nvmlDeviceSetMigMode(l4, 1, &raw mut activated)),
            NVML_ERROR_NOT_SUPPORTED
        );
        let count: u32 = ask!(nvmlDeviceGetMaxMigDeviceCount(gpu));
        assert_eq!(count, 0, "while the mode is off");
        let mut made: nvmlGpuInstance_t = null_mut();
        assert_eq!(
            nvml!(nvmlDeviceCreateGpuInstance(gpu, 19, &raw mut made)),
            NVML_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            nvml!(nvmlDeviceSetMigMode(gpu, 2, &raw mut activated)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let gpu = divided();
        assert_eq!(
            nvml!(nvmlDeviceGetMigMode(gpu, &raw mut mode, &raw mut pending)),
            NVML_SUCCESS
        );
        assert_eq!((mode, pending), (1, 1));
        let count: u32 = ask!(nvmlDeviceGetMaxMigDeviceCount(gpu));
        assert_eq!(count, 7);
        // Profiles, by NVML's number and by id; numbers of other products are not supported.
        let info: nvmlGpuInstanceProfileInfo_t = ask!(nvmlDeviceGetGpuInstanceProfileInfo(gpu, 9));
        assert_eq!(
            (info.id, info.multiprocessorCount, info.memorySizeMB),
            (15, 26, 20_091)
        );
        let mut info = nvmlGpuInstanceProfileInfo_t::default();
        assert_eq!(
            nvml!(nvmlDeviceGetGpuInstanceProfileInfo(gpu, 5, &raw mut info)),
            NVML_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            nvml!(nvmlDeviceGetGpuInstanceProfileInfo(gpu, 99, &raw mut info)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let mut named = nvmlGpuInstanceProfileInfo_v2_t {
            version: nvmlGpuInstanceProfileInfo_v2,
            ..nvmlGpuInstanceProfileInfo_v2_t::default()
        };
        assert_eq!(
            nvml!(nvmlDeviceGetGpuInstanceProfileInfoByIdV(gpu, 9, &raw mut named)),
            NVML_SUCCESS
        );
        // SAFETY: the library ends names with a NUL.
        let name = unsafe { CStr::from_ptr(named.name.as_ptr()) };
        assert_eq!((named.id, named.copyEngineCount, name), (9, 3, c"MIG 3g.40gb"));
        named.version = 1;
        assert_eq!(
            nvml!(nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 0, &raw mut named)),
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        );
        // Placements: their number first, then the list.
        let mut count = 0;
        assert_eq!(
            nvml!(nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                gpu,
                14,
                null_mut(),
                &raw mut count
            )),
            NVML_SUCCESS
        );
        let mut places = [nvmlGpuInstancePlacement_t::default(); 3];
        assert_eq!(
            nvml!(nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                gpu,
                14,
                places.as_mut_ptr(),
                &raw mut count
            )),
            NVML_SUCCESS
        );
        assert_eq!(
            places.map(|place| (place.start, place.size)),
            [(0, 2), (2, 2), (4, 2)]
        );
        // Wrong and overlapping requests.
        let wrong = |profile: u32, start: u32, size: u32| {
            let place = nvmlGpuInstancePlacement_t { start, size };
            let mut made: nvmlGpuInstance_t = null_mut();
            nvml!(nvmlDeviceCreateGpuInstanceWithPlacement(
                gpu,
                profile,
                &raw const place,
                &raw mut made
            ))
        };
        assert_eq!(wrong(77, 0, 1), NVML_ERROR_INVALID_ARGUMENT);
        assert_eq!(wrong(9, 2, 4), NVML_ERROR_INVALID_ARGUMENT);
        assert_eq!(wrong(9, 4, 3), NVML_ERROR_INVALID_ARGUMENT);
        let (three, inside) = instance(gpu, 9, 4, 4);
        assert_eq!(wrong(19, 5, 1), NVML_ERROR_INSUFFICIENT_RESOURCES);
        assert_eq!(wrong(0, 0, 8), NVML_ERROR_INSUFFICIENT_RESOURCES);
        let left: u32 = ask!(nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 19));
        assert_eq!(left, 4);
        let info: nvmlGpuInstanceInfo_t = ask!(nvmlGpuInstanceGetInfo(three));
        assert_eq!(
            (info.profileId, info.placement.start, info.placement.size),
            (9, 4, 4)
        );
        let same: nvmlGpuInstance_t = ask!(nvmlDeviceGetGpuInstanceById(gpu, info.id));
        assert_eq!(same, three);
        assert_eq!(
            nvml!(nvmlDeviceGetGpuInstanceById(gpu, 99, &raw mut made)),
            NVML_ERROR_NOT_FOUND
        );
        // Inside before outside, and the mode last.
        assert_eq!(nvml!(nvmlGpuInstanceDestroy(three)), NVML_ERROR_IN_USE);
        let activated: nvmlReturn_t = ask!(nvmlDeviceSetMigMode(gpu, 0));
        assert_eq!(activated, NVML_ERROR_IN_USE);
        let mut other: nvmlComputeInstance_t = null_mut();
        assert_eq!(
            nvml!(nvmlGpuInstanceCreateComputeInstance(three, 0, &raw mut other)),
            NVML_ERROR_INSUFFICIENT_RESOURCES
        );
        assert_eq!(
            nvml!(nvmlGpuInstanceCreateComputeInstance(three, 4, &raw mut other)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(nvml!(nvmlComputeInstanceDestroy(inside)), NVML_SUCCESS);
        assert_eq!(
            nvml!(nvmlComputeInstanceDestroy(inside)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(nvml!(nvmlGpuInstanceDestroy(three)), NVML_SUCCESS);
        assert_eq!(nvml!(nvmlGpuInstanceDestroy(three)), NVML_ERROR_INVALID_ARGUMENT);
        assert_eq!(
            nvml!(nvmlGpuInstanceDestroy(null_mut())),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let activated: nvmlReturn_t = ask!(nvmlDeviceSetMigMode(gpu, 0));
        assert_eq!(activated, NVML_SUCCESS);
    });
}

#[test]
fn mig_devices_have_handles_of_their_own() {
    const TEST: &str = "mig_devices_have_handles_of_their_own";
    alone(TEST, &[], || {
        let gpu = divided();
        let mut none: nvmlDevice_t = null_mut();
        assert_eq!(
            nvml!(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &raw mut none)),
            NVML_ERROR_NOT_FOUND
        );
        assert_eq!(
            nvml!(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 7, &raw mut none)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        // A 3g in two parts, and a 1g.
        let place = nvmlGpuInstancePlacement_t { start: 0, size: 4 };
        let three: nvmlGpuInstance_t =
            ask!(nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 9, &raw const place));
        let _one: nvmlComputeInstance_t = ask!(nvmlGpuInstanceCreateComputeInstance(three, 0));
        let two: nvmlComputeInstance_t = ask!(nvmlGpuInstanceCreateComputeInstance(three, 0));
        let (_, small) = instance(gpu, 19, 6, 1);
        let info: nvmlComputeInstanceInfo_t = ask!(nvmlComputeInstanceGetInfo_v2(two));
        assert_eq!(
            (info.id, info.profileId, info.placement.start, info.placement.size),
            (1, 0, 1, 1)
        );
        let devices: Vec<nvmlDevice_t> = (0..3)
            .map(|at| ask!(nvmlDeviceGetMigDeviceHandleByIndex(gpu, at)))
            .collect();
        let names = devices.iter().map(|device| {
            let mut name = [0; 96];
            assert_eq!(
                nvml!(nvmlDeviceGetName(*device, name.as_mut_ptr(), 96)),
                NVML_SUCCESS
            );
            // SAFETY: the function succeeded, so the text ends with a NUL.
            unsafe { CStr::from_ptr(name.as_ptr()) }
                .to_str()
                .unwrap()
                .to_owned()
        });
        let whole = "NVIDIA H100 80GB HBM3 MIG";
        let expected = ["1c.3g.40gb", "1c.3g.40gb", "1g.10gb"].map(|name| format!("{whole} {name}"));
        assert_eq!(names.collect::<Vec<_>>(), expected);
        for (index, device) in (0..).zip(&devices) {
            let is_mig: u32 = ask!(nvmlDeviceIsMigDeviceHandle(*device));
            let own: u32 = ask!(nvmlDeviceGetIndex(*device));
            let parent: nvmlDevice_t = ask!(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(*device));
            assert_eq!((is_mig, own, parent), (1, index, gpu));
            let uuid = text(*device);
            assert!(uuid.starts_with("MIG-"), "{uuid}");
            let asked = CString::new(uuid).unwrap();
            let found: nvmlDevice_t = ask!(nvmlDeviceGetHandleByUUID(asked.as_ptr()));
            assert_eq!(found, *device);
            let mut power = 0;
            assert_eq!(
                nvml!(nvmlDeviceGetPowerUsage(*device, &raw mut power)),
                NVML_ERROR_NOT_SUPPORTED
            );
        }
        let ids = devices.iter().map(|device| -> (u32, u32) {
            (
                ask!(nvmlDeviceGetGpuInstanceId(*device)),
                ask!(nvmlDeviceGetComputeInstanceId(*device)),
            )
        });
        let ids: Vec<_> = ids.collect();
        assert_eq!(ids[0].0, ids[1].0);
        assert_eq!((ids[0].1, ids[1].1, ids[2].1), (0, 1, 0));
        assert_eq!(
            nvml!(nvmlDeviceGetGpuInstanceId(gpu, &mut 0)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let part: nvmlDeviceAttributes_t = ask!(nvmlDeviceGetAttributes_v2(devices[0]));
        assert_eq!((part.multiprocessorCount, part.memorySizeMB), (16, 40_448));
        assert_eq!(
            (part.gpuInstanceSliceCount, part.computeInstanceSliceCount),
            (3, 1)
        );
        let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(devices[2]));
        assert_eq!((memory.total, memory.used), (9984 * MIB, 0));
        // A handle dies with its instance, and serves again when the same one is made again.
        assert_eq!(nvml!(nvmlComputeInstanceDestroy(small)), NVML_SUCCESS);
        assert_eq!(
            nvml!(nvmlDeviceIsMigDeviceHandle(devices[2], &mut 0)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(
            nvml!(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 2, &raw mut none)),
            NVML_ERROR_NOT_FOUND
        );
    });
}

/// A process that does something in an instance and then waits; what it says after `holding`.
struct User {
    child: Child,
    said: std::io::Lines<BufReader<ChildStdout>>,
}

impl User {
    fn start(test: &str, role: &str, visible: Option<&str>) -> User {
        let run = divvy_device::run_directory();
        let mut command = process(test, role, run.to_str().unwrap());
        if let Some(visible) = visible {
            command.env("CUDA_VISIBLE_DEVICES", visible);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut user = User { child, said };
        user.wait_for("holding");
        user
    }

    fn wait_for(&mut self, word: &str) {
        let found = self
            .said
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains(word));
        assert!(found, "{:?}", self.child.wait());
    }

    fn go_on(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        let rest: Vec<String> = self.said.by_ref().map_while(Result::ok).collect();
        assert!(self.child.wait().unwrap().success(), "{rest:?}");
    }
}

fn attribute(number: u32) -> i32 {
    get!(cuDeviceGetAttribute(CUdevice_attribute(number), 0))
}

/// Computes in an instance of 9984 MiB and 16 multiprocessors, and fills it.
fn computes_in_a_small_one() {
    start(0);
    let count: i32 = get!(cuDeviceGetCount());
    assert_eq!((count, attribute(16)), (1, 16));
    let mut name = [0; 96];
    cu!(cuDeviceGetName(name.as_mut_ptr(), 96, 0));
    // SAFETY: the function succeeded, so the text ends with a NUL.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    assert_eq!(name, c"NVIDIA H100 80GB HBM3 MIG 1g.10gb");
    let total: usize = get!(cuDeviceTotalMem_v2(0));
    assert_eq!((total as u64, memory_info().0), (9984 * MIB, total));
    let own: CUuuid = get!(cuDeviceGetUuid_v2(0));
    let gpus: CUuuid = get!(cuDeviceGetUuid(0));
    let bytes = own.bytes.map(|byte| byte.to_ne_bytes()[0]);
    let shown = divvy_device::Uuid(bytes).of_mig_device();
    assert_eq!(Ok(shown), std::env::var("CUDA_VISIBLE_DEVICES"));
    assert_ne!(own.bytes, gpus.bytes, "the first version tells the GPU's");
    let n = 1000_u32;
    let values: Vec<f32> = (0..n).map(|value| value as f32).collect();
    let (a, b, c) = (upload(&values), upload(&values), upload(&vec![0_f32; n as usize]));
    let add = function(module(VECTOR_ADD), c"add");
    let mut params = [param(&a), param(&b), param(&c), param(&n)];
    assert_eq!(
        launch(add, n.div_ceil(128), 128, null_mut(), &mut params),
        divvy_abi::CUDA_SUCCESS
    );
    let sums = download::<f32>(c, n as usize);
    assert!(sums.iter().zip(&values).all(|(sum, value)| *sum == 2.0 * value));
    let mut pointer = 0;
    assert_eq!(
        code!(cuMemAlloc_v2(&raw mut pointer, 9984 << 20)),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    cu!(cuMemAlloc_v2(&raw mut pointer, 9000 << 20));
    println!("holding");
    let _closed = std::io::stdin().lines().next();
}

#[test]
fn a_program_in_an_instance_has_its_memory_and_the_instance_stays() {
    const TEST: &str = "a_program_in_an_instance_has_its_memory_and_the_instance_stays";
    if role().as_deref() == Some("user") {
        return computes_in_a_small_one();
    }
    alone(TEST, &[], || {
        let gpu = divided();
        let (small, inside) = instance(gpu, 19, 6, 1);
        let (_, other) = instance(gpu, 9, 0, 4);
        // Behind the 3g in NVML's order.
        let device: nvmlDevice_t = ask!(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1));
        let user = User::start(TEST, "user", Some(&text(device)));
        let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(device));
        assert!(
            memory.used >= 9000 * MIB && memory.total == 9984 * MIB,
            "{memory:?}"
        );
        let beside: nvmlDevice_t = ask!(nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0));
        let untouched: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(beside));
        assert_eq!(untouched.used, 0, "instances share no memory");
        let all: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(gpu));
        assert_eq!((all.total, all.used), (81_559 * MIB, memory.used));
        let running = |device: nvmlDevice_t| -> Vec<(u32, u32, u32)> {
            let mut infos = [nvmlProcessInfo_v2_t::default(); 4];
            let mut count = 4;
            let told = nvml!(nvmlDeviceGetComputeRunningProcesses_v3(
                device,
                &raw mut count,
                infos.as_mut_ptr()
            ));
            assert_eq!(told, NVML_SUCCESS);
            let infos = infos[..count as usize].iter();
            infos
                .map(|info| (info.pid, info.gpuInstanceId, info.computeInstanceId))
                .collect()
        };
        let id: u32 = ask!(nvmlDeviceGetGpuInstanceId(device));
        assert_eq!(running(device), [(user.child.id(), id, 0)]);
        assert_eq!(running(gpu), running(device));
        assert_eq!(running(beside), []);
        assert_eq!(nvml!(nvmlComputeInstanceDestroy(inside)), NVML_ERROR_IN_USE);
        assert_eq!(nvml!(nvmlGpuInstanceDestroy(small)), NVML_ERROR_IN_USE);
        assert_eq!(
            nvml!(nvmlComputeInstanceDestroy(other)),
            NVML_SUCCESS,
            "no process runs there"
        );
        user.end();
        assert_eq!(nvml!(nvmlComputeInstanceDestroy(inside)), NVML_SUCCESS);
        assert_eq!(nvml!(nvmlGpuInstanceDestroy(small)), NVML_SUCCESS);
    });
}

#[test]
fn two_compute_instances_share_the_memory_of_theirs() {
    const TEST: &str = "two_compute_instances_share_the_memory_of_theirs";
    if role().as_deref() == Some("user") {
        start(0);
        assert_eq!(attribute(16), 16);
        let _held: u64 = get!(cuMemAlloc_v2(30 << 30));
        println!("holding");
        let _closed = std::io::stdin().lines().next();
        return;
    }
    if role().as_deref() == Some("second") {
        start(0);
        let (free, total) = memory_info();
        assert_eq!(total as u64, 40_448 * MIB);
        assert!(
            (free as u64) <= 40_448 * MIB - (30 << 30),
            "what the other has is missing"
        );
        println!("holding");
        return;
    }
    alone(TEST, &[], || {
        let gpu = divided();
        let place = nvmlGpuInstancePlacement_t { start: 0, size: 4 };
        let three: nvmlGpuInstance_t =
            ask!(nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 9, &raw const place));
        for _ in 0..2 {
            let _made: nvmlComputeInstance_t = ask!(nvmlGpuInstanceCreateComputeInstance(three, 0));
        }
        let devices: Vec<nvmlDevice_t> = (0..2)
            .map(|at| ask!(nvmlDeviceGetMigDeviceHandleByIndex(gpu, at)))
            .collect();
        let id: u32 = ask!(nvmlDeviceGetGpuInstanceId(devices[0]));
        let uuid = {
            let mut text = [0; 96];
            assert_eq!(nvml!(nvmlDeviceGetUUID(gpu, text.as_mut_ptr(), 96)), NVML_SUCCESS);
            // SAFETY: the function succeeded, so the text ends with a NUL.
            unsafe { CStr::from_ptr(text.as_ptr()) }
                .to_str()
                .unwrap()
                .to_owned()
        };
        let first = User::start(TEST, "user", Some(&format!("MIG-{uuid}/{id}/1")));
        let second = User::start(TEST, "second", Some(&text(devices[0])));
        second.end();
        let alive = |device: nvmlDevice_t| -> u32 {
            let mut count = 0;
            let told = nvml!(nvmlDeviceGetComputeRunningProcesses_v3(
                device,
                &raw mut count,
                null_mut()
            ));
            assert!(told == NVML_SUCCESS || told == NVML_ERROR_INSUFFICIENT_SIZE);
            count
        };
        assert_eq!(
            (alive(devices[0]), alive(devices[1])),
            (0, 1),
            "who runs where is told apart"
        );
        first.end();
    });
}

#[test]
fn what_changed_since_cu_init_is_refused_and_the_whole_device_stays_whole_in_use() {
    const TEST: &str = "what_changed_since_cu_init_is_refused_and_the_whole_device_stays_whole_in_use";
    if role().as_deref() == Some("early") {
        cu!(cuInit(0));
        println!("holding");
        let _gone_on = std::io::stdin().lines().next();
        let mut context: CUcontext = null_mut();
        let refused = code!(cuDevicePrimaryCtxRetain(&raw mut context, 0 as CUdevice));
        assert_eq!(refused, CUDA_ERROR_DEVICE_UNAVAILABLE);
        println!("refused");
        let _closed = std::io::stdin().lines().next();
        return;
    }
    if role().as_deref() == Some("whole") {
        start(0);
        println!("holding");
        let _closed = std::io::stdin().lines().next();
        return;
    }
    alone(TEST, &[], || {
        assert_eq!(nvml!(nvmlInit_v2()), NVML_SUCCESS);
        let gpu = gpu(0);
        let whole = User::start(TEST, "whole", None);
        let activated: nvmlReturn_t = ask!(nvmlDeviceSetMigMode(gpu, 1));
        let (mut mode, mut pending) = (7, 7);
        assert_eq!(
            nvml!(nvmlDeviceGetMigMode(gpu, &raw mut mode, &raw mut pending)),
            NVML_SUCCESS
        );
        assert_eq!((activated, mode, pending), (NVML_ERROR_IN_USE, 0, 1));
        whole.end();
        let mut early = User::start(TEST, "early", None);
        divided();
        early.go_on();
        early.wait_for("refused");
        early.end();
        assert_eq!(code!(cuInit(0)), CUDA_ERROR_NO_DEVICE, "no instance is no device");
        instance(gpu, 19, 0, 1);
        cu!(cuInit(0));
        let count: i32 = get!(cuDeviceGetCount());
        let total: usize = get!(cuDeviceTotalMem_v2(0));
        assert_eq!(
            (count, total as u64),
            (1, 9984 * MIB),
            "the first instance is seen unasked"
        );
    });
}
