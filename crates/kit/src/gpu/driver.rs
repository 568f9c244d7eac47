//! The library, and the few calls that every part makes.

use core::ffi::{CStr, c_void};
use std::fmt;

use divvy_abi::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUcontext, CUdevice, CUresult, Symbol, Table};

/// A call that the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// Which call.
    pub call: &'static str,
    /// With what.
    pub result: CUresult,
}

impl CudaError {
    /// Whether there was not enough memory.
    #[must_use]
    pub fn is_out_of_memory(self) -> bool {
        self.result == CUDA_ERROR_OUT_OF_MEMORY
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.result.name().unwrap_or(c"an error that has no name");
        write!(f, "{}: {}", self.call, name.to_string_lossy())
    }
}

/// Makes an error of what a call answered.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    match result {
        CUDA_SUCCESS => Ok(()),
        result => Err(CudaError { call, result }),
    }
}

/// The first device, with its primary context current in this thread.
pub struct Gpu {
    /// Every function of the library; those that it lacks answer that they are not supported.
    pub(super) table: Table,
    handle: *mut c_void,
    pub(super) device: CUdevice,
}

impl Gpu {
    /// Loads the library, initialises it, and makes the primary context of device 0 current.
    ///
    /// # Errors
    /// Why there is no device to work with.
    pub fn open() -> Result<Self, String> {
        let gpu = Self::load()?;
        gpu.begin().map_err(|error| error.to_string())?;
        Ok(gpu)
    }

    /// Loads the library, and nothing more.
    ///
    /// # Errors
    /// What the loader said.
    pub fn load() -> Result<Self, String> {
        // SAFETY: a C string. The library's constructors run, as in any program that uses it.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: it takes nothing and answers a C string or nothing, which is read at once.
            let why = unsafe { libc::dlerror() };
            let why = match why.is_null() {
                true => "no reason given".into(),
                // SAFETY: the loader's own text.
                false => unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned(),
            };
            return Err(format!("libcuda.so.1 does not load: {why}"));
        }
        let mut table = Table::UNSUPPORTED;
        for symbol in Symbol::ALL {
            // SAFETY: the handle is open and stays so; a C string.
            let address = unsafe { libc::dlsym(handle, symbol.c_name().as_ptr()) };
            if !address.is_null() {
                let slots = (&raw mut table).cast::<*mut c_void>();
                // SAFETY: a table is an array of pointers, one for each symbol by its number; the function of this name has
                // the slot's type, as cuda.h says.
                unsafe { slots.add(symbol.index()).write(address) };
            }
        }
        Ok(Self {
            table,
            handle,
            device: 0,
        })
    }

    fn begin(&self) -> Result<(), CudaError> {
        let mut context: CUcontext = std::ptr::null_mut();
        let mut device = self.device;
        // SAFETY: every pointer is to a live variable of the type that the signature names.
        unsafe {
            check("cuInit", (self.table.cuInit)(0))?;
            check("cuDeviceGet", (self.table.cuDeviceGet)(&mut device, 0))?;
            let retained = (self.table.cuDevicePrimaryCtxRetain)(&mut context, device);
            check("cuDevicePrimaryCtxRetain", retained)?;
            check("cuCtxSetCurrent", (self.table.cuCtxSetCurrent)(context))
        }
    }

    /// Gives the context back: a card that takes one program at a time is free for the next.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn close(self) -> Result<(), CudaError> {
        // SAFETY: no pointers. The context was retained once by this, which makes no call after it.
        check("cuDevicePrimaryCtxRelease", unsafe {
            (self.table.cuDevicePrimaryCtxRelease_v2)(self.device)
        })
    }

    /// Whether the library exports a symbol.
    #[must_use]
    pub fn exports(&self, name: &CStr) -> bool {
        // SAFETY: the handle is open and stays so; a C string.
        !unsafe { libc::dlsym(self.handle, name.as_ptr()) }.is_null()
    }

    /// Free and whole memory as the driver shows them, in bytes.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: pointers to live variables.
        let told = unsafe { (self.table.cuMemGetInfo_v2)(&mut free, &mut total) };
        check("cuMemGetInfo", told)?;
        Ok((free as u64, total as u64))
    }

    /// An attribute of the device.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn attribute(&self, attribute: u32) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: a pointer to a live variable; a number that the driver does not know it refuses.
        let told = unsafe {
            (self.table.cuDeviceGetAttribute)(
                &mut value,
                divvy_abi::CUdevice_attribute(attribute),
                self.device,
            )
        };
        check("cuDeviceGetAttribute", told).map(|()| value)
    }

    /// The version of CUDA that the driver serves, 12040 for 12.4.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn cuda_version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: a pointer to a live variable.
        let told = unsafe { (self.table.cuDriverGetVersion)(&mut version) };
        check("cuDriverGetVersion", told).map(|()| version)
    }

    /// What cuGetProcAddress answers for a name, a version and flags: whether it has the function.
    ///
    /// # Errors
    /// What the driver answers otherwise than that it has no such function.
    pub fn has_entry(&self, name: &CStr, version: i32, flags: u64) -> Result<bool, CudaError> {
        let mut address = std::ptr::null_mut();
        let mut status = divvy_abi::CUdriverProcAddressQueryResult(0);
        // SAFETY: a C string, and pointers to live variables.
        let told = unsafe {
            (self.table.cuGetProcAddress_v2)(name.as_ptr(), &mut address, version, flags, &mut status)
        };
        match told {
            divvy_abi::CUDA_ERROR_NOT_FOUND => Ok(false),
            told => check("cuGetProcAddress", told).map(|()| !address.is_null()),
        }
    }

    /// Waits for all work.
    ///
    /// # Errors
    /// What the driver answers: also what went wrong in a kernel.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: no pointers.
        check("cuCtxSynchronize", unsafe { (self.table.cuCtxSynchronize)() })
    }
}
