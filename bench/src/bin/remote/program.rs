//! The program that is measured: it loads a driver, and prints its figures as JSON.

use std::ffi::{CStr, CString};
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use divvy_abi::{CUcontext, CUdevice, CUdeviceptr, CUfunction, CUmodule, CUresult, CUstream, c_char, c_void};
use divvy_bench::statistics::median;
use serde::{Deserialize, Serialize};

use crate::Args;

/// What a program measures: medians.
#[derive(Serialize, Deserialize)]
pub struct Figures {
    pub first_kernel_ms: f64,
    pub call_ns: f64,
    pub local_ns: f64,
    pub launch_ns: f64,
    pub batch_us: f64,
    pub copies: Vec<Copied>,
    /// Gigabytes per second.
    pub memcpy: f64,
}

/// Bandwidth of one kind of copy.
#[derive(Serialize, Deserialize)]
pub struct Copied {
    pub name: String,
    pub gigabytes: f64,
}

/// Bytes of a copy: more than the caches hold.
const BYTES: usize = 32 << 20;
/// A kernel that does nothing.
const EMPTY: &CStr =
    c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty(.param .u64 p)\n{\n ret;\n}\n";

macro_rules! driver {
    ($($field:ident = $symbol:literal ($($of:ty),*);)*) => {
        struct Driver {
            $($field: unsafe extern "C" fn($($of),*) -> CUresult,)*
        }

        impl Driver {
            fn load(library: &Path) -> anyhow::Result<Self> {
                let name = CString::new(library.as_os_str().as_bytes())?;
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
                Ok(Self {
                    // SAFETY: the driver's functions of these names have these types.
                    $($field: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($of),*) -> CUresult>(symbol($symbol)?) },)*
                })
            }
        }
    };
}

driver! {
    init = c"cuInit" (u32);
    retain = c"cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
    set_current = c"cuCtxSetCurrent" (CUcontext);
    synchronize = c"cuCtxSynchronize" ();
    load_data = c"cuModuleLoadData" (*mut CUmodule, *const c_void);
    function = c"cuModuleGetFunction" (*mut CUfunction, CUmodule, *const c_char);
    launch = c"cuLaunchKernel" (CUfunction, u32, u32, u32, u32, u32, u32, u32, CUstream, *mut *mut c_void, *mut *mut c_void);
    query = c"cuStreamQuery" (CUstream);
    attribute = c"cuDeviceGetAttribute" (*mut i32, u32, CUdevice);
    allocate = c"cuMemAlloc_v2" (*mut CUdeviceptr, usize);
    allocate_host = c"cuMemHostAlloc" (*mut *mut c_void, usize, u32);
    to_device = c"cuMemcpyHtoD_v2" (CUdeviceptr, *const c_void, usize);
    from_device = c"cuMemcpyDtoH_v2" (*mut c_void, CUdeviceptr, usize);
}

fn cu(code: CUresult) -> anyhow::Result<()> {
    code.ok().context("A call of the driver")
}

/// The median of so many rounds, after one that warms up: nanoseconds that `one` takes for each of `count`.
fn timed(rounds: usize, count: u32, mut one: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut values = Vec::new();
    for round in 0..=rounds {
        let began = Instant::now();
        one()?;
        if round > 0 {
            values.push(began.elapsed().as_nanos() as f64 / f64::from(count));
        }
    }
    Ok(median(&mut values))
}

/// Measures, and prints.
pub fn run(library: &Path, args: &Args) -> anyhow::Result<()> {
    let began = Instant::now();
    let driver = Driver::load(library)?;
    let (mut context, mut module, mut function) =
        (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: valid out-parameters and C strings.
    unsafe {
        cu((driver.init)(0))?;
        cu((driver.retain)(&raw mut context, 0))?;
        cu((driver.set_current)(context))?;
        cu((driver.load_data)(&raw mut module, EMPTY.as_ptr().cast()))?;
        cu((driver.function)(&raw mut function, module, c"empty".as_ptr()))?;
    }
    let mut value = 0_u64;
    let mut params = [(&raw mut value).cast::<c_void>()];
    let none: *mut *mut c_void = std::ptr::null_mut();
    let mut launch = || {
        // SAFETY: the kernel has one parameter of eight bytes.
        cu(unsafe {
            (driver.launch)(
                function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                std::ptr::null_mut(),
                params.as_mut_ptr(),
                none,
            )
        })
    };
    // SAFETY: it takes nothing.
    let synchronize = || cu(unsafe { (driver.synchronize)() });
    launch()?;
    synchronize()?;
    let first_kernel_ms = began.elapsed().as_secs_f64() * 1e3;

    let (rounds, calls) = (args.rounds, args.calls);
    let call_ns = timed(rounds, calls, || {
        for _ in 0..calls {
            // SAFETY: the default stream.
            cu(unsafe { (driver.query)(std::ptr::null_mut()) })?;
        }
        Ok(())
    })?;
    let local_ns = timed(rounds, calls, || {
        let mut value = 0;
        for _ in 0..calls {
            // SAFETY: a valid out-parameter; 10 is the warp's size.
            cu(unsafe { (driver.attribute)(&raw mut value, 10, 0) })?;
        }
        Ok(())
    })?;
    let mut values = Vec::new();
    for _ in 0..=rounds {
        let began = Instant::now();
        for _ in 0..100 {
            launch()?;
        }
        values.push(began.elapsed().as_nanos() as f64 / 100.0);
        synchronize()?;
    }
    let launch_ns = median(&mut values);
    let batch_us = timed(rounds.min(11), 1000, || {
        for _ in 0..1000 {
            launch()?;
        }
        synchronize()
    })?;
    let (copies, memcpy) = copies(&driver)?;
    let figures = Figures {
        first_kernel_ms,
        call_ns,
        local_ns,
        launch_ns,
        batch_us,
        copies,
        memcpy,
    };
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

fn copies(driver: &Driver) -> anyhow::Result<(Vec<Copied>, f64)> {
    let rate = |nanoseconds: f64| BYTES as f64 / nanoseconds;
    let (mut own, mut other) = (vec![7_u8; BYTES], vec![1_u8; BYTES]);
    let memcpy = timed(9, 1, || {
        black_box(&mut other).copy_from_slice(black_box(&own));
        Ok(())
    })?;
    let (mut device, mut pinned) = (0, std::ptr::null_mut());
    // SAFETY: valid out-parameters.
    unsafe {
        cu((driver.allocate)(&raw mut device, BYTES))?;
        cu((driver.allocate_host)(&raw mut pinned, BYTES, 0))?;
        pinned.cast::<u8>().write_bytes(7, BYTES);
    }
    let mut all = Vec::new();
    for (name, host) in [
        ("pageable memory", own.as_mut_ptr().cast::<c_void>()),
        ("pinned memory", pinned),
    ] {
        // SAFETY: both memories have so many bytes.
        let to = timed(9, 1, || cu(unsafe { (driver.to_device)(device, host, BYTES) }))?;
        // SAFETY: as above.
        let from = timed(9, 1, || cu(unsafe { (driver.from_device)(host, device, BYTES) }))?;
        for (name, nanoseconds) in [
            (format!("{name} to the device"), to),
            (format!("{name} from the device"), from),
        ] {
            all.push(Copied {
                name,
                gigabytes: rate(nanoseconds),
            });
        }
    }
    Ok((all, rate(memcpy)))
}
