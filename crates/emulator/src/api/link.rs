//! The linker's entry points.

use super::args::{Handle, InMut, Out, Text};
use super::current;
use super::module::refuse;
use crate::driver::driver;
use crate::image::{Image, ImageError, source};
use crate::jit::JitOptions;
use crate::link::Link;
use crate::{Result, handle};
use divvy_abi::*;
use divvy_device::log;
use std::sync::Arc;

entry! {
    fn cuLinkCreate_v2(
        count: u32,
        options: InMut<CUjit_option>,
        values: InMut<*mut c_void>,
        link: Out<CUlinkState>,
    ) {
        link.required()?;
        let sm = current::usable()?.device.facts.profile.sm();
        // SAFETY: the program passes option lists of `count` entries and keeps the log buffers until the linker
        // is destroyed, as CUDA requires.
        let options = unsafe { JitOptions::read(count, options.pointer(), values.pointer()) };
        let made = Arc::new(Link::new(handle::fresh(), sm, options));
        driver()?.links.insert(made.handle, Arc::clone(&made));
        link.set(made.handle as CUlinkState)
    }

    fn cuLinkAddData_v2(
        link: Handle<CUlinkState>,
        kind: CUjitInputType,
        data: Handle<*mut c_void>,
        size: usize,
        name: Text,
        _count: u32,
        _options: InMut<CUjit_option>,
        _values: InMut<*mut c_void>,
    ) {
        let link = known(link.0)?;
        if data.0 == 0 || size == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the program passes `size` bytes, as CUDA requires.
        let bytes = unsafe { std::slice::from_raw_parts(data.0 as *const u8, size) };
        add(&link, kind, bytes, name.get().unwrap_or("input"))
    }

    fn cuLinkAddFile_v2(
        link: Handle<CUlinkState>,
        kind: CUjitInputType,
        path: Text,
        _count: u32,
        _options: InMut<CUjit_option>,
        _values: InMut<*mut c_void>,
    ) {
        let link = known(link.0)?;
        let path = path.get()?;
        let bytes = std::fs::read(path).map_err(|why| {
            log::line(format_args!("cannot read {path}: {why}"));
            CUDA_ERROR_FILE_NOT_FOUND
        })?;
        add(&link, kind, &bytes, path)
    }

    fn cuLinkComplete(link: Handle<CUlinkState>, image: Out<*mut c_void>, size: Out<usize>) {
        image.required()?;
        let link = known(link.0)?;
        let (address, bytes) = link.complete().map_err(|why| refuse(&why, &link.options))?;
        image.set(address as *mut c_void)?;
        size.set_if_wanted(bytes);
        Ok(())
    }

    fn cuLinkDestroy(link: Handle<CUlinkState>) {
        driver()?.links.remove(link.0).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

fn known(link: u64) -> Result<Arc<Link>> {
    driver()?.links.get(link).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn add(link: &Link, kind: CUjitInputType, bytes: &[u8], name: &str) -> Result {
    // The device runtime is machine code. The engine has the parts that programs need of it.
    if kind == CU_JIT_INPUT_LIBRARY && name.contains("cudadevrt") {
        return Ok(());
    }
    let image = match kind {
        CU_JIT_INPUT_PTX => Ok(Image::from_text(bytes)),
        // PTX, which an earlier link gave out as machine code.
        CU_JIT_INPUT_CUBIN | CU_JIT_INPUT_FATBINARY | CU_JIT_INPUT_OBJECT => source::read_bytes(bytes),
        _ => Err(ImageError::NoPtx { machine_code: true }),
    };
    image.and_then(|image| link.add(&image)).map_err(|why| {
        log::line(format_args!("linker input {name}:"));
        refuse(&why, &link.options)
    })
}
