//! What the driver's tests share: calls through the table, and a process of its own for each test, since a
//! driver's state is its process's.
#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "each test file uses its own part"
)]

pub mod graph;
pub mod peer;
pub mod spin;

use divvy_abi::*;
use std::ffi::{CStr, CString};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// Calls an entry point and gives its result.
macro_rules! code {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: a test passes arguments of the kinds the function takes, or those whose refusal it tests.
        unsafe { (divvy_emulator::TABLE.$function)($($argument),*) }
    };
}

/// Calls an entry point that must succeed.
macro_rules! cu {
    ($function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(code!($function($($argument),*)), divvy_abi::CUDA_SUCCESS, stringify!($function))
    };
}

/// Calls an entry point that writes one result first, and gives that.
macro_rules! get {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: all-zero bytes are a value of every number and handle.
        let mut value = unsafe { std::mem::zeroed() };
        cu!($function(&raw mut value $(, $argument)*));
        value
    }};
}

pub(crate) use {code, cu, get};

const ROLE: &str = "DIVVY_TEST_ROLE";
const WITHIN: &str = "DIVVY_TEST_WITHIN";

/// Runs a test's body in a process of its own, with its own run directory and these settings. A test that does so
/// several times tells the times apart by a setting `CASE`.
pub fn alone(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(ROLE).is_some() {
        let case = settings
            .iter()
            .find(|(name, _)| *name == "CASE")
            .map(|&(_, value)| value.to_owned());
        if std::env::var("CASE").ok() == case {
            body();
        }
        return;
    }
    let directory = TempDir::new().unwrap();
    let mut command = process(test, "alone", directory.path().to_str().unwrap());
    for (name, value) in settings {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    divvy_own_process::assert_passed(test, &output);
}

/// This test binary again, to run one test in a role.
pub fn process(test: &str, role: &str, run_directory: &str) -> Command {
    // A suite that is run once more under the timing model is a module there.
    let within = std::env::var(WITHIN).unwrap_or_else(|_| {
        let thread = std::thread::current();
        let name = thread.name().and_then(|name| name.strip_suffix(test));
        name.unwrap_or_default().to_owned()
    });
    let mut command = divvy_own_process::command(&format!("{within}{test}"));
    for inherited in [
        "CUDA_VISIBLE_DEVICES",
        "DIVVY_EMULATED",
        "CUDA_MPS_PIPE_DIRECTORY",
        "XDG_RUNTIME_DIR",
        "LD_PRELOAD",
    ] {
        command.env_remove(inherited);
    }
    if !within.is_empty() {
        command.env("DIVVY_EMULATED", "h100,timing=model");
    }
    command
        .env(WITHIN, within)
        .env(ROLE, role)
        .env("DIVVY_RUN_DIR", run_directory)
        .env("DIVVY_LOG", "stderr");
    command
}

/// The role this process plays, or None in the process that `cargo test` started.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// What a process wrote.
pub fn both(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Initialises the driver and makes the primary context of a device current.
pub fn start(device: i32) -> CUcontext {
    cu!(cuInit(0));
    let context: CUcontext = get!(cuDevicePrimaryCtxRetain(device));
    cu!(cuCtxSetCurrent(context));
    context
}

/// Loads PTX text into the current context.
pub fn module(ptx: &str) -> CUmodule {
    let text = CString::new(ptx).unwrap();
    get!(cuModuleLoadData(text.as_ptr().cast()))
}

/// A function of a module.
pub fn function(module: CUmodule, name: &CStr) -> CUfunction {
    get!(cuModuleGetFunction(module, name.as_ptr()))
}

/// Launches with these parameters and gives the result.
pub fn launch(
    function: CUfunction,
    grid: u32,
    block: u32,
    stream: CUstream,
    params: &mut [*mut c_void],
) -> CUresult {
    let params = params.as_mut_ptr();
    code!(cuLaunchKernel(
        function,
        grid,
        1,
        1,
        block,
        1,
        1,
        0,
        stream,
        params,
        std::ptr::null_mut()
    ))
}

/// Address of a kernel parameter's value.
pub fn param<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

/// Device memory with these bytes.
pub fn upload<T: Copy>(values: &[T]) -> CUdeviceptr {
    let bytes = size_of_val(values);
    let pointer: CUdeviceptr = get!(cuMemAlloc_v2(bytes));
    cu!(cuMemcpyHtoD_v2(pointer, values.as_ptr().cast(), bytes));
    pointer
}

/// What device memory holds.
pub fn download<T: Copy + Default>(pointer: CUdeviceptr, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    cu!(cuMemcpyDtoH_v2(
        values.as_mut_ptr().cast(),
        pointer,
        size_of_val(values.as_slice())
    ));
    values
}

/// Free and total memory of the current device.
pub fn memory_info() -> (usize, usize) {
    let (mut free, mut total) = (0, 0);
    cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
    (free, total)
}

/// What this process holds of a device and what all do, by the device's page.
pub fn held(index: usize) -> (u64, u64) {
    held_by(index, std::process::id())
}

/// What a process holds of a device and what all do, by the device's page.
pub fn held_by(index: usize, pid: u32) -> (u64, u64) {
    let usage = divvy_device::usage(&divvy_device::devices_from_env().unwrap()[index].id()).unwrap();
    let own = usage.processes.iter().find(|process| process.pid == pid);
    (own.map_or(0, |process| process.used_bytes), usage.used_bytes)
}

/// `c[i] = a[i] + b[i]` for i < n.
pub const VECTOR_ADD: &str = r#"
.version 7.0
.target sm_75
.address_size 64

.visible .entry add(
    .param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n
)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<11>;

    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.u64 %rd3, [c];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd4, %r5, 4;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd2, %rd4;
    add.s64 %rd7, %rd3, %rd4;
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}
"#;

/// Writes 1 to the address it is given.
pub const POKE: &str = r#"
.version 7.0
.target sm_75
.address_size 64

.visible .entry poke(.param .u64 target)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [target];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
"#;
