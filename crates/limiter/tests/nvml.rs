//! The slice as NVML shows it, over a small NVML below: two devices, of which a slice may have both, one or none.

mod support;

use std::ffi::{CStr, CString};

use divvy_abi::nvml::*;
use divvy_ledger::attach::connect;
use divvy_ledger::{ComputeTerms, Terms};
use divvy_limiter::nvml::{TABLE, below};
use support::Slice;

const GIB: u64 = 1 << 30;
const FIRST: [u8; 16] = [0x11; 16];
const SECOND: [u8; 16] = [0x22; 16];
/// Device utilisation below, in percent.
const BUSY: u32 = 60;
/// The use of the device by a process outside the slice.
const UNMANAGED: nvmlProcessUtilizationSample_t = sample(1, 7, 50);

const fn sample(pid: u32, time: u64, percent: u32) -> nvmlProcessUtilizationSample_t {
    nvmlProcessUtilizationSample_t {
        pid,
        timeStamp: time,
        smUtil: percent,
        memUtil: percent / 2,
        encUtil: 0,
        decUtil: 0,
    }
}

/// Whether the NVML below tells processes apart.
static TELLS_PROCESSES_APART: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);

/// Handles below: the address is the number.
fn handle(index: u32) -> nvmlDevice_t {
    (0x1000 * (index as usize + 1)) as nvmlDevice_t
}

fn index_of(device: nvmlDevice_t) -> Option<u32> {
    (0..2).find(|index| handle(*index) == device)
}

fn uuid_text(index: u32) -> String {
    let digit = index + 1;
    let group = |length: usize| digit.to_string().repeat(length);
    format!(
        "GPU-{}-{}-{}-{}-{}",
        group(8),
        group(4),
        group(4),
        group(4),
        group(12)
    )
}

/// Functions below: C names, bodies that see raw arguments.
macro_rules! fake {
    ($(fn $name:ident($($argument:ident: $of:ty),*) $body:block)*) => {$(
        #[allow(unused_unsafe, reason = "not every body needs it")]
        unsafe extern "C-unwind" fn $name($($argument: $of),*) -> nvmlReturn_t {
            // SAFETY: the tests give valid out-parameters.
            let body = || unsafe { $body };
            body()
        }
    )*};
}

