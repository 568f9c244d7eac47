//! Pinned memory: parts of the data area that the driver below registers, so that the device reaches them by itself.

use divvy_abi::*;
use divvy_ring::PAGE;

use super::area::Pinned;
use super::{Call, Stop};
use crate::handle::{Id, Kind, Word};

/// Makes a part of the data area pinned memory: its offset, its length, and the flags of cuMemHostRegister. The answer is
/// its address on the device, or 0 where the driver below pins no more: then its bytes are copied once.
pub fn pin(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let (offset, bytes): (u64, u64) = (call.message.plain()?, call.message.plain()?);
    let flags: u32 = call.message.plain()?;
    call.message.end()?;
    let pages = offset.is_multiple_of(PAGE as u64) && bytes.is_multiple_of(PAGE as u64) && bytes != 0;
    let address = call.shared(offset, bytes)?;
    let area = call.server.area.get().filter(|_| pages);
    let area = area.ok_or(Stop::Code(CUDA_ERROR_INVALID_VALUE))?;
    let mut all = area.pinned();
    let end = offset + bytes;
    let overlaps = all
        .range(..end)
        .next_back()
        .is_some_and(|(start, part)| start + part.bytes > offset);
    if overlaps {
        return Ok(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    if all.len() >= call.server.quota.objects {
        return Ok(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let held: u64 = all
        .values()
        .filter(|part| part.device != 0)
        .map(|part| part.bytes)
        .sum();
    let mut device = 0;
    if held + bytes <= area.most_pinned {
        // SAFETY: the range is of the data area, which stays mapped as long as this process lives.
        let code = unsafe { registered(call.driver, address, bytes as usize, flags, &mut device) };
        match code {
            CUDA_SUCCESS => call.server.tables().ranges.insert(device, bytes, None),
            // It stays memory of the program, and copies of it pass through the driver's own.
            CUDA_ERROR_OUT_OF_MEMORY | CUDA_ERROR_NOT_SUPPORTED | CUDA_ERROR_NOT_PERMITTED => device = 0,
            code => return Ok(code),
        }
    }
    let context = call.current();
    all.insert(
        offset,
        Pinned {
            bytes,
            device,
            context,
        },
    );
    call.answer.plain(device);
    Ok(CUDA_SUCCESS)
}

/// Registers memory, and asks for its address on the device.
///
/// # Safety
/// The memory stays mapped until it is no longer registered.
unsafe fn registered(
    driver: &Table,
    address: *mut c_void,
    bytes: usize,
    flags: u32,
    device: &mut CUdeviceptr,
) -> CUresult {
    // SAFETY: the caller vouches for the memory; the driver writes one address to memory of ours.
    unsafe {
        let code = (driver.cuMemHostRegister_v2)(address, bytes, flags | CU_MEMHOSTREGISTER_DEVICEMAP);
        if code != CUDA_SUCCESS {
            return code;
        }
        let code = (driver.cuMemHostGetDevicePointer_v2)(device, address, 0);
        if code != CUDA_SUCCESS {
            (driver.cuMemHostUnregister)(address);
        }
        code
    }
}

/// Has the driver below no longer register this memory. A program may free pinned memory with no current context: then the
/// one that it was made in is, for the moment. That one may be gone, and the registration with it.
fn unregistered(call: &Call<'_>, address: *mut c_void, made_in: Option<Id>) -> CUresult {
    // SAFETY: it was registered at this address.
    let code = unsafe { (call.driver.cuMemHostUnregister)(address) };
    if code != CUDA_ERROR_INVALID_CONTEXT {
        return code;
    }
    let context = made_in.and_then(|id| call.server.tables().objects.real(Kind::Context, id.bits()).ok());
    let Some((context, _is_kept)) = context else {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    };
    // SAFETY: no call destroys the context while `_is_kept` lives, and the thread's stack of contexts is as before when this is over.
    unsafe {
        let code = (call.driver.cuCtxPushCurrent_v2)(Word::from_bits(context));
        if code != CUDA_SUCCESS {
            return code;
        }
        let code = (call.driver.cuMemHostUnregister)(address);
        let mut popped = std::ptr::null_mut();
        (call.driver.cuCtxPopCurrent_v2)(&raw mut popped);
        code
    }
}

/// Ends it: its offset. The driver below waits for what the device does with it.
pub fn unpin(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let offset: u64 = call.message.plain()?;
    call.message.end()?;
    let area = call.server.area.get();
    let area = area.ok_or(Stop::Code(CUDA_ERROR_INVALID_VALUE))?;
    let part = {
        let mut all = area.pinned();
        let part = *all.get(&offset).ok_or(Stop::Code(CUDA_ERROR_INVALID_VALUE))?;
        if part.device == 0 {
            all.remove(&offset);
        }
        part
    };
    let address = call.shared(offset, part.bytes)?;
    if part.device != 0 {
        let freed = call.server.tables().ranges.beginning(part.device);
        let freed = freed.ok_or(Stop::Code(CUDA_ERROR_INVALID_VALUE))?;
        // One call goes on from here, and no other one copies.
        call.begin_free(&freed)?;
        let code = unregistered(call, address, part.context);
        let gone = matches!(
            code,
            CUDA_SUCCESS | CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED | CUDA_ERROR_INVALID_VALUE
        );
        call.end_free(&freed, gone);
        if !gone {
            return Ok(code);
        }
        area.pinned().remove(&offset);
    }
    Ok(CUDA_SUCCESS)
}
