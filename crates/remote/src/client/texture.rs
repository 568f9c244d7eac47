//! Texture and surface objects. A kernel gets such an object as a number among its parameters, whose kinds no side knows.
//! So an object goes by the driver's own number, and not by a name; the server knows which ones are the program's.
#![allow(non_snake_case)]

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_abi::*;

use super::{start, thread};
use crate::fork::OfProcess;
use crate::handle::Word;
use crate::wire::Writer;
use crate::wire::by_hand::{TEXTURE_CREATE, TEXTURE_DESTROY};

/// What a program said of an object, with the names that it knows.
#[derive(Clone, Copy)]
struct Object {
    resource: CUDA_RESOURCE_DESC,
    sampling: Option<CUDA_TEXTURE_DESC>,
    view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

// SAFETY: the handles in it are numbers here, which nothing is read through.
unsafe impl Send for Object {}

/// Objects by whether they are surfaces, and by their numbers.
static KNOWN: OfProcess<Mutex<HashMap<(bool, u64), Object>>> = OfProcess::new();

fn known() -> MutexGuard<'static, HashMap<(bool, u64), Object>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The resource's kind and five numbers: what it names, format, channels, and its sizes.
fn put_resource(m: &mut Writer<'_>, resource: &CUDA_RESOURCE_DESC) {
    m.plain(resource.resType.0);
    m.plain(resource.flags);
    // SAFETY: the kind says which member the program has set; any bits are a value of each.
    let words: [u64; 6] = unsafe {
        match resource.resType {
            CU_RESOURCE_TYPE_ARRAY => [resource.res.array.hArray.bits(), 0, 0, 0, 0, 0],
            CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => [resource.res.mipmap.hMipmappedArray.bits(), 0, 0, 0, 0, 0],
            CU_RESOURCE_TYPE_LINEAR => {
                let of = resource.res.linear;
                let format = of.format.0.into();
                [
                    of.devPtr,
                    format,
                    of.numChannels.into(),
                    of.sizeInBytes as u64,
                    0,
                    0,
                ]
            }
            CU_RESOURCE_TYPE_PITCH2D => {
                let of = resource.res.pitch2D;
                let sizes = [of.width as u64, of.height as u64, of.pitchInBytes as u64];
                [
                    of.devPtr,
                    of.format.0.into(),
                    of.numChannels.into(),
                    sizes[0],
                    sizes[1],
                    sizes[2],
                ]
            }
            // The server refuses the kind.
            _ => [0; 6],
        }
    };
    for word in words {
        m.plain(word);
    }
}

/// # Safety
/// `from` is null or may be read.
unsafe fn put_optional<T>(m: &mut Writer<'_>, from: *const T) {
    m.flag(!from.is_null());
    if !from.is_null() {
        // SAFETY: promised by the caller.
        unsafe { m.copy(from.cast(), size_of::<T>()) };
    }
}

/// # Safety
/// The pointers are null or those of the driver's function.
unsafe fn create(
    symbol: Symbol,
    is_surface: bool,
    to: *mut u64,
    resource: *const CUDA_RESOURCE_DESC,
    sampling: *const CUDA_TEXTURE_DESC,
    view: *const CUDA_RESOURCE_VIEW_DESC,
) -> CUresult {
    // SAFETY: promised by the caller.
    let (of, sampled, viewed) = unsafe { (resource.as_ref(), sampling.as_ref(), view.as_ref()) };
    let Some(of) = of.filter(|_| !to.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    let mut object = 0;
    let code = thread::call(
        TEXTURE_CREATE,
        symbol,
        |m| {
            m.flag(is_surface);
            put_resource(m, of);
            // SAFETY: promised by the caller.
            unsafe {
                put_optional(m, sampling);
                put_optional(m, view);
            }
        },
        |m, good| {
            if good {
                object = m.plain()?;
            }
            Ok(())
        },
    );
    if code == CUDA_SUCCESS {
        let said = Object {
            resource: *of,
            sampling: sampled.copied(),
            view: viewed.copied(),
        };
        known().insert((is_surface, object), said);
        // SAFETY: promised by the caller, and it is not null.
        unsafe { to.write(object) };
    }
    code
}

fn destroy(symbol: Symbol, is_surface: bool, object: u64) -> CUresult {
    let put = |m: &mut Writer<'_>| {
        m.flag(is_surface);
        m.plain(object);
    };
    let code = thread::call(TEXTURE_DESTROY, symbol, put, |_, _| Ok(()));
    if code == CUDA_SUCCESS {
        known().remove(&(is_surface, object));
    }
    code
}

/// Answers what the program said of an object.
///
/// # Safety
/// `to` is null or may be written.
unsafe fn told<T>(
    is_surface: bool,
    object: u64,
    to: *mut T,
    member: impl FnOnce(&Object) -> Option<T>,
) -> CUresult {
    if let Err(code) = start::require_here() {
        return code;
    }
    let found = known().get(&(is_surface, object)).and_then(member);
    match found.filter(|_| !to.is_null()) {
        Some(found) => {
            // SAFETY: promised by the caller, and it is not null.
            unsafe { to.write(found) };
            CUDA_SUCCESS
        }
        None => CUDA_ERROR_INVALID_VALUE,
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuTexObjectCreate(
    pTexObject: *mut CUtexObject,
    pResDesc: *const CUDA_RESOURCE_DESC,
    pTexDesc: *const CUDA_TEXTURE_DESC,
    pResViewDesc: *const CUDA_RESOURCE_VIEW_DESC,
) -> CUresult {
    if pTexDesc.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let symbol = Symbol::cuTexObjectCreate;
    // SAFETY: the program vouches for its pointers.
    unsafe { create(symbol, false, pTexObject, pResDesc, pTexDesc, pResViewDesc) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuTexObjectDestroy(texObject: CUtexObject) -> CUresult {
    destroy(Symbol::cuTexObjectDestroy, false, texObject)
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuTexObjectGetResourceDesc(
    pResDesc: *mut CUDA_RESOURCE_DESC,
    texObject: CUtexObject,
) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe { told(false, texObject, pResDesc, |object| Some(object.resource)) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuTexObjectGetTextureDesc(
    pTexDesc: *mut CUDA_TEXTURE_DESC,
    texObject: CUtexObject,
) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe { told(false, texObject, pTexDesc, |object| object.sampling) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuTexObjectGetResourceViewDesc(
    pResViewDesc: *mut CUDA_RESOURCE_VIEW_DESC,
    texObject: CUtexObject,
) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe { told(false, texObject, pResViewDesc, |object| object.view) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuSurfObjectCreate(
    pSurfObject: *mut CUsurfObject,
    pResDesc: *const CUDA_RESOURCE_DESC,
) -> CUresult {
    let (symbol, none) = (Symbol::cuSurfObjectCreate, std::ptr::null());
    // SAFETY: the program vouches for its pointers.
    unsafe { create(symbol, true, pSurfObject, pResDesc, none, none.cast()) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuSurfObjectDestroy(surfObject: CUsurfObject) -> CUresult {
    destroy(Symbol::cuSurfObjectDestroy, true, surfObject)
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuSurfObjectGetResourceDesc(
    pResDesc: *mut CUDA_RESOURCE_DESC,
    surfObject: CUsurfObject,
) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe { told(true, surfObject, pResDesc, |object| Some(object.resource)) }
}
