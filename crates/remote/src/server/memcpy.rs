//! Copies between the program's memory and the device's: the bytes travel in the messages.

use divvy_abi::*;

use super::{Call, Stop};
use crate::handle::{Kind, Word};
use crate::wire::by_hand::{ASYNC, PER_THREAD};

/// Bytes of the program for device memory: flags, stream, address, then the bytes.
pub fn to_device(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let stream = call.handle(Kind::Stream)?;
    let to: u64 = call.message.plain()?;
    let bytes = call.message.rest();
    call.within(to, bytes.len() as u64)?;
    let from = bytes.as_ptr().cast();
    let (driver, stream) = (call.driver, Word::from_bits(stream.real));
    if flags & ASYNC != 0 {
        refuse_capture(call, stream, flags)?;
    }
    // SAFETY: the message holds the bytes, and the device memory is the program's. A copy from memory that is not pinned
    // has read it when the call returns.
    Ok(unsafe {
        match flags {
            0 => (driver.cuMemcpyHtoD_v2)(to, from, bytes.len()),
            ASYNC => (driver.cuMemcpyHtoDAsync_v2)(to, from, bytes.len(), stream),
            PER_THREAD => (driver.cuMemcpyHtoD_v2_ptds)(to, from, bytes.len()),
            3 => (driver.cuMemcpyHtoDAsync_v2_ptsz)(to, from, bytes.len(), stream),
            _ => return Err(Stop::Malformed),
        }
    })
}

/// Bytes of device memory for the program: flags, stream, address, how many.
pub fn from_device(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let stream = call.handle(Kind::Stream)?;
    let from: u64 = call.message.plain()?;
    let bytes: u64 = call.message.plain()?;
    call.message.end()?;
    call.within(from, bytes)?;
    let spot = call.room(true, bytes, 1)?;
    let to = spot.pointer(call.arena.base());
    let (driver, stream, bytes) = (call.driver, Word::from_bits(stream.real), spot.bytes());
    if flags & ASYNC != 0 {
        refuse_capture(call, stream, flags)?;
    }
    // SAFETY: the arena has room for the bytes, and the device memory is the program's. The copy is over before the
    // arena is used again: the stream is waited for.
    let code = unsafe {
        match flags {
            0 => (driver.cuMemcpyDtoH_v2)(to, from, bytes),
            PER_THREAD => (driver.cuMemcpyDtoH_v2_ptds)(to, from, bytes),
            ASYNC => waited((driver.cuMemcpyDtoHAsync_v2)(to, from, bytes, stream), || {
                (driver.cuStreamSynchronize)(stream)
            }),
            3 => waited(
                (driver.cuMemcpyDtoHAsync_v2_ptsz)(to, from, bytes, stream),
                || (driver.cuStreamSynchronize_ptsz)(stream),
            ),
            _ => return Err(Stop::Malformed),
        }
    };
    if code == CUDA_SUCCESS {
        call.answer.bytes(call.arena.read(spot));
    }
    Ok(code)
}

fn waited(code: CUresult, wait: impl FnOnce() -> CUresult) -> CUresult {
    if code == CUDA_SUCCESS { wait() } else { code }
}

/// A captured copy is made at each launch of the graph, from memory that would be gone by then.
fn refuse_capture(call: &Call<'_>, stream: CUstream, flags: u8) -> Result<(), Stop> {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    let ask = match flags & PER_THREAD {
        0 => call.driver.cuStreamIsCapturing,
        _ => call.driver.cuStreamIsCapturing_ptsz,
    };
    // SAFETY: the stream is one of the driver's, and it writes one number to memory of ours.
    let code = unsafe { ask(stream, &raw mut status) };
    match (code, status) {
        (CUDA_SUCCESS, CU_STREAM_CAPTURE_STATUS_NONE) => Ok(()),
        (CUDA_SUCCESS, _) => Err(Stop::Code(CUDA_ERROR_NOT_SUPPORTED)),
        // A legacy stream that another one's capture forbids to use, and others: the copy itself says so.
        _ => Ok(()),
    }
}