fake! {
    fn init() { NVML_SUCCESS }
    fn init_with_flags(_flags: u32) { NVML_SUCCESS }
    fn count(out: *mut u32) {
        if out.is_null() {
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        out.write(2);
        NVML_SUCCESS
    }
    fn by_index(index: u32, out: *mut nvmlDevice_t) {
        out.write(handle(index));
        if index < 2 { NVML_SUCCESS } else { NVML_ERROR_INVALID_ARGUMENT }
    }
    fn by_uuid(uuid: *const c_char, out: *mut nvmlDevice_t) {
        let asked = CStr::from_ptr(uuid).to_str().expect("ASCII");
        let Some(found) = (0..2).find(|index| uuid_text(*index) == asked) else {
            return NVML_ERROR_NOT_FOUND;
        };
        out.write(handle(found));
        NVML_SUCCESS
    }
    fn index(device: nvmlDevice_t, out: *mut u32) {
        let Some(index) = index_of(device) else { return NVML_ERROR_INVALID_ARGUMENT };
        out.write(index);
        NVML_SUCCESS
    }
    fn uuid(device: nvmlDevice_t, out: *mut c_char, room: u32) {
        let text = CString::new(uuid_text(index_of(device).expect("a handle of ours"))).expect("no NUL");
        let bytes = text.as_bytes_with_nul();
        assert!(bytes.len() <= room as usize);
        core::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len());
        NVML_SUCCESS
    }
    fn memory(device: nvmlDevice_t, out: *mut nvmlMemory_t) {
        if index_of(device).is_none() {
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        out.write(nvmlMemory_t { total: 16 * GIB, free: 3 * GIB, used: 13 * GIB });
        NVML_SUCCESS
    }
    fn bar1(_device: nvmlDevice_t, out: *mut nvmlBAR1Memory_t) {
        out.write(nvmlBAR1Memory_t { bar1Total: 32 * GIB, bar1Free: 24 * GIB, bar1Used: 8 * GIB });
        NVML_SUCCESS
    }
    fn rates(_device: nvmlDevice_t, out: *mut nvmlUtilization_t) {
        out.write(nvmlUtilization_t { gpu: BUSY, memory: BUSY / 2 });
        NVML_SUCCESS
    }
    fn process_rates(
        _device: nvmlDevice_t,
        out: *mut nvmlProcessUtilizationSample_t,
        count: *mut u32,
        _since: u64
    ) {
        if !TELLS_PROCESSES_APART.load(std::sync::atomic::Ordering::Relaxed) {
            return NVML_ERROR_NOT_SUPPORTED;
        }
        let own = std::process::id();
        let samples = [sample(own, 5, 99), UNMANAGED, sample(own, 6, 10)];
        let room = count.replace(3);
        if out.is_null() || room < 3 {
            return NVML_ERROR_INSUFFICIENT_SIZE;
        }
        core::ptr::copy_nonoverlapping(samples.as_ptr(), out, 3);
        NVML_SUCCESS
    }
}

const BELOW: Table = Table {
    nvmlInit_v2: init,
    nvmlInitWithFlags: init_with_flags,
    nvmlShutdown: init,
    nvmlDeviceGetCount_v2: count,
    nvmlDeviceGetHandleByIndex_v2: by_index,
    nvmlDeviceGetHandleByUUID: by_uuid,
    nvmlDeviceGetIndex: index,
    nvmlDeviceGetUUID: uuid,
    nvmlDeviceGetMemoryInfo: memory,
    nvmlDeviceGetBAR1MemoryInfo: bar1,
    nvmlDeviceGetUtilizationRates: rates,
    nvmlDeviceGetProcessUtilization: process_rates,
    ..Table::UNSUPPORTED
};

/// Runs a test's body in a process of its own: a process has one NVML below, and one slice or none, for life.
fn alone(name: &str, body: impl FnOnce()) {
    const CHILD: &str = "DIVVY_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        below::stand_on(&BELOW);
        return body();
    }
    let output = divvy_own_process::command(name)
        .env(CHILD, "1")
        .env_remove("DIVVY_SLICE")
        .output()
        .expect("the child starts");
    divvy_own_process::assert_passed(name, &output);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the limiter's own setting, in a process of the test's"
)]
fn name_slice(socket: &std::path::Path) {
    // SAFETY: no other thread of this process reads the environment now: a page server's never does.
    unsafe { std::env::set_var("DIVVY_SLICE", socket) };
}

/// Declares that this process is in `slice`. It runs before the limiter first reads its environment, and while no other
/// thread reads it.
fn enter(slice: &Slice) {
    name_slice(&slice.socket);
    // SAFETY: no arguments.
    assert_eq!(unsafe { (TABLE.nvmlInit_v2)() }, NVML_SUCCESS);
}

/// Calls a function that must succeed and writes one result last, and returns that result.
macro_rules! ask {
    ($function:ident($($argument:expr),*)) => {{
        // SAFETY: all-zero bytes are a value of every number, record and handle, and the arguments are of their kinds.
        let mut value = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let answer = unsafe { (TABLE.$function)($($argument,)* &raw mut value) };
        assert_eq!(answer, NVML_SUCCESS, stringify!($function));
        value
    }};
}

/// Calls a function and returns its result.
macro_rules! code {
    ($function:ident($($argument:expr),*)) => {
        // SAFETY: arguments of the function's kinds, or those whose refusal is tested.
        unsafe { (TABLE.$function)($($argument),*) }
    };
}

macro_rules! echoes {
    ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
        trait Echo {
            fn of(number: usize) -> Self;
            fn number(self) -> usize;
        }
        impl Echo for nvmlReturn_t {
            fn of(number: usize) -> Self {
                nvmlReturn_t(number as u32)
            }
            fn number(self) -> usize {
                self.0 as usize
            }
        }
        impl Echo for *const c_char {
            fn of(number: usize) -> Self {
                number as *const c_char
            }
            fn number(self) -> usize {
                self as usize
            }
        }
        #[allow(non_snake_case)]
        mod echo {
            use super::*;
            $(
                pub unsafe extern "C-unwind" fn $name($(_: $of),*) -> $result {
                    <$result as Echo>::of(1000 + Symbol::$name.index())
                }
            )*
        }
        const ECHOES: Table = Table { $($name: echo::$name),* };
        /// Calls every function with zeros, and returns each result.
        fn call_all() -> Vec<usize> {
            // SAFETY: zeros are values of every parameter, and the functions below look at none.
            vec![$(unsafe { (TABLE.$name)($(std::mem::zeroed::<$of>()),*) }.number()),*]
        }
    };
}

