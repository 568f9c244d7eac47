//! CUDA arrays and mipmaps.
#![allow(non_snake_case)]

use divvy_abi::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1,
    CUarray, CUmipmappedArray, CUresult, guard,
};
use divvy_charges::{Kind, arrays};

use crate::account;
use crate::below::{ask, forward};
use crate::charges::CHARGES;

/// Makes an array, of at most so many allocations, by `call`. `bytes` reads its description, which the driver reads as
/// well. `destroy` ends an array that must not exist.
fn made(
    (kind, allocations): (Kind, u64),
    bytes: impl FnOnce() -> Option<u64>,
    call: impl Fn() -> CUresult,
    handle: impl Fn() -> usize,
    destroy: impl Fn(usize) -> CUresult,
) -> CUresult {
    let account = match account::current() {
        Ok(Some(account)) if account::keeps_charges() => account,
        Ok(_) => return call(),
        Err(code) => return code,
    };
    let Some(bytes) = bytes() else {
        return call();
    };
    if ask::device_bytes().is_none_or(|all| bytes <= all) {
        return CHARGES.make_object(kind, account, (bytes, allocations), call, handle);
    }
    // No device has that much: a driver first checks whether there can be such an array, and returns its own error.
    let result = call();
    if !result.is_success() {
        return result;
    }
    let _never_made = destroy(handle());
    CHARGES.refuse(account, bytes, "an array")
}

fn flat(array: &CUDA_ARRAY_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: array.Width,
        Height: array.Height,
        Depth: 0,
        Format: array.Format,
        NumChannels: array.NumChannels,
        Flags: 0,
    }
}

fn flat_v1(array: &CUDA_ARRAY_DESCRIPTOR_v1) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: array.Width as usize,
        Height: array.Height as usize,
        Depth: 0,
        Format: array.Format,
        NumChannels: array.NumChannels,
        Flags: 0,
    }
}

fn deep(array: &CUDA_ARRAY3D_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    *array
}

fn deep_v1(array: &CUDA_ARRAY3D_DESCRIPTOR_v1) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: array.Width as usize,
        Height: array.Height as usize,
        Depth: array.Depth as usize,
        Format: array.Format,
        NumChannels: array.NumChannels,
        Flags: array.Flags,
    }
}

macro_rules! creates {
    ($($name:ident($of:ty) as $described:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(out: *mut CUarray, array: *const $of) -> CUresult {
            guard(|| {
                made(
                    (Kind::Array, 1),
                    // SAFETY: null, or the program's own description, which the driver reads as well.
                    || unsafe { array.as_ref() }.map(|array| arrays::bytes(&$described(array))),
                    // SAFETY: the arguments are handed on as they came.
                    || unsafe { forward::$name(out, array) },
                    // SAFETY: read only after the driver said that it filled it in.
                    || unsafe { out.read() as usize },
                    // SAFETY: an array that the driver has just made, and that no other code has seen.
                    |array| unsafe { forward::cuArrayDestroy(array as CUarray) },
                )
            })
        })*
    };
}

creates! {
    cuArrayCreate(CUDA_ARRAY_DESCRIPTOR_v1) as flat_v1;
    cuArrayCreate_v2(CUDA_ARRAY_DESCRIPTOR) as flat;
    cuArray3DCreate(CUDA_ARRAY3D_DESCRIPTOR_v1) as deep_v1;
    cuArray3DCreate_v2(CUDA_ARRAY3D_DESCRIPTOR) as deep;
}

pub(super) unsafe extern "C-unwind" fn cuMipmappedArrayCreate(
    out: *mut CUmipmappedArray,
    array: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> CUresult {
    guard(|| {
        made(
            (Kind::Mipmap, 16),
            // SAFETY: null, or the program's own description, which the driver reads as well.
            || unsafe { array.as_ref() }.map(|array| arrays::mipmap_bytes(array, levels)),
            // SAFETY: the arguments are handed on as they came.
            || unsafe { forward::cuMipmappedArrayCreate(out, array, levels) },
            // SAFETY: read only after the driver said that it filled it in.
            || unsafe { out.read() as usize },
            // SAFETY: a mipmap that the driver has just made, and that no other code has seen.
            |array| unsafe { forward::cuMipmappedArrayDestroy(array as CUmipmappedArray) },
        )
    })
}

macro_rules! destroys {
    ($($name:ident($of:ty) from $kind:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(array: $of) -> CUresult {
            guard(|| {
                // It may be a mipmap of external memory.
                let result = CHARGES.close(array as u64, || {
                    // SAFETY: the argument is handed on as it came.
                    CHARGES.end_object(Kind::$kind, array as usize, || unsafe { forward::$name(array) })
                });
                if result.is_success() {
                    CHARGES.array_ended(array as usize);
                }
                result
            })
        })*
    };
}

destroys! {
    cuArrayDestroy(CUarray) from Array;
    cuMipmappedArrayDestroy(CUmipmappedArray) from Mipmap;
}
