//! Copies between the program's memory and the device's, memory or arrays there: the bytes travel in the messages, or lie
//! in the data area.

use divvy_abi::*;
use divvy_ledger::CopyPath;

use super::{Call, Stop};
use crate::handle::{Kind, Word};
use crate::wire::by_hand::{ARRAY, ASYNC, PER_THREAD, STAGED, TO_AREA};

/// The device's side of a copy.
#[derive(Clone, Copy)]
enum Target {
    /// Memory at this address.
    Memory(u64),
    /// An array as one run of bytes, from this offset on. The driver knows its size.
    Array(CUarray, usize),
}

impl Target {
    /// What follows a copy's flags and stream: an address, or an offset and the array's name.
    fn read(call: &mut Call<'_>, flags: u8) -> Result<Self, Stop> {
        let place: u64 = call.message.plain()?;
        Ok(match flags & ARRAY {
            0 => Self::Memory(place),
            _ => {
                let array = call.handle(Kind::Array)?;
                Self::Array(Word::from_bits(array.real), place as usize)
            }
        })
    }

    /// Device memory has to have the bytes.
    fn check(self, call: &mut Call<'_>, bytes: u64) -> Result<(), Stop> {
        match self {
            Self::Memory(address) => call.within(address, bytes),
            Self::Array(..) => Ok(()),
        }
    }

    /// Has the driver below copy between this and memory here, by the flags ASYNC and PER_THREAD.
    ///
    /// # Safety
    /// The target was checked, and `host` has the bytes for as long as the copy takes.
    unsafe fn copy(
        self,
        driver: &Table,
        flags: u8,
        stream: CUstream,
        host: *mut c_void,
        bytes: usize,
        to_host: bool,
    ) -> CUresult {
        let how = flags & (ASYNC | PER_THREAD);
        // SAFETY: promised by the caller; handles are the driver's.
        unsafe {
            match (self, to_host, how) {
                (Self::Memory(at), false, 0) => (driver.cuMemcpyHtoD_v2)(at, host, bytes),
                (Self::Memory(at), false, PER_THREAD) => (driver.cuMemcpyHtoD_v2_ptds)(at, host, bytes),
                (Self::Memory(at), false, ASYNC) => (driver.cuMemcpyHtoDAsync_v2)(at, host, bytes, stream),
                (Self::Memory(at), false, _) => (driver.cuMemcpyHtoDAsync_v2_ptsz)(at, host, bytes, stream),
                (Self::Memory(at), true, 0) => (driver.cuMemcpyDtoH_v2)(host, at, bytes),
                (Self::Memory(at), true, PER_THREAD) => (driver.cuMemcpyDtoH_v2_ptds)(host, at, bytes),
                (Self::Memory(at), true, ASYNC) => (driver.cuMemcpyDtoHAsync_v2)(host, at, bytes, stream),
                (Self::Memory(at), true, _) => (driver.cuMemcpyDtoHAsync_v2_ptsz)(host, at, bytes, stream),
                (Self::Array(of, at), false, 0) => (driver.cuMemcpyHtoA_v2)(of, at, host, bytes),
                (Self::Array(of, at), false, PER_THREAD) => {
                    (driver.cuMemcpyHtoA_v2_ptds)(of, at, host, bytes)
                }
                (Self::Array(of, at), false, ASYNC) => {
                    (driver.cuMemcpyHtoAAsync_v2)(of, at, host, bytes, stream)
                }
                (Self::Array(of, at), false, _) => {
                    (driver.cuMemcpyHtoAAsync_v2_ptsz)(of, at, host, bytes, stream)
                }
                (Self::Array(of, at), true, 0) => (driver.cuMemcpyAtoH_v2)(host, of, at, bytes),
                (Self::Array(of, at), true, PER_THREAD) => (driver.cuMemcpyAtoH_v2_ptds)(host, of, at, bytes),
                (Self::Array(of, at), true, ASYNC) => {
                    (driver.cuMemcpyAtoHAsync_v2)(host, of, at, bytes, stream)
                }
                (Self::Array(of, at), true, _) => {
                    (driver.cuMemcpyAtoHAsync_v2_ptsz)(host, of, at, bytes, stream)
                }
            }
        }
    }
}

