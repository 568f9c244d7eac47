//! Modules and libraries: their variables.
#![allow(non_snake_case)]

use core::ffi::{CStr, c_char};

use divvy_abi::{CUjit_option, CUlibrary, CUlibraryOption, CUmodule, CUresult, c_void, guard};
use divvy_charges::Kind;
use divvy_charges::images::{CONTAINER, ELF, Variables, variables_in};

use crate::account;
use crate::below::forward;
use crate::charges::CHARGES;

const WRAPPER: u32 = 0x4662_43b1;
/// Longest image that is inspected.
const LONGEST: usize = 1 << 30;
/// Files longer than this go to the driver uninspected.
const LONGEST_FILE: u64 = 64 << 20;

fn loaded(
    kind: Kind,
    variables: impl FnOnce() -> Variables,
    call: impl Fn() -> CUresult,
    handle: impl Fn() -> usize,
) -> CUresult {
    match account::current() {
        Ok(Some(account)) if account::keeps_charges() => match variables() {
            Variables { bytes: 0, .. } => call(),
            Variables { bytes, allocations } => {
                CHARGES.make_object(kind, account, (bytes, allocations), call, handle)
            }
        },
        Ok(_) => call(),
        Err(code) => code,
    }
}

/// The size of the variables in the image at `image`.
///
/// # Safety
/// `image` is null or an image as a driver takes it: a fatbin's wrapper or container, an ELF file, or text with a
/// closing NUL.
unsafe fn at(image: *const c_void) -> Variables {
    let image = image.cast::<u8>();
    if image.is_null() {
        return Variables::default();
    }
    // It compares byte by byte up to the first difference, as text may end anywhere.
    // SAFETY: the caller's promise: no byte is read behind a text's NUL.
    let begins = |magic: &[u8]| (0..magic.len()).all(|at| unsafe { image.add(at).read() } == magic[at]);
    // SAFETY: the caller's promise: an image with this beginning has a header, and a driver relies on its lengths as
    // well.
    unsafe {
        if begins(ELF) {
            let sections = image.add(0x28).cast::<u64>().read_unaligned();
            let count = image.add(0x3c).cast::<u16>().read_unaligned();
            let length = sections.saturating_add(u64::from(count) * 64);
            let length = usize::try_from(length).unwrap_or(LONGEST).min(LONGEST);
            variables_in(core::slice::from_raw_parts(image, length))
        } else if begins(&WRAPPER.to_le_bytes()) {
            at(image.add(8).cast::<*const c_void>().read_unaligned())
        } else if begins(&CONTAINER.to_le_bytes()) {
            let header = usize::from(image.add(6).cast::<u16>().read_unaligned());
            let files = usize::try_from(image.add(8).cast::<u64>().read_unaligned()).unwrap_or(0);
            let length = header.saturating_add(files).min(LONGEST);
            variables_in(core::slice::from_raw_parts(image, length))
        } else if image.read() < 0x80 {
            variables_in(CStr::from_ptr(image.cast()).to_bytes())
        } else {
            Variables::default()
        }
    }
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
    std::fs::read(path).map_or_else(|_| Variables::default(), |image| variables_in(&image))
}

macro_rules! loads {
    ($($name:ident($out:ty, $image:ident: $of:ty $(, $argument:ident: $argument_type:ty)*) by $how:ident into $kind:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(
            out: *mut $out,
            $image: $of
            $(, $argument: $argument_type)*
        ) -> CUresult {
            guard(|| {
                loaded(
                    Kind::$kind,
                    // SAFETY: the program's own argument: an image, or a file's name.
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
    cuModuleLoad(CUmodule, name: *const c_char) by in_file into Module;
    cuModuleLoadData(CUmodule, image: *const c_void) by at into Module;
    cuModuleLoadDataEx(CUmodule, image: *const c_void, count: u32, options: *mut CUjit_option, values: *mut *mut c_void) by at into Module;
    cuModuleLoadFatBinary(CUmodule, image: *const c_void) by at into Module;
    cuLibraryLoadData(CUlibrary, image: *const c_void, options: *mut CUjit_option, values: *mut *mut c_void, count: u32, more: *mut CUlibraryOption, more_values: *mut *mut c_void, more_count: u32) by at into Library;
    cuLibraryLoadFromFile(CUlibrary, name: *const c_char, options: *mut CUjit_option, values: *mut *mut c_void, count: u32, more: *mut CUlibraryOption, more_values: *mut *mut c_void, more_count: u32) by in_file into Library;
}

macro_rules! unloads {
    ($($name:ident($of:ty) from $kind:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(handle: $of) -> CUresult {
            guard(|| {
                // SAFETY: the argument is handed on as it came.
                CHARGES.end_object(Kind::$kind, handle as usize, || unsafe { forward::$name(handle) })
            })
        })*
    };
}

unloads! {
    cuModuleUnload(CUmodule) from Module;
    cuLibraryUnload(CUlibrary) from Library;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_read_as_far_as_their_headers_say() {
        // SAFETY: by the arguments below.
        let bytes_at = |image: *const u8| unsafe { at(image.cast()) }.bytes;
        let mut cubin = vec![0; 64 + 64];
        cubin[..4].copy_from_slice(ELF);
        cubin[0x28] = 64;
        cubin[0x3a] = 64;
        cubin[0x3c] = 1;
        cubin[64 + 8] = 2;
        cubin[64 + 32] = 120;
        // The length comes from its header; also below.
        assert_eq!(bytes_at(cubin.as_ptr()), 120);
        let mut fatbin = vec![0; 16 + 64];
        fatbin[..4].copy_from_slice(&CONTAINER.to_le_bytes());
        fatbin[6] = 16;
        fatbin[16 + 4] = 64;
        fatbin[16 + 8] = cubin.len() as u8;
        fatbin[8] = (64 + cubin.len()) as u8;
        fatbin.extend_from_slice(&cubin);
        assert_eq!(bytes_at(fatbin.as_ptr()), 120);
        let mut wrapper = [0; 16];
        wrapper[..4].copy_from_slice(&WRAPPER.to_le_bytes());
        wrapper[8..].copy_from_slice(&(fatbin.as_ptr() as u64).to_le_bytes());
        assert_eq!(bytes_at(wrapper.as_ptr()), 120);
        // Text ends in its NUL.
        assert_eq!(bytes_at(c".global .b8 x[77];".as_ptr().cast()), 77);
        assert_eq!(bytes_at(core::ptr::null()), 0);
    }
}
