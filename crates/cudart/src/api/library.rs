//! Libraries of device code that a program loads itself.

use core::ffi::{c_char, c_void};

use crate::prelude::*;
use crate::registry;

entry! {
    cudaLibraryLoadData(
        library: *mut cudaLibrary_t, code: *const c_void, jitOptions: *mut cudaJitOption,
        jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut cudaLibraryOption,
        libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32,
    ) {
        context()?;
        cu!(cuLibraryLoadData(
            library, code, jitOptions.cast(), jitOptionsValues, numJitOptions, libraryOptions.cast(),
            libraryOptionValues, numLibraryOptions
        ));
        Ok(())
    }

    cudaLibraryLoadFromFile(
        library: *mut cudaLibrary_t, fileName: *const c_char, jitOptions: *mut cudaJitOption,
        jitOptionsValues: *mut *mut c_void, numJitOptions: u32, libraryOptions: *mut cudaLibraryOption,
        libraryOptionValues: *mut *mut c_void, numLibraryOptions: u32,
    ) {
        context()?;
        cu!(cuLibraryLoadFromFile(
            library, fileName, jitOptions.cast(), jitOptionsValues, numJitOptions, libraryOptions.cast(),
            libraryOptionValues, numLibraryOptions
        ));
        Ok(())
    }

    cudaLibraryUnload(library: cudaLibrary_t) {
        context()?;
        cu!(cuLibraryUnload(library));
        Ok(())
    }

    cudaLibraryGetKernel(pKernel: *mut cudaKernel_t, library: cudaLibrary_t, name: *const c_char) {
        refuse(pKernel.is_null(), cudaErrorInvalidValue)?;
        cu!(cuLibraryGetKernel(pKernel, library, name));
        registry::given(*pKernel);
        Ok(())
    }

    cudaLibraryGetGlobal(dptr: *mut *mut c_void, bytes: *mut usize, library: cudaLibrary_t, name: *const c_char) {
        refuse(dptr.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let (mut address, mut size) = (0, 0);
        cu!(cuLibraryGetGlobal(&mut address, &mut size, library, name));
        *dptr = address as *mut c_void;
        if !bytes.is_null() {
            *bytes = size;
        }
        Ok(())
    }

    cudaLibraryGetManaged(dptr: *mut *mut c_void, bytes: *mut usize, library: cudaLibrary_t, name: *const c_char) {
        refuse(dptr.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let (mut address, mut size) = (0, 0);
        cu!(cuLibraryGetManaged(&mut address, &mut size, library, name));
        *dptr = address as *mut c_void;
        if !bytes.is_null() {
            *bytes = size;
        }
        Ok(())
    }

    cudaLibraryGetUnifiedFunction(fptr: *mut *mut c_void, library: cudaLibrary_t, symbol: *const c_char) {
        cu!(cuLibraryGetUnifiedFunction(fptr, library, symbol));
        Ok(())
    }

    cudaLibraryGetKernelCount(count: *mut u32, lib: cudaLibrary_t) {
        cu!(cuLibraryGetKernelCount(count, lib));
        Ok(())
    }

    cudaLibraryEnumerateKernels(kernels: *mut cudaKernel_t, numKernels: u32, lib: cudaLibrary_t) {
        refuse(kernels.is_null(), cudaErrorInvalidValue)?;
        cu!(cuLibraryEnumerateKernels(kernels, numKernels, lib));
        for at in 0..numKernels as usize {
            let kernel = *kernels.add(at);
            if !kernel.is_null() {
                registry::given(kernel);
            }
        }
        Ok(())
    }
}
