//! Memory and events of other processes.

use core::ffi::c_void;

use crate::prelude::*;

entry! {
    cudaIpcGetMemHandle(handle: *mut cudaIpcMemHandle_t, devPtr: *mut c_void) {
        context()?;
        // Handles are 64 bytes in both interfaces.
        cu!(cuIpcGetMemHandle(handle.cast(), devPtr as CUdeviceptr));
        Ok(())
    }

    cudaIpcOpenMemHandle(devPtr: *mut *mut c_void, handle: cudaIpcMemHandle_t, flags: u32) {
        refuse(devPtr.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let mut address = 0;
        cu!(cuIpcOpenMemHandle_v2(&mut address, CUipcMemHandle { reserved: handle.reserved }, flags));
        *devPtr = address as *mut c_void;
        Ok(())
    }

    cudaIpcCloseMemHandle(devPtr: *mut c_void) {
        context()?;
        cu!(cuIpcCloseMemHandle(devPtr as CUdeviceptr));
        Ok(())
    }

    cudaIpcGetEventHandle(handle: *mut cudaIpcEventHandle_t, event: cudaEvent_t) {
        context()?;
        cu!(cuIpcGetEventHandle(handle.cast(), event));
        Ok(())
    }

    cudaIpcOpenEventHandle(event: *mut cudaEvent_t, handle: cudaIpcEventHandle_t) {
        context()?;
        cu!(cuIpcOpenEventHandle(event, CUipcEventHandle { reserved: handle.reserved }));
        Ok(())
    }
}
