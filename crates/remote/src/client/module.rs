//! Images of modules: measured, sent in parts, then loaded.
#![allow(non_snake_case)]

use core::ffi::CStr;

use divvy_abi::*;

use super::arguments::write_name;
use super::{function, new_name, thread};
use crate::handle::Kind;
use crate::image;
use crate::wire::by_hand::{LIBRARY_LOAD, MODULE_LOAD, UPLOAD};
use crate::wire::{HEADER_BYTES, Writer};

/// Where an image lies and how long it is.
///
/// # Safety
/// `image` is an image of a form that CUDA takes.
unsafe fn measured<'a>(image: *const c_void) -> Option<&'a [u8]> {
    let mut start = image.cast::<u8>();
    if start.is_null() {
        return None;
    }
    // SAFETY: an image is as long as its own header says, and that is what is looked at.
    let mut look =
        |at: usize, count: usize| Some(unsafe { std::slice::from_raw_parts(start.wrapping_add(at), count) });
    if image::begins(&mut look, image::WRAPPER) {
        let address = look(8, size_of::<usize>())?;
        start = std::ptr::with_exposed_provenance(usize::from_ne_bytes(address.try_into().ok()?));
    }
    // SAFETY: as above, and a text ends with a zero.
    unsafe {
        let mut look =
            |at: usize, count: usize| Some(std::slice::from_raw_parts(start.wrapping_add(at), count));
        let text = || Some(CStr::from_ptr(start.cast()).to_bytes_with_nul().len());
        let length = image::measure(&mut look, text)?;
        Some(std::slice::from_raw_parts(start, length))
    }
}

/// Sends an image, without waiting.
pub fn upload(symbol: Symbol, image: &[u8]) -> CUresult {
    let most = match thread::capacity() {
        Ok(capacity) => capacity.saturating_sub(HEADER_BYTES + 8).max(1),
        Err(code) => return code,
    };
    for (index, part) in image.chunks(most).enumerate() {
        let put = |m: &mut Writer<'_>| {
            m.plain((index * most) as u64);
            m.bytes(part);
        };
        let code = thread::submit(UPLOAD, symbol, put, |_, _| Ok(()));
        if code != CUDA_SUCCESS {
            return code;
        }
    }
    CUDA_SUCCESS
}

/// The options of a load that the server needs, as numbers.
///
/// # Safety
/// Both lists have so many entries.
pub unsafe fn options(
    count: u32,
    keys: *mut CUjit_option,
    values: *mut *mut c_void,
) -> Result<Vec<(CUjit_option, u32)>, CUresult> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if keys.is_null() || values.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut all = Vec::new();
    for at in 0..count as usize {
        // SAFETY: the caller vouches for the lists.
        let (key, value) = unsafe { (keys.add(at).read(), values.add(at)) };
        // SAFETY: as above.
        let word = unsafe { value.read() };
        match key {
            // Logs stay here, and are empty: the sizes are written over the values, as CUDA does.
            CU_JIT_INFO_LOG_BUFFER | CU_JIT_ERROR_LOG_BUFFER => {
                if !word.is_null() {
                    // SAFETY: a buffer of the program's; of no bytes it is null.
                    unsafe { word.cast::<u8>().write(0) };
                }
            }
            // SAFETY: as above.
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES | CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES | CU_JIT_WALL_TIME => unsafe {
                value.write(std::ptr::null_mut());
            },
            key if image::is_number(key) => all.push((key, word.addr() as u32)),
            _ => return Err(CUDA_ERROR_NOT_SUPPORTED),
        }
    }
    Ok(all)
}

fn put(m: &mut Writer<'_>, name: u64, options: &[(CUjit_option, u32)]) {
    m.plain(name);
    put_options(m, options);
}

/// A count, then key and value of each.
pub fn put_options(m: &mut Writer<'_>, options: &[(CUjit_option, u32)]) {
    m.plain(options.len() as u32);
    for (key, value) in options {
        m.plain(*key);
        m.plain(*value);
    }
}

/// # Safety
/// As NVIDIA's reference says of cuModuleLoadDataEx.
unsafe fn load(
    symbol: Symbol,
    module: *mut CUmodule,
    image: *const c_void,
    count: u32,
    keys: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the program vouches for its image and its lists.
    let (image, options) = unsafe { (measured(image), options(count, keys, values)) };
    let (Some(image), false) = (image, module.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    let options = match options {
        Ok(options) => options,
        Err(code) => return code,
    };
    let sent = upload(symbol, image);
    if sent != CUDA_SUCCESS {
        return sent;
    }
    let name = new_name(Kind::Module);
    thread::call(
        MODULE_LOAD,
        symbol,
        |m| put(m, name, &options),
        |m, good| {
            if good {
                function::take_list(m, name)?;
                // SAFETY: the program vouches for its pointer.
                unsafe { write_name(module, name) };
            }
            Ok(())
        },
    )
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    let (keys, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the program vouches for its arguments.
    unsafe { load(Symbol::cuModuleLoadData, module, image, 0, keys, values) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuModuleLoadFatBinary(
    module: *mut CUmodule,
    fatCubin: *const c_void,
) -> CUresult {
    let (keys, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the program vouches for its arguments.
    unsafe { load(Symbol::cuModuleLoadFatBinary, module, fatCubin, 0, keys, values) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the program vouches for its arguments.
    unsafe {
        load(
            Symbol::cuModuleLoadDataEx,
            module,
            image,
            numOptions,
            options,
            optionValues,
        )
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuLibraryLoadData(
    library: *mut CUlibrary,
    code: *const c_void,
    jitOptions: *mut CUjit_option,
    jitOptionsValues: *mut *mut c_void,
    numJitOptions: u32,
    // They say that the image stays where it is, and how functions are named: it does not stay.
    _libraryOptions: *mut CUlibraryOption,
    _libraryOptionValues: *mut *mut c_void,
    _numLibraryOptions: u32,
) -> CUresult {
    const SYMBOL: Symbol = Symbol::cuLibraryLoadData;
    // SAFETY: the program vouches for its image and its lists.
    let (image, options) = unsafe {
        (
            measured(code),
            options(numJitOptions, jitOptions, jitOptionsValues),
        )
    };
    let (Some(image), false) = (image, library.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    let options = match options {
        Ok(options) => options,
        Err(code) => return code,
    };
    let sent = upload(SYMBOL, image);
    if sent != CUDA_SUCCESS {
        return sent;
    }
    let name = new_name(Kind::Library);
    thread::call(
        LIBRARY_LOAD,
        SYMBOL,
        |m| put(m, name, &options),
        |_, good| {
            if good {
                // SAFETY: the program vouches for its pointer.
                unsafe { write_name(library, name) };
            }
            Ok(())
        },
    )
}
