//! Initialisation, version, error texts, profiler switches, and what is refused outright.

use super::args::{In, Out};
use crate::driver;
use divvy_abi::*;
use divvy_device::{log, notice};

entry! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver::initialise()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(CUDA_VERSION as i32)
    }

    fn cuGetErrorName(error: CUresult, text: Out<*const c_char>) {
        text.set(error.name().map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
        error.name().map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn cuGetErrorString(error: CUresult, text: Out<*const c_char>) {
        text.set(error.description().map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
        error.description().map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn cuGetExportTable(table: Out<*const c_void>, id: In<CUuuid>) {
        let id = id.get()?;
        table.set(std::ptr::null())?;
        let bytes = id.bytes.map(|byte| byte as u8);
        log::once("cuGetExportTable", format_args!(
            "cuGetExportTable({bytes:02x?}) is refused: NVIDIA's private tables, among them its authenticity \
             challenge, are not answered by an emulated device; `divvy explain D0071` says what to do"
        ));
        notice::runtime();
        Err(CUDA_ERROR_NOT_SUPPORTED)
    }

    fn cuProfilerStart | cuProfilerStop() {
        driver::driver().map(drop)
    }
}
