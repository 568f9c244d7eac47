//! The limiter over the emulated driver, in one process. Each test has a process of its own, since a slice and a
//! driver's state belong to a process.
#![allow(dead_code, unused_macros, reason = "each test file uses its own part")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use divvy_abi::{CUcontext, CUstream, CUuuid, Table};
use divvy_ledger::Terms;
use divvy_limiter::{TABLE, below};

use crate::support::Slice;

/// Calls an entry point through the limiter and returns its result.
macro_rules! code {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: a test passes arguments of the kinds the function takes, or those whose refusal it tests.
        unsafe { (divvy_limiter::TABLE.$function)($($argument),*) }
    };
}

/// Calls an entry point that must succeed.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($crate::emulated::code!($function($($argument),*)), divvy_abi::CUDA_SUCCESS, stringify!($function))
    };
}

/// Calls an entry point that writes one result first, and returns that result.
macro_rules! get {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: all-zero bytes are a value of every number and handle.
        let mut value = unsafe { std::mem::zeroed() };
        $crate::emulated::cu!($function(&raw mut value $(, $argument)*));
        value
    }};
}

const ROLE: &str = "DIVVY_TEST_ROLE";

/// Runs `body` in a process of its own, in a slice of `limit_bytes` of an emulated device.
pub fn alone(test: &str, limit_bytes: u64, body: impl FnOnce(&Slice)) {
    alone_on(&divvy_emulator::TABLE, test, limit_bytes, body);
}

/// The same over the emulated driver with some functions replaced by the test.
pub fn alone_on(driver: &'static Table, test: &str, limit_bytes: u64, body: impl FnOnce(&Slice)) {
    if std::env::var_os(ROLE).is_some() {
        below::stand_on(driver);
        let slice = Slice::with(&[(limit_bytes, device_uuid())], Terms::default());
        slice.enter();
        cu!(cuInit(0));
        return body(&slice);
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = divvy_own_process::command(test)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("DIVVY_EMULATED", "h100")
        .env("DIVVY_RUN_DIR", folder.path())
        .env("DIVVY_LOG", "stderr")
        .env(ROLE, "alone")
        .output()
        .expect("this program starts again");
    divvy_own_process::assert_passed(test, &output);
}

fn device_uuid() -> [u8; 16] {
    let mut uuid = CUuuid::default();
    // SAFETY: a valid out-parameter; past the limiter.
    unsafe {
        assert!((divvy_emulator::TABLE.cuInit)(0).is_success());
        assert!((divvy_emulator::TABLE.cuDeviceGetUuid_v2)(&raw mut uuid, 0).is_success());
    }
    uuid.bytes.map(|byte| byte as u8)
}

/// A context, made current.
pub fn context() -> CUcontext {
    get!(cuCtxCreate_v2(0, 0))
}

/// The UUID of the emulated device of a run directory.
pub fn uuid_in(run_directory: &std::path::Path) -> [u8; 16] {
    let devices = divvy_device::devices("h100", run_directory).expect("a device");
    devices[0].uuid.0
}

/// Asserts that the slice is charged for exactly the bytes that the device has handed out, in its pages of 2 MiB; small
/// allocations share some pages.
pub fn agree(slice: &Slice, what: &dyn std::fmt::Debug) {
    let (used, held) = (slice.used(), held());
    assert!(
        used <= held && held < used + (4 << 20),
        "{what:?}: {used} charged, {held} held"
    );
}

/// Bytes that the emulated device has handed out, by its own report.
pub fn held() -> u64 {
    let (mut free, mut total) = (0, 0);
    // SAFETY: valid out-parameters; past the limiter.
    let result = unsafe { (divvy_emulator::TABLE.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
    assert!(result.is_success());
    (total - free) as u64
}

/// Blocks a stream until it is released.
pub struct Gate(AtomicBool);

unsafe extern "C" fn wait_for(gate: *mut c_void) {
    // SAFETY: a gate that `block` was given, which lives until the stream has passed it.
    let gate = unsafe { &*gate.cast::<Gate>() };
    while !gate.0.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

impl Gate {
    /// Closed.
    pub const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The stream stops here.
    pub fn block(&'static self, stream: CUstream) {
        let gate = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the function takes what it is given here.
        let result = unsafe { (TABLE.cuLaunchHostFunc)(stream, Some(wait_for), gate) };
        assert!(result.is_success());
    }

    /// The stream continues.
    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

pub(crate) use {code, cu, get};
