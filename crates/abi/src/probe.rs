//! Asks the library that answers to `libcuda.so.1` whether it works. A doctor runs this in a process of its own.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::{CUDA_SUCCESS, CUresult};

// The dynamic loader's own interface (dlopen(3)); part of every libc that can load a driver at all.
unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

const RTLD_NOW: c_int = 2;

/// A driver's report of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// CUDA version, 12040 for 12.4.
    pub driver_version: i32,
    /// Visible devices.
    pub device_count: i32,
    /// Memory of the first device in bytes, as the driver shows it.
    pub first_device_bytes: u64,
}

/// Loads a driver by the name a program would use, initialises it, and asks it three questions.
///
/// # Errors
/// What the loader said, or which call failed with what.
pub fn probe(library: &CStr) -> Result<Probe, String> {
    // SAFETY: the name is a C string. The library's constructors run, as they would in any CUDA program.
    let handle = unsafe { dlopen(library.as_ptr(), RTLD_NOW) };
    if handle.is_null() {
        return Err(loader_error());
    }
    let mut probe = Probe::default();
    let mut device = 0;
    // SAFETY: each symbol has the type its name has in cuda.h (the caller asked for a CUDA driver; a library that
    // gives these names other types is no driver), and every pointer is to a live variable of the right type.
    unsafe {
        let init: unsafe extern "C" fn(c_uint) -> CUresult = core::mem::transmute(symbol(handle, c"cuInit")?);
        check("cuInit", init(0))?;
        let version: unsafe extern "C" fn(*mut c_int) -> CUresult =
            core::mem::transmute(symbol(handle, c"cuDriverGetVersion")?);
        check("cuDriverGetVersion", version(&mut probe.driver_version))?;
        let count: unsafe extern "C" fn(*mut c_int) -> CUresult =
            core::mem::transmute(symbol(handle, c"cuDeviceGetCount")?);
        check("cuDeviceGetCount", count(&mut probe.device_count))?;
        if probe.device_count > 0 {
            let get: unsafe extern "C" fn(*mut c_int, c_int) -> CUresult =
                core::mem::transmute(symbol(handle, c"cuDeviceGet")?);
            check("cuDeviceGet", get(&mut device, 0))?;
            let total: unsafe extern "C" fn(*mut usize, c_int) -> CUresult =
                core::mem::transmute(symbol(handle, c"cuDeviceTotalMem_v2")?);
            let mut bytes = 0;
            check("cuDeviceTotalMem", total(&mut bytes, device))?;
            probe.first_device_bytes = bytes as u64;
        }
    }
    Ok(probe)
}

/// # Safety
/// `handle` is what `dlopen` gave.
unsafe fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the caller's handle, and a C string.
    let address = unsafe { dlsym(handle, name.as_ptr()) };
    if address.is_null() {
        return Err(format!("it has no {}", name.to_string_lossy()));
    }
    Ok(address)
}

fn check(call: &str, result: CUresult) -> Result<(), String> {
    if result == CUDA_SUCCESS {
        return Ok(());
    }
    let name = result
        .name()
        .map_or("an unknown error".into(), CStr::to_string_lossy);
    Err(format!("{call} answered {name}"))
}

fn loader_error() -> String {
    // SAFETY: null, or a C string that lives until this thread's next call of the loader.
    unsafe {
        let text = dlerror();
        if text.is_null() {
            return "it does not load".into();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_driver_is_told() {
        let missing = probe(c"libno-such-driver.so.1").expect_err("missing");
        assert!(missing.contains("no-such-driver"), "{missing}");
        assert_eq!(probe(c"libc.so.6").expect_err("no driver"), "it has no cuInit");
    }
}
