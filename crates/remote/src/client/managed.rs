//! Managed memory is pinned memory of the data area that has one address for the program and the device. So it lies in the
//! host's memory, where both use it, and never moves: what says where it should lie is accepted, and does nothing.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::{TABLE, given, pinned, thread};
use crate::handle::Word;
use crate::wire::by_hand::FREE;

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemAllocManaged(
    dptr: *mut CUdeviceptr,
    bytesize: usize,
    flags: u32,
) -> CUresult {
    if flags != CU_MEM_ATTACH_GLOBAL.0 && flags != CU_MEM_ATTACH_HOST.0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pinned::allocate_managed(dptr, bytesize)
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemFree_v2(dptr: CUdeviceptr) -> CUresult {
    if pinned::begins_managed(dptr) {
        return pinned::free(Symbol::cuMemFree_v2, dptr as usize);
    }
    let code = thread::call(FREE, Symbol::cuMemFree_v2, |m| m.plain(dptr), |_, _| Ok(()));
    if code == CUDA_SUCCESS {
        given::freed(dptr);
    }
    code
}

/// Whether all of these bytes are managed memory.
fn known(address: CUdeviceptr, bytes: usize) -> CUresult {
    let host = pinned::holding(address as usize).filter(|host| host.managed);
    let inside = host.is_some_and(|host| bytes <= host.bytes - (address as usize - host.start));
    match inside && bytes != 0 {
        true => CUDA_SUCCESS,
        false => CUDA_ERROR_INVALID_VALUE,
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemAdvise(
    devPtr: CUdeviceptr,
    count: usize,
    _advice: CUmem_advise,
    _device: CUdevice,
) -> CUresult {
    known(devPtr, count)
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemAdvise_v2(
    devPtr: CUdeviceptr,
    count: usize,
    _advice: CUmem_advise,
    _location: CUmemLocation,
) -> CUresult {
    known(devPtr, count)
}

macro_rules! prefetch {
    ($($name:ident ($($p:ident: $of:ty),*);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            devPtr: CUdeviceptr,
            count: usize,
            $($p: $of,)*
            stream: CUstream,
        ) -> CUresult {
            $(let _unused = $p;)*
            // SAFETY: a stream that is none is refused.
            let found = unsafe { on(stream) };
            if found == CUDA_SUCCESS { known(devPtr, count) } else { found }
        }
    )*};
}

prefetch! {
    cuMemPrefetchAsync(dstDevice: CUdevice);
    cuMemPrefetchAsync_ptsz(dstDevice: CUdevice);
    cuMemPrefetchAsync_v2(location: CUmemLocation, flags: u32);
    cuMemPrefetchAsync_v2_ptsz(location: CUmemLocation, flags: u32);
}

/// Whether there is this stream.
///
/// # Safety
/// None: it may be any number.
unsafe fn on(stream: CUstream) -> CUresult {
    if stream.bits() <= 2 {
        return CUDA_SUCCESS;
    }
    let mut flags = 0;
    // SAFETY: the server looks the stream up; one number is written to memory of ours.
    unsafe { (TABLE.cuStreamGetFlags)(stream, &raw mut flags) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuStreamAttachMemAsync(
    hStream: CUstream,
    dptr: CUdeviceptr,
    _length: usize,
    flags: u32,
) -> CUresult {
    // SAFETY: a stream that is none is refused.
    let found = unsafe { on(hStream) };
    match flags.is_power_of_two() && flags <= CU_MEM_ATTACH_SINGLE.0 {
        true if found == CUDA_SUCCESS => known(dptr, 1),
        true => found,
        false => CUDA_ERROR_INVALID_VALUE,
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuStreamAttachMemAsync_ptsz(
    hStream: CUstream,
    dptr: CUdeviceptr,
    length: usize,
    flags: u32,
) -> CUresult {
    // SAFETY: the program vouches for its arguments.
    unsafe { cuStreamAttachMemAsync(hStream, dptr, length, flags) }
}
