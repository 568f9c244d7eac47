//! Copies between the program's memory and the device's, through messages: the path with two copies.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::thread;
use crate::handle::Word;
use crate::wire::HEADER_BYTES;
use crate::wire::by_hand::{ASYNC, FROM_DEVICE, PER_THREAD, TO_DEVICE};

/// Bytes of a message or an answer that are not the copy's: flags, stream, address, count; codes.
const OVERHEAD: usize = HEADER_BYTES + 32;

/// One stretch of a copy.
struct Part {
    at: usize,
    bytes: usize,
    last: bool,
}

/// The parts of a copy of so many bytes. One that is empty has a part all the same: the driver judges the address.
fn parts(bytes: usize) -> Result<impl Iterator<Item = Part>, CUresult> {
    let most = thread::capacity()?.saturating_sub(OVERHEAD).max(1);
    let count = bytes.div_ceil(most).max(1);
    Ok((0..count).map(move |index| Part {
        at: index * most,
        bytes: most.min(bytes - index * most),
        last: index + 1 == count,
    }))
}

/// # Safety
/// `from` has so many bytes.
unsafe fn to_device(
    symbol: Symbol,
    flags: u8,
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    if from.is_null() && bytes != 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let parts = match parts(bytes) {
        Ok(parts) => parts,
        Err(code) => return code,
    };
    for part in parts {
        let put = |m: &mut crate::wire::Writer<'_>| {
            m.plain(flags);
            m.plain(stream.bits());
            m.plain(to.wrapping_add(part.at as u64));
            // SAFETY: the caller vouches for the bytes, and the part lies among them.
            unsafe { m.copy(from.cast::<u8>().wrapping_add(part.at), part.bytes) };
        };
        // The parts go in order, and the last one tells whether one failed.
        let code = match part.last {
            true => thread::call(TO_DEVICE, symbol, put, |_, _| Ok(())),
            false => thread::submit(TO_DEVICE, symbol, put, |_, _| Ok(())),
        };
        if code != CUDA_SUCCESS {
            return code;
        }
    }
    CUDA_SUCCESS
}

/// # Safety
/// `to` has room for so many bytes.
unsafe fn from_device(
    symbol: Symbol,
    flags: u8,
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    if to.is_null() && bytes != 0 {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let parts = match parts(bytes) {
        Ok(parts) => parts,
        Err(code) => return code,
    };
    for part in parts {
        let put = |m: &mut crate::wire::Writer<'_>| {
            m.plain(flags);
            m.plain(stream.bits());
            m.plain(from.wrapping_add(part.at as u64));
            m.plain(part.bytes as u64);
        };
        let code = thread::call(FROM_DEVICE, symbol, put, |m, good| {
            if good {
                let came = m.bytes(part.bytes)?;
                let to = to.cast::<u8>().wrapping_add(part.at);
                // SAFETY: the caller vouches for the room, and the part lies in it.
                unsafe { std::ptr::copy_nonoverlapping(came.as_ptr(), to, came.len()) };
            }
            Ok(())
        });
        if code != CUDA_SUCCESS {
            return code;
        }
    }
    CUDA_SUCCESS
}

macro_rules! to_device {
    ($($name:ident $flags:expr, ($($stream:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            to: CUdeviceptr, from: *const c_void, bytes: usize, $($stream: CUstream)?
        ) -> CUresult {
            let stream: &[CUstream] = &[$($stream)?];
            let stream = stream.first().copied().unwrap_or(std::ptr::null_mut());
            // SAFETY: the program vouches for its bytes.
            unsafe { to_device(Symbol::$name, $flags, to, from, bytes, stream) }
        }
    )*};
}

macro_rules! from_device {
    ($($name:ident $flags:expr, ($($stream:ident)?);)*) => {$(
        /// # Safety
        /// As NVIDIA's reference says.
        pub unsafe extern "C-unwind" fn $name(
            to: *mut c_void, from: CUdeviceptr, bytes: usize, $($stream: CUstream)?
        ) -> CUresult {
            let stream: &[CUstream] = &[$($stream)?];
            let stream = stream.first().copied().unwrap_or(std::ptr::null_mut());
            // SAFETY: the program vouches for its room.
            unsafe { from_device(Symbol::$name, $flags, to, from, bytes, stream) }
        }
    )*};
}

to_device! {
    cuMemcpyHtoD_v2 0, ();
    cuMemcpyHtoD_v2_ptds PER_THREAD, ();
    cuMemcpyHtoDAsync_v2 ASYNC, (stream);
    cuMemcpyHtoDAsync_v2_ptsz ASYNC | PER_THREAD, (stream);
}

from_device! {
    cuMemcpyDtoH_v2 0, ();
    cuMemcpyDtoH_v2_ptds PER_THREAD, ();
    cuMemcpyDtoHAsync_v2 ASYNC, (stream);
    cuMemcpyDtoHAsync_v2_ptsz ASYNC | PER_THREAD, (stream);
}
