//! Libraries and their kernels, which belong to no context.

use super::args::{Handle, In, InMut, Out, Text};
use super::current;
use super::find;
use super::module::{global, read_file, refuse};
use crate::Result;
use crate::driver::driver;
use crate::function::{attribute, set_attribute};
use crate::image::{Image, ImageError, source};
use crate::jit::JitOptions;
use crate::library::{Kernel, Library};
use divvy_abi::*;
use std::sync::Arc;

entry! {
    fn cuLibraryLoadData(
        library: Out<CUlibrary>,
        code: In<c_void>,
        options: InMut<CUjit_option>,
        values: InMut<*mut c_void>,
        count: u32,
        _library_options: InMut<CUlibraryOption>,
        _library_values: InMut<*mut c_void>,
        _library_count: u32,
    ) {
        library.required()?;
        driver()?;
        // SAFETY: the program passes option lists of `count` entries, as CUDA requires.
        let options = unsafe { JitOptions::read(count, options.pointer(), values.pointer()) };
        // SAFETY: the program passes an image, as CUDA requires.
        let image = unsafe { source::read(code.pointer()) };
        load(&library, image, &options)
    }

    fn cuLibraryLoadFromFile(
        library: Out<CUlibrary>,
        path: Text,
        options: InMut<CUjit_option>,
        values: InMut<*mut c_void>,
        count: u32,
        _library_options: InMut<CUlibraryOption>,
        _library_values: InMut<*mut c_void>,
        _library_count: u32,
    ) {
        library.required()?;
        driver()?;
        // SAFETY: the program passes option lists of `count` entries, as CUDA requires.
        let options = unsafe { JitOptions::read(count, options.pointer(), values.pointer()) };
        load(&library, Ok(read_file(path.get()?)?), &options)
    }

    fn cuLibraryUnload(library: Handle<CUlibrary>) {
        let driver = driver()?;
        let library = driver.libraries.remove(library.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        library.unload(&driver.modules);
        for kernel in library.kernels() {
            driver.kernels.remove(kernel.handle);
        }
        Ok(())
    }

    fn cuLibraryGetKernel(kernel: Out<CUkernel>, library: Handle<CUlibrary>, name: Text) {
        kernel.required()?;
        kernel.set(known(library.0)?.kernel(name.get()?)?.handle as CUkernel)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: Handle<CUlibrary>) {
        count.set(known(library.0)?.kernels().len() as u32)
    }

    fn cuLibraryEnumerateKernels(list: Out<CUkernel>, room: u32, library: Handle<CUlibrary>) {
        let library = known(library.0)?;
        list.set_list(library.kernels().map(|kernel| kernel.handle as CUkernel), room as usize)
    }

    fn cuLibraryGetModule(module: Out<CUmodule>, library: Handle<CUlibrary>) {
        module.required()?;
        let instance = known(library.0)?.instance(&current::usable()?, &driver()?.modules)?;
        module.set(instance.handle as CUmodule)
    }

    fn cuLibraryGetGlobal(address: Out<CUdeviceptr>, bytes: Out<usize>, library: Handle<CUlibrary>, name: Text) {
        global(&*known(library.0)?.instance(&current::usable()?, &driver()?.modules)?, &name, &address, &bytes)
    }

    // A managed variable is one that the host may use as well, which here is every variable.
    fn cuLibraryGetManaged(address: Out<CUdeviceptr>, bytes: Out<usize>, library: Handle<CUlibrary>, name: Text) {
        global(&*known(library.0)?.instance(&current::usable()?, &driver()?.modules)?, &name, &address, &bytes)
    }

    fn cuLibraryGetUnifiedFunction(_function: Out<*mut c_void>, library: Handle<CUlibrary>, _name: Text) {
        known(library.0)?;
        Err(CUDA_ERROR_NOT_FOUND)
    }

    fn cuKernelGetFunction(function: Out<CUfunction>, kernel: Handle<CUkernel>) {
        function.required()?;
        let found = known_kernel(kernel.0)?.function(&current::usable()?, &driver()?.modules)?;
        function.set(found.handle as CUfunction)
    }

    fn cuKernelGetLibrary(library: Out<CUlibrary>, kernel: Handle<CUkernel>) {
        let found = known_kernel(kernel.0)?.library.upgrade().ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        library.set(found.handle as CUlibrary)
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: Handle<CUkernel>) {
        name.set(find::target(kernel.0)?.c_name().as_ptr())
    }

    fn cuKernelGetAttribute(
        value: Out<i32>,
        number: CUfunction_attribute,
        kernel: Handle<CUkernel>,
        device: CUdevice,
    ) {
        let device = driver()?.device(device)?;
        value.set(attribute(&find::target(kernel.0)?, number, device)?)
    }

    fn cuKernelSetAttribute(number: CUfunction_attribute, value: i32, kernel: Handle<CUkernel>, device: CUdevice) {
        let device = driver()?.device(device)?;
        set_attribute(&find::target(kernel.0)?, number, value, device)
    }

    fn cuKernelSetCacheConfig(kernel: Handle<CUkernel>, _config: CUfunc_cache, device: CUdevice) {
        driver()?.device(device)?;
        find::target(kernel.0).map(drop)
    }

    fn cuKernelGetParamInfo(kernel: Handle<CUkernel>, index: usize, offset: Out<usize>, size: Out<usize>) {
        super::function::param_info(&find::target(kernel.0)?, index, &offset, &size)
    }

    fn cuKernelGetParamCount(kernel: Handle<CUkernel>, count: Out<usize>) {
        count.set(find::describe(&find::target(kernel.0)?, |kernel| kernel.params.len())?)
    }
}

fn known(library: u64) -> Result<Arc<Library>> {
    driver()?.libraries.get(library).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn known_kernel(kernel: u64) -> Result<Arc<Kernel>> {
    driver()?.kernels.get(kernel).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn load(out: &Out<CUlibrary>, image: std::result::Result<Image, ImageError>, options: &JitOptions) -> Result {
    let driver = driver()?;
    // A library belongs to no device; its kernels are listed as the current one sees them, else the first.
    let device = current::context().map_or_else(
        |_| Arc::clone(&driver.devices[0]),
        |context| Arc::clone(&context.device),
    );
    let library = image
        .and_then(|image| Library::new(image, device.facts.profile.sm()))
        .map_err(|why| refuse(&why, options))?;
    for kernel in library.kernels() {
        driver.kernels.insert(kernel.handle, Arc::clone(kernel));
    }
    driver.libraries.insert(library.handle, Arc::clone(&library));
    out.set(library.handle as CUlibrary)
}
