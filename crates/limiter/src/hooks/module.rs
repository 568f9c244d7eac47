//! Modules and libraries: their variables.
#![allow(non_snake_case)]

use core::ffi::{CStr, c_char};

use divvy_abi::{CUjit_option, CUlibrary, CUlibraryOption, CUmodule, CUresult, c_void, guard};

use crate::account;
use crate::below::forward;
use crate::books::holdings::Holdings;
use crate::books::images::{self, Variables};

/// Files longer than this are left to the driver alone.
const LONGEST_FILE: u64 = 64 << 20;

fn loaded(
    holdings: &Holdings,
    variables: impl FnOnce() -> Variables,
    call: impl Fn() -> CUresult,
    handle: impl Fn() -> usize,
) -> CUresult {
    match account::current() {
        Ok(Some(account)) if account::keeps_books() => match variables() {
            Variables { bytes: 0, .. } => call(),
            Variables { bytes, pieces } => holdings.made_of(account, bytes, pieces, call, handle),
        },
        Ok(_) => call(),
        Err(code) => code,
    }
}

/// # Safety
/// `image` is null or an image as a driver takes it.
unsafe fn at(image: *const c_void) -> Variables {
    // SAFETY: the caller's promise.
    unsafe { images::variables_at(image.cast()) }
}

/// # Safety
/// `name` is null or a C string.
unsafe fn in_file(name: *const c_char) -> Variables {
    use std::os::unix::ffi::OsStrExt as _;
    if name.is_null() {
        return Variables::default();
    }
    // SAFETY: the caller's promise.
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(
        unsafe { CStr::from_ptr(name) }.to_bytes(),
    ));
    let short = std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= LONGEST_FILE);
    if !short {
        return Variables::default();
    }
    std::fs::read(path).map_or_else(|_| Variables::default(), |image| images::variables_in(&image))
}

macro_rules! loads {
    ($($name:ident($out:ty, $image:ident: $of:ty $(, $argument:ident: $argument_type:ty)*) by $how:ident into $holdings:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(
            out: *mut $out,
            $image: $of
            $(, $argument: $argument_type)*
        ) -> CUresult {
            guard(|| {
                loaded(
                    &images::$holdings,
                    // SAFETY: what the program gives the driver as an image, or a file's name.
                    || unsafe { $how($image) },
                    // SAFETY: the arguments are handed on as they came.
                    || unsafe { forward::$name(out, $image $(, $argument)*) },
                    // SAFETY: read only after the driver said that it filled it in.
                    || unsafe { out.read() as usize },
                )
            })
        })*
    };
}

loads! {
    cuModuleLoad(CUmodule, name: *const c_char) by in_file into MODULES;
    cuModuleLoadData(CUmodule, image: *const c_void) by at into MODULES;
    cuModuleLoadDataEx(CUmodule, image: *const c_void, count: u32, options: *mut CUjit_option, values: *mut *mut c_void) by at into MODULES;
    cuModuleLoadFatBinary(CUmodule, image: *const c_void) by at into MODULES;
    cuLibraryLoadData(CUlibrary, image: *const c_void, options: *mut CUjit_option, values: *mut *mut c_void, count: u32, more: *mut CUlibraryOption, more_values: *mut *mut c_void, more_count: u32) by at into LIBRARIES;
    cuLibraryLoadFromFile(CUlibrary, name: *const c_char, options: *mut CUjit_option, values: *mut *mut c_void, count: u32, more: *mut CUlibraryOption, more_values: *mut *mut c_void, more_count: u32) by in_file into LIBRARIES;
}

macro_rules! unloads {
    ($($name:ident($of:ty) from $holdings:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(handle: $of) -> CUresult {
            guard(|| {
                // SAFETY: the argument is handed on as it came.
                images::$holdings.ended(handle as usize, || unsafe { forward::$name(handle) })
            })
        })*
    };
}

unloads! {
    cuModuleUnload(CUmodule) from MODULES;
    cuLibraryUnload(CUlibrary) from LIBRARIES;
}