/// Waits for a stream, as a copy with these flags names it.
pub fn wait_for(driver: &Table, flags: u8, stream: CUstream) -> CUresult {
    // SAFETY: the stream is the driver's, which a call uses.
    unsafe {
        match flags & PER_THREAD {
            0 => (driver.cuStreamSynchronize)(stream),
            _ => (driver.cuStreamSynchronize_ptsz)(stream),
        }
    }
}

/// Bytes of the program for the device: flags, stream, place, then the bytes.
pub fn to_device(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let stream = call.handle(Kind::Stream)?;
    let to = Target::read(call, flags)?;
    let bytes = call.message.rest();
    if flags & !(ASYNC | PER_THREAD | ARRAY) != 0 {
        return Err(Stop::Malformed);
    }
    to.check(call, bytes.len() as u64)?;
    let from = bytes.as_ptr().cast_mut().cast();
    let (driver, stream) = (call.driver, Word::from_bits(stream.real));
    if flags & ASYNC != 0 {
        refuse_capture(call, stream, flags)?;
    }
    call.server.traffic.count(CopyPath::Message, bytes.len() as u64);
    // SAFETY: the message holds the bytes, which the driver reads, and the target was checked. A copy from memory that is
    // not pinned has read it when the call returns.
    Ok(unsafe { to.copy(driver, flags, stream, from, bytes.len(), false) })
}

/// Bytes of the device for the program: flags, stream, place, how many.
pub fn from_device(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let stream = call.handle(Kind::Stream)?;
    let from = Target::read(call, flags)?;
    let bytes: u64 = call.message.plain()?;
    call.message.end()?;
    if flags & !(ASYNC | PER_THREAD | ARRAY) != 0 {
        return Err(Stop::Malformed);
    }
    from.check(call, bytes)?;
    let spot = call.room(true, bytes, 1)?;
    let to = spot.pointer(call.arena.base());
    let (driver, stream, bytes) = (call.driver, Word::from_bits(stream.real), spot.bytes());
    if flags & ASYNC != 0 {
        refuse_capture(call, stream, flags)?;
    }
    // SAFETY: the arena has room for the bytes, and the target was checked. The copy is over before the arena is used
    // again: the stream is waited for.
    let mut code = unsafe { from.copy(driver, flags, stream, to, bytes, true) };
    if flags & ASYNC != 0 {
        code = waited(code, || wait_for(driver, flags, stream));
    }
    if code == CUDA_SUCCESS {
        call.server.traffic.count(CopyPath::Message, bytes as u64);
        call.answer.bytes(call.arena.read(spot));
    }
    Ok(code)
}

/// A copy between the data area and the device: flags, stream, place on the device, offset in the area, how many bytes.
pub fn copy(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let flags: u8 = call.message.plain()?;
    let stream = call.handle(Kind::Stream)?;
    let device = Target::read(call, flags)?;
    let (offset, length): (u64, u64) = (call.message.plain()?, call.message.plain()?);
    call.message.end()?;
    if flags & !(ASYNC | PER_THREAD | TO_AREA | STAGED | ARRAY) != 0 {
        return Err(Stop::Malformed);
    }
    device.check(call, length)?;
    let host = call.shared(offset, length)?;
    let (driver, stream, bytes) = (call.driver, Word::from_bits(stream.real), length as usize);
    let staged = flags & STAGED != 0;
    if flags & ASYNC != 0 && staged {
        refuse_capture(call, stream, flags)?;
    }
    call.begin_part(Symbol::cuMemcpyHtoDAsync_v2)?;
    let pinned = call
        .server
        .area
        .get()
        .is_some_and(|area| area.is_pinned(offset, length));
    let path = match (staged, pinned) {
        (true, _) => CopyPath::Staged,
        (false, false) => CopyPath::Shared,
        (false, true) => CopyPath::Pinned,
    };
    call.server.traffic.count(path, length);
    let to_host = flags & TO_AREA != 0;
    // SAFETY: both memories are the program's, and stay as long as this process.
    let mut code = unsafe { device.copy(driver, flags, stream, host, bytes, to_host) };
    if flags & ASYNC != 0 && to_host && staged {
        // The program takes it from the area at once.
        code = waited(code, || wait_for(driver, flags, stream));
    }
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
