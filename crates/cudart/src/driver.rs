//! The driver below: whatever libcuda.so.1 the loader finds.

use core::ffi::c_void;
use std::sync::OnceLock;

use divvy_abi::runtime::{cudaError_t, cudaErrorInsufficientDriver};
use divvy_abi::{CUDA_SUCCESS, Symbol, Table};

use crate::error::check;

/// The driver's functions, initialised. What it does not export answers `CUDA_ERROR_NOT_SUPPORTED`.
///
/// # Errors
/// `cudaErrorInsufficientDriver` without a driver; what `cuInit` says, each time again.
#[inline]
pub fn table() -> Result<&'static Table, cudaError_t> {
    static READY: OnceLock<&'static Table> = OnceLock::new();
    match READY.get() {
        Some(table) => Ok(table),
        None => {
            let table = loaded()?;
            // SAFETY: cuInit takes a number.
            check(unsafe { (table.cuInit)(0) })?;
            Ok(READY.get_or_init(|| table))
        }
    }
}

/// The driver's functions, where nothing was initialised: for the few that answer without.
///
/// # Errors
/// `cudaErrorInsufficientDriver` without a driver.
pub fn loaded() -> Result<&'static Table, cudaError_t> {
    static LOADED: OnceLock<Option<Table>> = OnceLock::new();
    LOADED
        .get_or_init(load)
        .as_ref()
        .ok_or(cudaErrorInsufficientDriver)
}

fn load() -> Option<Table> {
    crate::unsupported::listen();
    // SAFETY: the name is a C string. What the library does when it is loaded is what any program gets that is linked
    // with it.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    let mut table = Table::UNSUPPORTED;
    let fields = (&raw mut table).cast::<*mut c_void>();
    for symbol in Symbol::ALL {
        // SAFETY: the handle is open and stays open; the name is a C string.
        let address = unsafe { libc::dlsym(library, symbol.c_name().as_ptr()) };
        if !address.is_null() {
            // SAFETY: a table is one function pointer for each symbol, in the order of their numbers. The symbol's name says
            // which function it is.
            unsafe { fields.add(symbol.index()).write(address) };
        }
    }
    let mut version = 0;
    // SAFETY: the pointer is that of a number.
    let answer = unsafe { (table.cuDriverGetVersion)(&mut version) };
    (answer == CUDA_SUCCESS).then_some(table)
}
