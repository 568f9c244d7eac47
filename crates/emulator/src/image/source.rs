//! Reading an image through the pointer a program gives: the image itself says how long it is.

use super::fatbin::{self, FatbinError};
use super::readable::readable;
use super::{Image, ImageError};
use std::ffi::{CStr, c_void};

/// First word of the structure that nvcc puts around a container.
const WRAPPER_MAGIC: u32 = 0x4662_43b1;
/// The wrapper version whose last field lists further containers.
const WRAPPER_WITH_LIST: u32 = 2;
const ELF_MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");

#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const c_void,
    list: *const *const c_void,
}

/// Reads a fatbin wrapper, a fatbin container, an ELF or NUL-terminated PTX text.
///
/// # Safety
/// `image` is null or points to a whole image of one of these kinds, as cuModuleLoadData requires.
pub unsafe fn read(image: *const c_void) -> Result<Image, ImageError> {
    if image.is_null() {
        return Err(ImageError::Null);
    }
    // SAFETY: an image has at least one byte; each further byte is read only if those before it match a magic
    // number, so a short PTX text is never read beyond its NUL.
    match unsafe { magic(image.cast()) } {
        // SAFETY: the magic number says that a wrapper is here.
        Some(WRAPPER_MAGIC) => unsafe { wrapped(&*image.cast::<Wrapper>()) },
        // SAFETY: the magic number says that a container is here.
        Some(fatbin::MAGIC) => unsafe { container(image) },
        Some(ELF_MAGIC) => Ok(Image::from_elf()),
        // SAFETY: it is none of the binary kinds, so it is text with a NUL.
        _ => Ok(Image::from_text(
            unsafe { CStr::from_ptr(image.cast()) }.to_bytes(),
        )),
    }
}

/// Reads an image of known length, such as a file's contents.
pub fn read_bytes(bytes: &[u8]) -> Result<Image, ImageError> {
    match bytes.first_chunk::<4>().map(|word| u32::from_le_bytes(*word)) {
        Some(fatbin::MAGIC) => Image::from_fatbin(bytes),
        Some(ELF_MAGIC) => Ok(Image::from_elf()),
        _ => Ok(Image::from_text(bytes)),
    }
}

/// The image's first word, if it can be a magic number.
///
/// # Safety
/// As [`read`], and `image` is not null.
unsafe fn magic(image: *const u8) -> Option<u32> {
    let mut word = [0; 4];
    for (at, byte) in word.iter_mut().enumerate() {
        // SAFETY: all bytes before this one were not NUL, so the image goes on here.
        *byte = unsafe { image.add(at).read() };
        if *byte == 0 {
            return None;
        }
    }
    Some(u32::from_le_bytes(word))
}

/// # Safety
/// The wrapper's pointers are null or point to containers, as nvcc makes them.
unsafe fn wrapped(wrapper: &Wrapper) -> Result<Image, ImageError> {
    // SAFETY: promised by the caller.
    let mut image = unsafe { container(wrapper.data) }?;
    if wrapper.version == WRAPPER_WITH_LIST && !wrapper.list.is_null() {
        let mut entry = wrapper.list;
        // SAFETY: a version 2 wrapper's list ends with a null pointer.
        while let linked = unsafe { entry.read() }
            && !linked.is_null()
        {
            // SAFETY: the list holds pointers to containers.
            image.extend(unsafe { container(linked) }?);
            // SAFETY: the entry just read was not the last.
            entry = unsafe { entry.add(1) };
        }
    }
    Ok(image)
}

/// # Safety
/// `data` is null or points to a container.
unsafe fn container(data: *const c_void) -> Result<Image, ImageError> {
    if data.is_null() {
        return Err(ImageError::Null);
    }
    if !readable(data, fatbin::HEADER_BYTES) {
        return Err(FatbinError::Truncated.into());
    }
    // SAFETY: a container starts with a header of this size, and it can be read.
    let header = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), fatbin::HEADER_BYTES) };
    if u32::from_le_bytes([header[0], header[1], header[2], header[3]]) != fatbin::MAGIC {
        return Err(FatbinError::NotAFatbin.into());
    }
    let bytes = fatbin::container_bytes(header)?;
    if !readable(data, bytes) {
        return Err(FatbinError::Truncated.into());
    }
    // SAFETY: a container is as long as its header says, and all of that can be read.
    Image::from_fatbin(unsafe { std::slice::from_raw_parts(data.cast(), bytes) })
}
