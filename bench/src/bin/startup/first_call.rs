//! A fresh process's way to its first allocation: load the library, cuInit, a context, allocate, free.

use std::ffi::{CStr, CString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use divvy_abi::{CUcontext, CUdevice, CUdeviceptr, CUresult, c_void};
use divvy_bench::slice::Slice;

use crate::Figure;

/// In fresh processes, one after another: milliseconds of loading and cuInit.
pub fn measure(name: &str, driver: &Path, libraries: &Path, rounds: usize) -> anyhow::Result<Figure> {
    let slice = Slice::new()?;
    let home = tempfile::Builder::new().prefix("divvy-").tempdir()?;
    let limiter = libraries.join("libdivvy_limit_cuda.so");
    let mut figure = Figure {
        name: format!("load and cuInit over {name}"),
        without: Vec::new(),
        with: Vec::new(),
        most: None,
    };
    for _ in 0..rounds {
        for (library, times) in [(driver, &mut figure.without), (&limiter, &mut figure.with)] {
            let mut worker = spawn(Language::Rust, library, driver, &slice, home.path())?;
            drop(worker.stdin.take());
            let mut said = String::new();
            worker
                .stdout
                .take()
                .context("A pipe was asked for")?
                .read_to_string(&mut said)?;
            if !worker.wait()?.success() {
                bail!("A worker failed: {said}");
            }
            times.push(said.trim().parse().context("A worker prints its time")?);
        }
    }
    slice.require_empty()?;
    Ok(figure)
}

/// What a worker is written in.
#[derive(Clone, Copy)]
pub enum Language {
    /// This program: as little beside the driver as can be.
    Rust,
    /// Python's own interpreter and ctypes: what a user's program has at least.
    Python,
}

/// Starts a worker on `library`, with `driver` below where that is the limiter. It goes on when its input closes.
pub fn spawn(
    language: Language,
    library: &Path,
    driver: &Path,
    slice: &Slice,
    home: &Path,
) -> anyhow::Result<Child> {
    let mut command = match language {
        Language::Rust => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("--worker");
            command
        }
        Language::Python => {
            let mut command = Command::new("python3");
            command.args(["-c", include_str!("worker.py")]);
            command
        }
    };
    command
        .arg(library)
        .env("DIVVY_SLICE", slice.socket())
        .env("DIVVY_DRIVER", driver)
        // Where the emulated driver keeps its devices.
        .env("DIVVY_RUN_DIR", home)
        .env("DIVVY_EMULATED", "h100")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("Cannot start a worker")
}

type Init = unsafe extern "C" fn(u32) -> CUresult;
type Retain = unsafe extern "C" fn(*mut CUcontext, CUdevice) -> CUresult;
type SetCurrent = unsafe extern "C" fn(CUcontext) -> CUresult;
type Allocate = unsafe extern "C" fn(*mut CUdeviceptr, usize) -> CUresult;
type Free = unsafe extern "C" fn(CUdeviceptr) -> CUresult;

/// The worker: prints how many milliseconds loading and cuInit took, then allocates and frees once.
pub fn worker(library: &Path) -> anyhow::Result<()> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let name = CString::new(library.as_os_str().as_bytes())?;
    let start = Instant::now();
    // SAFETY: a C string; the library is one of ours, whose constructors only read the environment.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        bail!("Cannot load {}", library.display());
    }
    let symbol = |name: &CStr| {
        // SAFETY: the handle is open and stays so; a C string.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if address.is_null() { None } else { Some(address) }.with_context(|| format!("No {name:?}"))
    };
    // SAFETY: exports of these names have these types, in each of our drivers; valid out-parameters.
    unsafe {
        let init = std::mem::transmute::<*mut c_void, Init>(symbol(c"cuInit")?);
        init(0).ok().context("cuInit")?;
        println!("{}", start.elapsed().as_secs_f64() * 1e3);

        let mut context = std::ptr::null_mut();
        let mut pointer = 0;
        let retain = std::mem::transmute::<*mut c_void, Retain>(symbol(c"cuDevicePrimaryCtxRetain")?);
        retain(&raw mut context, 0)
            .ok()
            .context("cuDevicePrimaryCtxRetain")?;
        let set = std::mem::transmute::<*mut c_void, SetCurrent>(symbol(c"cuCtxSetCurrent")?);
        set(context).ok().context("cuCtxSetCurrent")?;
        let allocate = std::mem::transmute::<*mut c_void, Allocate>(symbol(c"cuMemAlloc_v2")?);
        allocate(&raw mut pointer, 1 << 20).ok().context("cuMemAlloc")?;
        let free = std::mem::transmute::<*mut c_void, Free>(symbol(c"cuMemFree_v2")?);
        free(pointer).ok().context("cuMemFree")?;
    }
    Ok(())
}
