//! Images: they arrive in parts, are measured, and then loaded.

use divvy_abi::*;

use super::arguments::Made;
use super::{Call, Stop};
use crate::handle::Kind;
use crate::image;

/// So many options may a load have.
const MOST_OPTIONS: usize = 32;

/// A part of an image: where it begins, then its bytes. The first part forgets an image that was begun before.
pub fn upload(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let at: u64 = call.message.plain()?;
    if at == 0 {
        *call.upload = Vec::new();
    }
    let part = call.message.rest();
    if at != call.upload.len() as u64 {
        return Err(Stop::Malformed);
    }
    // It grows by what has come, never by what was announced. The images of all threads together are bounded.
    let others = call.server.held.in_flight() as usize;
    if others + part.len() > call.server.quota.image {
        *call.upload = Vec::new();
        return Ok(CUDA_ERROR_OUT_OF_MEMORY);
    }
    call.upload.extend_from_slice(part);
    Ok(CUDA_SUCCESS)
}

/// The image that was sent, if it ends within what was sent. Zeros stand behind it, so that a text ends.
fn taken(call: &mut Call<'_>) -> Result<Vec<u8>, Stop> {
    let mut bytes = std::mem::take(call.upload);
    let look = &mut |at: usize, count: usize| bytes.get(at..at.checked_add(count)?);
    let length = image::measure(look, || image::text(&bytes));
    if length.is_none_or(|length| length > bytes.len()) {
        return Err(Stop::Code(CUDA_ERROR_INVALID_IMAGE));
    }
    bytes.extend_from_slice(&[0; 16]);
    Ok(bytes)
}

/// Loads a module: its name, a count of options, then key and value of each.
pub fn load(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let made = call.made(Kind::Module)?;
    let (mut keys, mut values) = options(call)?;
    call.message.end()?;
    let image = taken(call)?;
    let bytes = image::decompressed(&image);
    let context = call.current();
    let to = made.spot.pointer(call.arena.base());
    let loading = call.loading(bytes)?;
    // SAFETY: the image was measured, and is as long as its own parts say; the lists have as many entries as is said;
    // the driver writes one handle to the arena.
    let code = unsafe {
        let count = keys.len() as u32;
        (call.driver.cuModuleLoadDataEx)(
            to,
            image.as_ptr().cast(),
            count,
            keys.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    drop(loading);
    if code == CUDA_SUCCESS {
        call.enter(made, context);
        call.weigh(made, bytes);
    }
    Ok(code)
}

/// Loads a library: as a module.
pub fn load_library(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let made = call.made(Kind::Library)?;
    let (mut keys, mut values) = options(call)?;
    call.message.end()?;
    let image = taken(call)?;
    let bytes = image::decompressed(&image);
    let to = made.spot.pointer(call.arena.base());
    let loading = call.loading(bytes)?;
    let (none, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: as above. Without the option that the image stays, the driver makes a copy of it.
    let code = unsafe {
        let count = keys.len() as u32;
        let (keys, values) = (keys.as_mut_ptr(), values.as_mut_ptr());
        (call.driver.cuLibraryLoadData)(to, image.as_ptr().cast(), keys, values, count, none, nothing, 0)
    };
    drop(loading);
    if code == CUDA_SUCCESS {
        call.enter(made, None);
        call.weigh(made, bytes);
    }
    Ok(code)
}

impl Call<'_> {
    /// An object that was made holds so many bytes of an image.
    pub fn weigh(&self, made: Made, bytes: u64) {
        if let Some(id) = made.id() {
            self.server.tables().weights.add(id, bytes);
        }
    }
}

type Options = (Vec<CUjit_option>, Vec<*mut c_void>);

pub fn options(call: &mut Call<'_>) -> Result<Options, Stop> {
    let count = call.message.plain::<u32>()? as usize;
    if count > MOST_OPTIONS {
        return Err(Stop::Malformed);
    }
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let key = call.message.plain()?;
        if !image::is_number(key) {
            return Err(Stop::Malformed);
        }
        keys.push(key);
        let value: u32 = call.message.plain()?;
        values.push(std::ptr::without_provenance_mut(value as usize));
    }
    Ok((keys, values))
}
