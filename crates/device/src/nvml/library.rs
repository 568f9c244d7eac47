//! Initialisation, versions, error texts, and the names of processes.

use std::fs;

use divvy_abi::nvml::*;

use super::args::{In, Out};
use super::state;
use crate::log;

nvml_entry! {
    fn nvmlInit | nvmlInit_v2() {
        state::initialise()
    }

    fn nvmlInitWithFlags(_flags: u32) {
        // NO_GPUS forgives a machine without devices, which an emulated one is not; NO_ATTACH keeps from attaching to
        // devices, which is never done here.
        state::initialise()
    }

    fn nvmlShutdown() {
        state::shut_down()
    }

    fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: u32) {
        state::devices()?;
        // Divvy's own: an emulated device has no driver of NVIDIA's whose version it could claim.
        version.set_text(env!("CARGO_PKG_VERSION"), length)
    }

    fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: u32) {
        state::devices()?;
        let text = format!("{NVML_API_VERSION}.{}", env!("CARGO_PKG_VERSION"));
        version.set_text(&text, length)
    }

    fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
        version.set(divvy_abi::CUDA_VERSION as i32)
    }

    fn nvmlSystemGetProcessName(pid: u32, name: Out<c_char>, length: u32) {
        state::devices()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| NVML_ERROR_NOT_FOUND)?;
        let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(first);
        // As NVIDIA's library does, the name is cut to what fits.
        let fits = (length as usize).saturating_sub(1);
        let end = (0..=text.len().min(fits)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        name.set_text(&text[..end], length)
    }

    fn nvmlInternalGetExportTable(table: Out<*const c_void>, id: In<c_void>) {
        table.set(core::ptr::null())?;
        let id: [u8; 16] = id.get_as()?;
        log::once("nvmlInternalGetExportTable", format_args!(
            "nvmlInternalGetExportTable({id:02x?}) is refused: NVIDIA's private tables are not emulated"
        ));
        Err(NVML_ERROR_NOT_SUPPORTED)
    }

    fn nvmlUnitGetCount(count: Out<u32>) {
        state::devices()?;
        count.set(0)
    }

    fn nvmlGetExcludedDeviceCount | nvmlGetBlacklistDeviceCount(count: Out<u32>) {
        count.set(0)
    }
}

/// nvmlErrorString: the text lives for ever.
#[allow(non_snake_case)]
pub unsafe extern "C-unwind" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    result.description().as_ptr()
}
