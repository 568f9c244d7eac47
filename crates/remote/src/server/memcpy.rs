//! Copies between the program's memory and the device's: the bytes travel in the messages, or lie in the data area.

use divvy_abi::*;

use super::area::count;
use super::{Call, Stop};
use crate::handle::{Kind, Word};
use crate::wire::by_hand::{ASYNC, PER_THREAD, STAGED, TO_AREA};

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
    count(&call.server.traffic.inline, bytes.len() as u64);
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
        count(&call.server.traffic.inline, bytes as u64);
        call.answer.bytes(call.arena.read(spot));
    }
    Ok(code)
}

/// A copy between the data area and the device: flags, stream, address on the device, offset in the area, how many bytes.
pub fn copy(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let stream = call.handle(Kind::Stream)?;
    let device: u64 = call.message.plain()?;
    let (offset, length): (u64, u64) = (call.message.plain()?, call.message.plain()?);
    call.message.end()?;
    if flags & !(ASYNC | PER_THREAD | TO_AREA | STAGED) != 0 {
        return Err(Stop::Malformed);
    }
    call.within(device, length)?;
    let host = call.shared(offset, length)?;
    let (driver, stream, bytes) = (call.driver, Word::from_bits(stream.real), length as usize);
    let staged = flags & STAGED != 0;
    if flags & ASYNC != 0 && staged {
        refuse_capture(call, stream, flags)?;
    }
    call.begin_part(Symbol::cuMemcpyHtoDAsync_v2)?;
    let traffic = &call.server.traffic;
    let pinned = call
        .server
        .area
        .get()
        .is_some_and(|area| area.is_pinned(offset, length));
    count(
        match (staged, pinned) {
            (true, _) => &traffic.staged,
            (false, false) => &traffic.shared,
            (false, true) => &traffic.bypass,
        },
        length,
    );
    // SAFETY: both memories are the program's, and stay as long as this process. What is staged is waited for, since the
    // program takes it from the area at once.
    let code = unsafe {
        match flags & !STAGED {
            0 => (driver.cuMemcpyHtoD_v2)(device, host, bytes),
            PER_THREAD => (driver.cuMemcpyHtoD_v2_ptds)(device, host, bytes),
            ASYNC => (driver.cuMemcpyHtoDAsync_v2)(device, host, bytes, stream),
            3 => (driver.cuMemcpyHtoDAsync_v2_ptsz)(device, host, bytes, stream),
            TO_AREA => (driver.cuMemcpyDtoH_v2)(host, device, bytes),
            5 => waited((driver.cuMemcpyDtoHAsync_v2)(host, device, bytes, stream), || {
                if staged {
                    (driver.cuStreamSynchronize)(stream)
                } else {
                    CUDA_SUCCESS
                }
            }),
            6 => (driver.cuMemcpyDtoH_v2_ptds)(host, device, bytes),
            _ => waited(
                (driver.cuMemcpyDtoHAsync_v2_ptsz)(host, device, bytes, stream),
                || {
                    if staged {
                        (driver.cuStreamSynchronize_ptsz)(stream)
                    } else {
                        CUDA_SUCCESS
                    }
                },
            ),
        }
    };
    call.end_part(code);
    Ok(code)
}

/// Which of two addresses lie in device memory of the program: a byte for each, 0 or 1.
pub fn is_device(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let addresses: [u64; 2] = [call.message.plain()?, call.message.plain()?];
    call.message.end()?;
    let tables = call.server.tables();
    for address in addresses {
        call.answer.flag(address != 0 && tables.ranges.hold(address, 1));
    }
    Ok(CUDA_SUCCESS)
}

/// Frees device memory, at whose beginning the address lies.
pub fn free(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let freed = call.beginning()?;
    call.message.end()?;
    call.begin_free(&freed)?;
    // SAFETY: the memory is the program's, and no other call uses it; or the address is null.
    let code = unsafe { (call.driver.cuMemFree_v2)(freed.address) };
    call.end_free(&freed, code == CUDA_SUCCESS);
    Ok(code)
}

fn waited(code: CUresult, wait: impl FnOnce() -> CUresult) -> CUresult {
    if code == CUDA_SUCCESS { wait() } else { code }
}

/// A captured copy is made at each launch of the graph, from memory that would be gone by then.
pub fn refuse_capture(call: &Call<'_>, stream: CUstream, flags: u8) -> Result<(), Stop> {
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
