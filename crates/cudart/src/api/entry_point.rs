//! Versions, the driver's own functions, and the profiler's switch.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

use crate::prelude::*;

/// The releases whose headers the tables come from.
const VERSION_12: i32 = 12_090;
const VERSION_13: i32 = 13_050;

/// The driver's function of a name: that of `version`, of the thread's own null stream where `per_thread`.
///
/// # Safety
/// As cudaGetDriverEntryPoint asks.
unsafe fn find(
    name: *const c_char,
    function: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut cudaDriverEntryPointQueryResult,
    per_thread: bool,
) -> Result<()> {
    refuse(name.is_null() || function.is_null(), cudaErrorInvalidValue)?;
    let flags = if flags == 0 && per_thread { 2 } else { flags };
    // SAFETY: the name is a C string, as the caller vouches; the status is a number in both interfaces.
    unsafe {
        *function = null_mut();
        let mut found = CU_GET_PROC_ADDRESS_SUCCESS;
        let driver = crate::driver::loaded()?;
        let answer = (driver.cuGetProcAddress_v2)(name, function, version, flags, &mut found);
        if !status.is_null() {
            *status = cudaDriverEntryPointQueryResult(found.0);
        }
        match answer {
            // Not there is an answer, told by the status.
            CUDA_ERROR_NOT_FOUND if !status.is_null() => Ok(()),
            other => crate::error::check(other),
        }
    }
}

macro_rules! find_by_version {
    ($($name:ident $version:ident $per_thread:literal;)*) => {
        entry! {
            $($name(
                symbol: *const c_char, funcPtr: *mut *mut c_void, flags: u64,
                driverStatus: *mut cudaDriverEntryPointQueryResult,
            ) {
                find(symbol, funcPtr, $version, flags, driverStatus, $per_thread)
            })*
        }
    };
}

find_by_version! {
    cudaGetDriverEntryPoint VERSION_13 false;
    cudaGetDriverEntryPoint_ptsz VERSION_13 true;
    cudaGetDriverEntryPoint_12 VERSION_12 false;
    cudaGetDriverEntryPoint_12_ptsz VERSION_12 true;
}

entry! {
    cudaGetDriverEntryPointByVersion(
        symbol: *const c_char, funcPtr: *mut *mut c_void, cudaVersion: u32, flags: u64,
        driverStatus: *mut cudaDriverEntryPointQueryResult,
    ) {
        find(symbol, funcPtr, cudaVersion as i32, flags, driverStatus, false)
    }

    cudaGetDriverEntryPointByVersion_ptsz(
        symbol: *const c_char, funcPtr: *mut *mut c_void, cudaVersion: u32, flags: u64,
        driverStatus: *mut cudaDriverEntryPointQueryResult,
    ) {
        find(symbol, funcPtr, cudaVersion as i32, flags, driverStatus, true)
    }

    cudaRuntimeGetVersion(runtimeVersion: *mut i32) {
        refuse(runtimeVersion.is_null(), cudaErrorInvalidValue)?;
        *runtimeVersion = VERSION_13;
        Ok(())
    }

    cudaRuntimeGetVersion_12(runtimeVersion: *mut i32) {
        refuse(runtimeVersion.is_null(), cudaErrorInvalidValue)?;
        *runtimeVersion = VERSION_12;
        Ok(())
    }

    cudaDriverGetVersion(driverVersion: *mut i32) {
        refuse(driverVersion.is_null(), cudaErrorInvalidValue)?;
        // Without a driver the answer is 0, and no error.
        *driverVersion = 0;
        if let Ok(driver) = crate::driver::loaded() {
            crate::error::check((driver.cuDriverGetVersion)(driverVersion))?;
        }
        Ok(())
    }

    cudaGetExportTable(_ppExportTable: *mut *const c_void, _pExportTableId: *const cudaUUID_t) {
        // NVIDIA's private tables belong to NVIDIA's runtime.
        Err(cudaErrorNotSupported)
    }

    cudaProfilerStart() {
        context()?;
        cu!(cuProfilerStart());
        Ok(())
    }

    cudaProfilerStop() {
        context()?;
        cu!(cuProfilerStop());
        Ok(())
    }
}