divvy_abi::nvml_functions! { [echoes] }

#[test]
fn outside_a_slice_every_function_is_the_one_below() {
    alone("outside_a_slice_every_function_is_the_one_below", || {
        below::stand_on(&ECHOES);
        let expected: Vec<usize> = (1000..1000 + Symbol::COUNT).collect();
        assert_eq!(call_all(), expected);
    });
}

#[test]
fn a_slice_shows_its_devices_in_its_own_order() {
    alone("a_slice_shows_its_devices_in_its_own_order", || {
        let slice = Slice::with(&[(2 * GIB, SECOND), (GIB, FIRST)], Terms::default());
        enter(&slice);
        let count: u32 = ask!(nvmlDeviceGetCount_v2());
        assert_eq!(count, 2);
        let devices: [nvmlDevice_t; 2] = [0, 1].map(|index| ask!(nvmlDeviceGetHandleByIndex_v2(index)));
        assert_eq!(devices, [handle(1), handle(0)]);
        let places: [u32; 2] = devices.map(|device| ask!(nvmlDeviceGetIndex(device)));
        assert_eq!(places, [0, 1]);
        let totals = devices.map(|device| {
            let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(device));
            memory.total
        });
        assert_eq!(totals, [2 * GIB, GIB]);
    });
}

#[test]
fn what_is_not_the_slices_is_not_there() {
    alone("what_is_not_the_slices_is_not_there", || {
        let slice = Slice::with(&[(2 * GIB, SECOND)], Terms::default());
        enter(&slice);
        let count: u32 = ask!(nvmlDeviceGetCount_v2());
        assert_eq!(count, 1);
        let mut device = std::ptr::null_mut();
        assert_eq!(
            code!(nvmlDeviceGetHandleByIndex_v2(1, &raw mut device)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let [first, second] = [0, 1].map(|index| CString::new(uuid_text(index)).expect("no NUL"));
        assert_eq!(
            code!(nvmlDeviceGetHandleByUUID(first.as_ptr(), &raw mut device)),
            NVML_ERROR_NOT_FOUND
        );
        assert!(device.is_null());
        let found: nvmlDevice_t = ask!(nvmlDeviceGetHandleByUUID(second.as_ptr()));
        assert_eq!(found, handle(1));
        // A foreign handle: the library below knows it, but the slice does not have it.
        let mut memory = nvmlMemory_t::default();
        assert_eq!(
            code!(nvmlDeviceGetMemoryInfo(handle(0), &raw mut memory)),
            NVML_ERROR_NO_PERMISSION
        );
        assert_eq!(
            code!(nvmlDeviceGetIndex(handle(0), &mut 0)),
            NVML_ERROR_NO_PERMISSION
        );
        assert_eq!(
            code!(nvmlDeviceGetMemoryInfo(handle(7), &raw mut memory)),
            NVML_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(
            code!(nvmlDeviceGetCount_v2(std::ptr::null_mut())),
            NVML_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(
            code!(nvmlDeviceGetHandleByIndex_v2(0, std::ptr::null_mut())),
            NVML_ERROR_INVALID_ARGUMENT
        );
    });
}

#[test]
fn memory_and_processes_are_the_slices() {
    alone("memory_and_processes_are_the_slices", || {
        let slice = Slice::with(&[(8 * GIB, FIRST)], Terms::default());
        enter(&slice);
        let device = handle(0);
        let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(device));
        // Of the slice's 8 GiB the device has only 3 left.
        assert_eq!((memory.total, memory.used, memory.free), (8 * GIB, 0, 3 * GIB));
        let bar1: nvmlBAR1Memory_t = ask!(nvmlDeviceGetBAR1MemoryInfo(device));
        assert_eq!(
            (bar1.bar1Total, bar1.bar1Used, bar1.bar1Free),
            (16 * GIB, 4 * GIB, 12 * GIB)
        );
        assert_eq!(
            slice.pages.ledger.processes().count(),
            0,
            "an observer takes no slot"
        );

        let tenant = connect(&slice.socket, 0).expect("the server answers");
        tenant.reserve(6 * GIB).expect("it fits");
        let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(device));
        assert_eq!(
            (memory.total, memory.used, memory.free),
            (8 * GIB, 6 * GIB, 2 * GIB)
        );
        let mut count = 0;
        assert_eq!(
            code!(nvmlDeviceGetComputeRunningProcesses_v3(
                device,
                &raw mut count,
                std::ptr::null_mut()
            )),
            NVML_ERROR_INSUFFICIENT_SIZE
        );
        assert_eq!(count, 1);
        let mut list = [nvmlProcessInfo_v2_t::default(); 4];
        count = 4;
        assert_eq!(
            code!(nvmlDeviceGetComputeRunningProcesses_v3(
                device,
                &raw mut count,
                list.as_mut_ptr()
            )),
            NVML_SUCCESS
        );
        assert_eq!(
            (count, list[0].pid, list[0].usedGpuMemory),
            (1, std::process::id(), 6 * GIB)
        );
        count = 4;
        assert_eq!(
            code!(nvmlDeviceGetGraphicsRunningProcesses_v3(
                device,
                &raw mut count,
                list.as_mut_ptr()
            )),
            NVML_SUCCESS
        );
        assert_eq!(count, 0);

        // A limit below use shows a full slice, not a negative one.
        slice.pages.grant.set_memory_limit_bytes(GIB);
        let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(device));
        assert_eq!((memory.total, memory.used, memory.free), (GIB, GIB, 0));
    });
}

#[test]
fn the_compute_share_is_the_whole() {
    alone("the_compute_share_is_the_whole", || {
        let terms = Terms {
            compute: ComputeTerms {
                share: 2500,
                ..ComputeTerms::default()
            },
            ..Terms::default()
        };
        let slice = Slice::with(&[(GIB, FIRST)], terms);
        let _tenant = connect(&slice.socket, 0).expect("the server answers");
        enter(&slice);
        let device = handle(0);
        // The newest figure of the slice's own process, 10 % of the device, is 40 % of a quarter of it.
        let rates: nvmlUtilization_t = ask!(nvmlDeviceGetUtilizationRates(device));
        assert_eq!((rates.gpu, rates.memory), (40, 20));
        let mut samples = [nvmlProcessUtilizationSample_t::default(); 3];
        let mut count = 3;
        assert_eq!(
            code!(nvmlDeviceGetProcessUtilization(
                device,
                samples.as_mut_ptr(),
                &raw mut count,
                0
            )),
            NVML_SUCCESS
        );
        let seen: Vec<_> = samples[..count as usize]
            .iter()
            .map(|s| (s.pid, s.smUtil))
            .collect();
        let own = std::process::id();
        assert_eq!(seen, [(own, 100), (own, 40)]);

        TELLS_PROCESSES_APART.store(false, std::sync::atomic::Ordering::Relaxed);
        let rates: nvmlUtilization_t = ask!(nvmlDeviceGetUtilizationRates(device));
        assert_eq!(
            (rates.gpu, rates.memory),
            (100, 100),
            "60 % of the device is more than a quarter"
        );
    });
}

#[test]
fn a_slice_that_cannot_be_seen_shows_no_device() {
    alone("a_slice_that_cannot_be_seen_shows_no_device", || {
        name_slice("/nonexistent/attach.sock".as_ref());
        assert_eq!(code!(nvmlInit_v2()), NVML_ERROR_NOT_READY);
        assert_eq!(code!(nvmlInitWithFlags(0)), NVML_ERROR_NOT_READY);
        assert_eq!(code!(nvmlDeviceGetCount_v2(&mut 0)), NVML_ERROR_NOT_READY);
        let mut memory = nvmlMemory_t::default();
        assert_eq!(
            code!(nvmlDeviceGetMemoryInfo(handle(0), &raw mut memory)),
            NVML_ERROR_NOT_READY
        );
    });
}

#[test]
fn a_slice_whose_page_server_is_gone_is_shown_as_it_was() {
    alone("a_slice_whose_page_server_is_gone_is_shown_as_it_was", || {
        let slice = Slice::with(&[(GIB, FIRST)], Terms::default());
        enter(&slice);
        let device: nvmlDevice_t = ask!(nvmlDeviceGetHandleByIndex_v2(0));
        std::fs::remove_file(&slice.socket).expect("there");
        let memory: nvmlMemory_t = ask!(nvmlDeviceGetMemoryInfo(device));
        assert_eq!((memory.total, memory.used), (GIB, 0));
    });
}
