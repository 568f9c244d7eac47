//! What nvcc's code registers before `main`: images of device code, and the kernels and variables that they have.
//!
//! Nothing is loaded then. An image goes to the driver when one of its kernels or variables is first used; which bytes
//! it has, the driver alone looks at.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Duration;

use crate::prelude::*;

/// One image, by the address that nvcc's code registered.
pub struct Binary {
    image: AtomicPtr<c_void>,
    library: Mutex<Option<Library>>,
    managed: Mutex<Vec<Managed>>,
}

struct Library(CUlibrary);

// SAFETY: a library's handle may be used by any thread.
unsafe impl Send for Library {}

/// A `__managed__` variable: where the program looks for its address.
struct Managed {
    slot: *mut *mut c_void,
    name: CString,
}

// SAFETY: the slot is a static of the program, written under the binary's lock.
unsafe impl Send for Managed {}

/// A kernel, by the address of its stub in the program.
pub struct Kernel {
    binary: Arc<Binary>,
    pub name: CString,
    handle: AtomicPtr<CUkern_st>,
}

/// A variable in device memory, by the address of its shadow in the program.
pub struct Variable {
    binary: Arc<Binary>,
    name: CString,
    pub size: usize,
    managed: bool,
}

#[derive(Default)]
struct Registry {
    binaries: HashMap<usize, Arc<Binary>>,
    kernels: HashMap<usize, Arc<Kernel>>,
    variables: HashMap<usize, Arc<Variable>>,
    /// The stub of each kernel that was looked up, by the driver's handle.
    stubs: HashMap<usize, usize>,
    /// The driver's handles that were given to the program: they may stand where a stub may.
    handles: HashSet<usize>,
}

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

fn read() -> RwLockReadGuard<'static, Registry> {
    REGISTRY.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Registry> {
    REGISTRY.write().unwrap_or_else(PoisonError::into_inner)
}

/// The registry, for a program or a library that ends. In a child of a fork a thread that held the lock is gone, and
/// what ends there must not wait for ever.
fn write_at_an_end() -> Option<RwLockWriteGuard<'static, Registry>> {
    for _ in 0..1_000 {
        match REGISTRY.try_write() {
            Ok(registry) => return Some(registry),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(100)),
        }
    }
    None
}

/// Registers an image. The answer is the handle by which its kernels and variables are registered.
pub fn add_binary(image: *mut c_void) -> *mut *mut c_void {
    let binary = Arc::new(Binary {
        image: AtomicPtr::new(image),
        library: Mutex::new(None),
        managed: Mutex::new(Vec::new()),
    });
    let handle = Arc::as_ptr(&binary).cast_mut();
    write().binaries.insert(handle as usize, binary);
    handle.cast()
}

fn binary(handle: *mut *mut c_void) -> Option<Arc<Binary>> {
    read().binaries.get(&(handle as usize)).cloned()
}

/// Forgets an image and what it has.
pub fn remove_binary(handle: *mut *mut c_void) {
    let Some(mut registry) = write_at_an_end() else {
        return;
    };
    let Some(binary) = registry.binaries.remove(&(handle as usize)) else {
        return;
    };
    registry
        .kernels
        .retain(|_, kernel| !Arc::ptr_eq(&kernel.binary, &binary));
    registry
        .variables
        .retain(|_, variable| !Arc::ptr_eq(&variable.binary, &binary));
    let kernels: HashSet<usize> = registry.kernels.keys().copied().collect();
    registry.stubs.retain(|_, stub| kernels.contains(stub));
    drop(registry);
    // As above: a thread that was loading it may be gone.
    let library = match binary.library.try_lock() {
        Ok(mut loaded) => loaded.take(),
        Err(_) => None,
    };
    if let Some(library) = library
        && let Ok(driver) = crate::driver::table()
    {
        // SAFETY: the library was loaded by us, and no kernel of it can be found any more. At the process's end the driver
        // may be gone already: then it answers so.
        let _ = unsafe { (driver.cuLibraryUnload)(library.0) };
    }
}

/// # Safety
/// `name` is null or a C string.
unsafe fn owned(name: *const c_char) -> Option<CString> {
    // SAFETY: the caller vouches for it.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_owned())
}

/// Registers a kernel of an image.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn add_kernel(handle: *mut *mut c_void, stub: *const c_char, name: *const c_char) {
    // SAFETY: the caller vouches for it.
    if let (Some(binary), Some(name)) = (binary(handle), unsafe { owned(name) }) {
        let kernel = Arc::new(Kernel {
            binary,
            name,
            handle: AtomicPtr::new(null_mut()),
        });
        write().kernels.insert(stub as usize, kernel);
    }
}

/// Registers a variable of an image.
///
/// # Safety
/// `name` is null or a C string.
pub unsafe fn add_variable(
    handle: *mut *mut c_void,
    shadow: *const c_void,
    name: *const c_char,
    size: usize,
) {
    // SAFETY: the caller vouches for it.
    if let (Some(binary), Some(name)) = (binary(handle), unsafe { owned(name) }) {
        let variable = Arc::new(Variable {
            binary,
            name,
            size,
            managed: false,
        });
        write().variables.insert(shadow as usize, variable);
    }
}

