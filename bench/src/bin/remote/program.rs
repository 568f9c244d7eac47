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

/// What a program measures that only starts.
#[derive(Serialize, Deserialize)]
pub struct Started {
    pub first_kernel_ms: f64,
    pub batch_ms: f64,
}

/// Bandwidth of one kind of copy.
#[derive(Serialize, Deserialize)]
pub struct Copied {
    pub name: String,
    /// Gigabytes per second.
    pub gigabytes: f64,
    /// Over memcpy's in the same round.
    pub of_memcpy: f64,
}

/// Rounds of each copy.
const COPY_ROUNDS: usize = 21;

/// Bytes of a copy: more than the caches hold.
const BYTES: usize = 32 << 20;
/// A kernel that does nothing.
const EMPTY: &CStr =
    c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry empty(.param .u64 p)\n{\n ret;\n}\n";

macro_rules! driver {
    ($($field:ident = $symbol:literal ($($of:ty),*);)*) => {
        /// The entry points that the programs call.
        pub struct Driver {
            $(pub $field: unsafe extern "C" fn($($of),*) -> CUresult,)*
        }

        impl Driver {
            /// Loads a driver.
            pub fn load(library: &Path) -> anyhow::Result<Self> {
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
    free_host = c"cuMemFreeHost" (*mut c_void);
    from_device = c"cuMemcpyDtoH_v2" (*mut c_void, CUdeviceptr, usize);
}

impl Driver {
    /// Makes a context on the first device, and loads a kernel.
    pub fn start(&self, source: &CStr, kernel: &CStr) -> anyhow::Result<CUfunction> {
        let (mut context, mut module, mut function) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: valid out-parameters and C strings.
        unsafe {
            cu((self.init)(0))?;
            cu((self.retain)(&raw mut context, 0))?;
            cu((self.set_current)(context))?;
            cu((self.load_data)(&raw mut module, source.as_ptr().cast()))?;
            cu((self.function)(&raw mut function, module, kernel.as_ptr()))?;
        }
        Ok(function)
    }

    /// Memory of the device.
    pub fn device_memory(&self, bytes: usize) -> anyhow::Result<CUdeviceptr> {
        let mut memory = 0;
        // SAFETY: a valid out-parameter.
        cu(unsafe { (self.allocate)(&raw mut memory, bytes) })?;
        Ok(memory)
    }

    /// Pinned memory, as far as the driver pins it.
    fn host_memory(&self, bytes: usize) -> anyhow::Result<*mut c_void> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: a valid out-parameter.
        cu(unsafe { (self.allocate_host)(&raw mut memory, bytes, 0) })?;
        Ok(memory)
    }
}

pub fn cu(code: CUresult) -> anyhow::Result<()> {
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
    let function = driver.start(EMPTY, c"empty")?;
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
    if args.only_start {
        let began = Instant::now();
        for _ in 0..1000 {
            launch()?;
        }
        synchronize()?;
        let batch_ms = began.elapsed().as_secs_f64() * 1e3;
        let started = Started {
            first_kernel_ms,
            batch_ms,
        };
        println!("{}", serde_json::to_string(&started)?);
        return Ok(());
    }

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
    let (copies, memcpy) = copies(&driver, args.over_worker)?;
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

/// Copies between memory of the program and the device's. In each round memcpy moves as many bytes first, so that both
/// meet the same machine.
fn copies(driver: &Driver, worker: bool) -> anyhow::Result<(Vec<Copied>, f64)> {
    let (mut own, mut other) = (vec![7_u8; BYTES], vec![1_u8; BYTES]);
    let device = driver.device_memory(BYTES)?;
    let pinned = driver.host_memory(BYTES)?;
    let mut all: Vec<(&str, *mut c_void)> = vec![
        ("pageable memory", own.as_mut_ptr().cast()),
        ("pinned memory", pinned),
    ];
    if worker {
        // What a worker may pin is used up. Nothing of it is touched, so it takes no memory.
        let rest = divvy_remote::server::Quota::default().pinned as usize - BYTES;
        let held = driver.host_memory(rest)?;
        all.insert(1, ("shared memory", driver.host_memory(BYTES)?));
        // SAFETY: it is memory of the driver.
        cu(unsafe { (driver.free_host)(held) })?;
    }
    let mut rates = vec![(Vec::new(), Vec::new()); 2 * all.len()];
    let mut memcpys = Vec::new();
    for round in 0..=COPY_ROUNDS {
        for (at, (_, host)) in all.iter().enumerate() {
            for from in [false, true] {
                let began = Instant::now();
                black_box(&mut other).copy_from_slice(black_box(&own));
                let plain = began.elapsed();
                let began = Instant::now();
                // SAFETY: both memories have so many bytes.
                cu(unsafe {
                    match from {
                        false => (driver.to_device)(device, *host, BYTES),
                        true => (driver.from_device)(*host, device, BYTES),
                    }
                })?;
                let took = began.elapsed();
                if round > 0 {
                    let (rates, ratios) = &mut rates[2 * at + usize::from(from)];
                    rates.push(BYTES as f64 / took.as_nanos() as f64);
                    ratios.push(plain.as_secs_f64() / took.as_secs_f64());
                    memcpys.push(BYTES as f64 / plain.as_nanos() as f64);
                }
            }
        }
    }
    let mut copied = Vec::new();
    for (at, (rates, ratios)) in rates.iter_mut().enumerate() {
        let way = ["to the device", "from the device"][at % 2];
        copied.push(Copied {
            name: format!("{} {way}", all[at / 2].0),
            gigabytes: median(rates),
            of_memcpy: median(ratios),
        });
    }
    Ok((copied, median(&mut memcpys)))
}
