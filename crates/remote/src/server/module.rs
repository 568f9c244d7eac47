//! Images: they arrive in parts, are measured, and then loaded.

use core::ffi::CStr;

use divvy_abi::*;

use super::arguments::Used;
use super::{Call, Stop, launch};
use crate::handle::{Id, Kind, Word};
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
    if let Some(id) = made.id().filter(|_| code == CUDA_SUCCESS) {
        call.enter(made, context);
        loading.held_by(id);
        // Another thread may unload it at once: the client chose its name.
        if let Ok(module) = call.real(Kind::Module, id.bits()) {
            tell_functions(call, Some(id), module);
        }
    }
    Ok(code)
}

/// Functions of a module that are told with its load: of larger modules a program uses few, and each that is looked at
/// may be loaded by that.
const MOST_FUNCTIONS: u32 = 16;

/// Tells of the functions of a small module: a mark, the name, the object and what a launch needs for each, then the mark
/// that no more follow. A driver before CUDA 12.4 lists none.
fn tell_functions(call: &mut Call<'_>, module: Option<Id>, real: u64) {
    let driver = call.driver;
    let mut count = 0;
    let mut functions: [CUfunction; MOST_FUNCTIONS as usize] = [std::ptr::null_mut(); _];
    // SAFETY: the module is the driver's; the list has room for as many functions as are asked for.
    let known = unsafe {
        let module: CUmodule = Word::from_bits(real);
        (driver.cuModuleGetFunctionCount)(&raw mut count, module) == CUDA_SUCCESS
            && count <= MOST_FUNCTIONS
            && (driver.cuModuleEnumerateFunctions)(functions.as_mut_ptr(), count, module) == CUDA_SUCCESS
    };
    for function in functions.iter().take(if known { count as usize } else { 0 }) {
        let mut name = std::ptr::null();
        // SAFETY: the function is the driver's, which writes an address to memory of ours; a name is a C string of the
        // driver's, and stays as long as the function.
        let name = unsafe {
            match (driver.cuFuncGetName)(&raw mut name, *function) {
                CUDA_SUCCESS if !name.is_null() => CStr::from_ptr(name).to_bytes(),
                _ => break,
            }
        };
        let real = function.bits();
        let Some(found) = call.server.tables().objects.found(Kind::Function, real, module) else {
            break;
        };
        let used = Used::new(found, real);
        let Ok(layout) = launch::of(call, used) else {
            break;
        };
        // The marks, the name and the object.
        if 2 + 4 + name.len() + 8 + layout.told_bytes() > call.answer.left() {
            break;
        }
        call.answer.flag(true);
        call.answer.count(Some(name.len()));
        call.answer.bytes(name);
        call.answer.plain(found);
        launch::tell(call, used, &layout);
    }
    if call.answer.left() > 0 {
        call.answer.flag(false);
    }
}

/// A function of a module: the module and the name. The answer is the object, whether it is known what a launch needs, and
/// that.
pub fn function(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let module = call.handle(Kind::Module)?;
    let name = call.string()?;
    call.message.end()?;
    let spot = call.arena.zeros(8)?;
    let base = call.arena.base();
    // SAFETY: the module is the driver's, the name a C string in the arena, and the driver writes one handle there.
    let code = unsafe {
        (call.driver.cuModuleGetFunction)(
            spot.pointer(base),
            Word::from_bits(module.real),
            name.pointer::<c_char>(base).cast_const(),
        )
    };
    if code != CUDA_SUCCESS {
        return Ok(code);
    }
    let real = call.arena.word(spot);
    let found = call
        .server
        .tables()
        .objects
        .found(Kind::Function, real, module.id());
    let found = found.ok_or(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY))?;
    let used = Used::new(found, real);
    let layout = launch::of(call, used).ok();
    let layout = layout.filter(|layout| 8 + 1 + layout.told_bytes() <= call.answer.left());
    call.answer.plain(found);
    call.answer.flag(layout.is_some());
    if let Some(layout) = layout {
        launch::tell(call, used, &layout);
    }
    Ok(CUDA_SUCCESS)
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
    if let Some(id) = made.id().filter(|_| code == CUDA_SUCCESS) {
        call.enter(made, None);
        loading.held_by(id);
    }
    Ok(code)
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