/// Registers a managed variable of an image, whose address is written to `slot` when it is known.
///
/// # Safety
/// `name` is null or a C string, and `slot` a static of the program.
pub unsafe fn add_managed(
    handle: *mut *mut c_void,
    slot: *mut *mut c_void,
    name: *const c_char,
    size: usize,
) {
    // SAFETY: the caller vouches for it.
    if let (Some(binary), Some(name)) = (binary(handle), unsafe { owned(name) }) {
        binary
            .managed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Managed {
                slot,
                name: name.clone(),
            });
        let variable = Arc::new(Variable {
            binary,
            name,
            size,
            managed: true,
        });
        // The program names the variable by the slot.
        write().variables.insert(slot as usize, variable);
    }
}

/// Loads an image now, so that the program finds its managed variables. Answers whether that was possible.
pub fn initialise(handle: *mut *mut c_void) -> bool {
    binary(handle).is_some_and(|binary| context().and_then(|()| binary.library()).is_ok())
}

impl Binary {
    /// The driver's handle of the image, which is loaded now if it was not.
    fn library(&self) -> Result<CUlibrary> {
        let mut loaded = self.library.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*loaded {
            return Ok(library.0);
        }
        let mut library = null_mut();
        let mut options = [CU_LIBRARY_BINARY_IS_PRESERVED];
        let mut values = [core::ptr::without_provenance_mut(1)];
        // SAFETY: nvcc's code registered the image and keeps it until it says otherwise; the options are one each.
        unsafe {
            cu!(cuLibraryLoadData(
                &mut library,
                self.image.load(Ordering::Relaxed),
                null_mut(),
                null_mut(),
                0,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
                1
            ));
        }
        *loaded = Some(Library(library));
        for managed in &*self.managed.lock().unwrap_or_else(PoisonError::into_inner) {
            let (mut address, mut size) = (0, 0);
            // SAFETY: the library is loaded, and the slot is a static of the program that nvcc made for this.
            unsafe {
                let name = managed.name.as_ptr();
                let found =
                    (crate::driver::table()?.cuLibraryGetManaged)(&mut address, &mut size, library, name);
                // A driver without them serves what else the image has. The program's own access then ends at null.
                if found == CUDA_SUCCESS {
                    managed.slot.write(address as *mut c_void);
                }
            }
        }
        Ok(library)
    }
}

/// Loads every image that has a managed variable: the program may touch those without a call.
pub fn load_managed() {
    let binaries: Vec<Arc<Binary>> = read().binaries.values().cloned().collect();
    for binary in binaries {
        let has = !binary
            .managed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty();
        if has {
            let _ = binary.library();
        }
    }
}

/// The driver's kernel of a stub, or the kernel itself where the program gave a handle of one.
///
/// # Errors
/// `cudaErrorInvalidDeviceFunction` for what is neither; what loading the image says.
pub fn kernel(stub: *const c_void) -> Result<CUkernel> {
    let registry = read();
    let Some(kernel) = registry.kernels.get(&(stub as usize)) else {
        return if registry.handles.contains(&(stub as usize)) {
            Ok(stub as CUkernel)
        } else {
            Err(cudaErrorInvalidDeviceFunction)
        };
    };
    let known = kernel.handle.load(Ordering::Acquire);
    if !known.is_null() {
        return Ok(known);
    }
    let kernel = Arc::clone(kernel);
    drop(registry);
    let library = kernel.binary.library()?;
    let mut handle = null_mut();
    // SAFETY: the library is loaded, and the name is a C string.
    let found =
        unsafe { (crate::driver::table()?.cuLibraryGetKernel)(&mut handle, library, kernel.name.as_ptr()) };
    match crate::error::check(found) {
        Err(cudaErrorSymbolNotFound) => return Err(cudaErrorInvalidDeviceFunction),
        other => other?,
    }
    kernel.handle.store(handle, Ordering::Release);
    write().stubs.insert(handle as usize, stub as usize);
    Ok(handle)
}

/// The name of the kernel of a stub, where nvcc's code registered one.
pub fn registered(stub: *const c_void) -> Option<Arc<Kernel>> {
    read().kernels.get(&(stub as usize)).cloned()
}

/// Remembers a kernel's handle that the program got from us.
pub fn given(kernel: CUkernel) {
    write().handles.insert(kernel as usize);
}

/// What a program knows a kernel by: its stub, or else the handle.
pub fn stub(kernel: CUkernel) -> *mut c_void {
    read()
        .stubs
        .get(&(kernel as usize))
        .map_or(kernel.cast(), |stub| *stub as *mut c_void)
}

/// Address and size of a variable in device memory.
///
/// # Errors
/// `cudaErrorInvalidSymbol` for what is no variable; what loading the image says.
pub fn variable(shadow: *const c_void) -> Result<(CUdeviceptr, usize)> {
    let Some(variable) = read().variables.get(&(shadow as usize)).cloned() else {
        return Err(cudaErrorInvalidSymbol);
    };
    context()?;
    let library = variable.binary.library()?;
    let (mut address, mut size) = (0, 0);
    // SAFETY: the library is loaded, the name is a C string, and the pointers are those of numbers.
    let found = unsafe {
        let driver = crate::driver::table()?;
        let name = variable.name.as_ptr();
        if variable.managed {
            (driver.cuLibraryGetManaged)(&mut address, &mut size, library, name)
        } else {
            (driver.cuLibraryGetGlobal)(&mut address, &mut size, library, name)
        }
    };
    match crate::error::check(found) {
        Err(cudaErrorSymbolNotFound) => Err(cudaErrorInvalidSymbol),
        Err(other) => Err(other),
        Ok(()) => Ok((address, if size == 0 { variable.size } else { size })),
    }
}
