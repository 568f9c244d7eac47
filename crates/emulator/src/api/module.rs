//! Modules: loading an image into the current context, and what is in it.

use super::args::{Handle, In, InMut, Out, Text};
use super::capture::unsafe_call;
use super::current;
use crate::Result;
use crate::context::Context;
use crate::driver::driver;
use crate::image::{Image, ImageError, source};
use crate::jit::JitOptions;
use crate::module::Instance;
use divvy_abi::*;
use divvy_device::{log, notice};
use std::sync::Arc;

entry! {
    fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) {
        driver()?;
        mode.set(CU_MODULE_LAZY_LOADING)
    }

    fn cuModuleLoad(module: Out<CUmodule>, path: Text) {
        module.required()?;
        let context = current::usable()?;
        unsafe_call()?;
        let image = read_file(path.get()?)?;
        load(&module, &context, Ok(image), &JitOptions::default())
    }

    fn cuModuleLoadData(module: Out<CUmodule>, image: In<c_void>) {
        module.required()?;
        let context = current::usable()?;
        unsafe_call()?;
        // SAFETY: the program passes an image, as CUDA requires.
        let image = unsafe { source::read(image.pointer()) };
        load(&module, &context, image, &JitOptions::default())
    }

    fn cuModuleLoadDataEx(
        module: Out<CUmodule>,
        image: In<c_void>,
        count: u32,
        options: InMut<CUjit_option>,
        values: InMut<*mut c_void>,
    ) {
        module.required()?;
        let context = current::usable()?;
        unsafe_call()?;
        // SAFETY: the program passes option lists of `count` entries, as CUDA requires.
        let options = unsafe { JitOptions::read(count, options.pointer(), values.pointer()) };
        // SAFETY: the program passes an image, as CUDA requires.
        let image = unsafe { source::read(image.pointer()) };
        load(&module, &context, image, &options)
    }

    fn cuModuleLoadFatBinary(module: Out<CUmodule>, image: In<c_void>) {
        module.required()?;
        let context = current::usable()?;
        unsafe_call()?;
        // SAFETY: the program passes an image, as CUDA requires.
        let image = unsafe { source::read(image.pointer()) };
        load(&module, &context, image, &JitOptions::default())
    }

    fn cuModuleUnload(module: Handle<CUmodule>) {
        let driver = driver()?;
        let instance = known(module.0)?;
        if instance.of_library {
            return Err(CUDA_ERROR_NOT_PERMITTED);
        }
        driver.modules.loaded.remove(module.0);
        instance.unload(&driver.modules);
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<CUfunction>, module: Handle<CUmodule>, name: Text) {
        function.required()?;
        let found = known(module.0)?.function(name.get()?, &driver()?.modules)?;
        function.set(found.handle as CUfunction)
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: Handle<CUmodule>) {
        count.set(known(module.0)?.program.module().kernels().len() as u32)
    }

    fn cuModuleEnumerateFunctions(list: Out<CUfunction>, room: u32, module: Handle<CUmodule>) {
        let instance = known(module.0)?;
        let kernels = instance.program.module().kernels();
        let modules = &driver()?.modules;
        let functions: Result<Vec<_>> = kernels
            .iter()
            .take(room as usize)
            .map(|kernel| Ok(instance.function(&kernel.name, modules)?.handle as CUfunction))
            .collect();
        list.set_list(functions?.into_iter(), room as usize)
    }

    fn cuModuleGetGlobal_v2(address: Out<CUdeviceptr>, bytes: Out<usize>, module: Handle<CUmodule>, name: Text) {
        global(&*known(module.0)?, &name, &address, &bytes)
    }
}

/// Writes the address and size of a variable.
pub fn global(instance: &Instance, name: &Text, address: &Out<CUdeviceptr>, bytes: &Out<usize>) -> Result {
    let (at, size) = instance.global(name.get()?).ok_or(CUDA_ERROR_NOT_FOUND)?;
    address.set_if_wanted(at);
    bytes.set_if_wanted(size as usize);
    Ok(())
}

/// Reads an image from a file.
pub fn read_file(path: &str) -> Result<Image> {
    let bytes = std::fs::read(path).map_err(|why| {
        log::line(format_args!("cannot read {path}: {why}"));
        CUDA_ERROR_FILE_NOT_FOUND
    })?;
    source::read_bytes(&bytes).map_err(|why| refuse(&why, &JitOptions::default()))
}

/// Reports why an image is refused, everywhere the user may look.
pub fn refuse(why: &ImageError, options: &JitOptions) -> CUresult {
    log::line(format_args!("image refused: {why}"));
    if matches!(why, ImageError::NoPtx { machine_code: true }) {
        notice::machine_code();
    }
    options.report(why);
    why.code()
}

fn known(module: u64) -> Result<Arc<Instance>> {
    driver()?
        .modules
        .loaded
        .get(module)
        .ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn load(
    out: &Out<CUmodule>,
    context: &Arc<Context>,
    image: std::result::Result<Image, ImageError>,
    options: &JitOptions,
) -> Result {
    let code = image
        .and_then(|image| image.module(context.device.facts.profile.sm()))
        .map_err(|why| refuse(&why, options))?;
    context.printed.show();
    let instance = Instance::load(&code, context, false)?;
    driver()?
        .modules
        .loaded
        .insert(instance.handle, Arc::clone(&instance));
    out.set(instance.handle as CUmodule)
}
