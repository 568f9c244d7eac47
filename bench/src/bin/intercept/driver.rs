//! A libcuda.so.1 under test, by the few functions that are measured.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context, bail};
use divvy_abi::{CUdeviceptr, CUfunction, CUresult, CUstream, c_void};

type Init = unsafe extern "C" fn(u32) -> CUresult;
type Allocate = unsafe extern "C" fn(*mut CUdeviceptr, usize) -> CUresult;
type Free = unsafe extern "C" fn(CUdeviceptr) -> CUresult;
type Info = unsafe extern "C" fn(*mut usize, *mut usize) -> CUresult;
type Launch = unsafe extern "C" fn(
    CUfunction,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    CUstream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CUresult;

/// The functions of one loaded driver.
#[derive(Clone, Copy)]
pub struct Driver {
    init: Init,
    allocate: Allocate,
    free: Free,
    info: Info,
    launch: Launch,
}

impl Driver {
    /// Loads the library at `path`.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: a C string; the library is one of ours, whose constructors only read the environment.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            bail!("Cannot load {}", path.display());
        }
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: the handle is open and stays so; a C string.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if address.is_null() { None } else { Some(address) }.with_context(|| format!("No {name:?}"))
        };
        // SAFETY: exports of these names have these types: both libraries export the table's.
        unsafe {
            Ok(Self {
                init: std::mem::transmute::<*mut c_void, Init>(symbol(c"cuInit")?),
                allocate: std::mem::transmute::<*mut c_void, Allocate>(symbol(c"cuMemAlloc_v2")?),
                free: std::mem::transmute::<*mut c_void, Free>(symbol(c"cuMemFree_v2")?),
                info: std::mem::transmute::<*mut c_void, Info>(symbol(c"cuMemGetInfo_v2")?),
                launch: std::mem::transmute::<*mut c_void, Launch>(symbol(c"cuLaunchKernel")?),
            })
        }
    }

    pub fn init(&self) -> anyhow::Result<()> {
        // SAFETY: no pointers.
        unsafe { (self.init)(0) }.ok().context("cuInit")
    }

    #[inline]
    pub fn allocate(&self, bytes: usize) -> CUdeviceptr {
        let mut pointer = 0;
        // SAFETY: a valid out-parameter.
        let result = unsafe { (self.allocate)(&raw mut pointer, bytes) };
        assert!(result.is_success(), "cuMemAlloc: {result}");
        pointer
    }

    #[inline]
    pub fn free(&self, pointer: CUdeviceptr) {
        // SAFETY: the driver takes any pointer.
        let result = unsafe { (self.free)(pointer) };
        assert!(result.is_success(), "cuMemFree: {result}");
    }

    #[inline]
    pub fn info(&self) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: valid out-parameters.
        let result = unsafe { (self.info)(&raw mut free, &raw mut total) };
        assert!(result.is_success() && free <= total);
    }

    #[inline]
    pub fn launch(&self) {
        let none = std::ptr::null_mut::<c_void>();
        // SAFETY: the driver that does nothing follows no pointer.
        let result = unsafe {
            (self.launch)(
                none.cast(),
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                none.cast(),
                none.cast(),
                none.cast(),
            )
        };
        assert!(result.is_success());
    }
}
