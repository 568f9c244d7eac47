//! The devices, and a device's attributes, all in one answer.

use divvy_abi::*;

use super::{Call, Stop};

/// The UUIDs of all devices, in order.
pub fn all(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    call.message.end()?;
    let mut count = 0;
    // SAFETY: the driver writes one number to memory of ours.
    let code = unsafe { (call.driver.cuDeviceGetCount)(&raw mut count) };
    if code != CUDA_SUCCESS {
        return Ok(code);
    }
    for ordinal in 0..count {
        let (mut device, mut uuid) = (0, CUuuid::default());
        // SAFETY: the driver writes a number and a UUID to memory of ours.
        let code = unsafe {
            match (call.driver.cuDeviceGet)(&raw mut device, ordinal) {
                CUDA_SUCCESS => (call.driver.cuDeviceGetUuid_v2)(&raw mut uuid, device),
                code => code,
            }
        };
        if code != CUDA_SUCCESS {
            return Ok(code);
        }
        call.answer.plain(uuid);
    }
    Ok(CUDA_SUCCESS)
}

/// All attributes of a device: a count, then number, code and value of each.
pub fn attributes(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let device: CUdevice = call.message.plain()?;
    call.message.end()?;
    let all = 1..CU_DEVICE_ATTRIBUTE_MAX.0;
    let mut known = Vec::new();
    for number in all {
        let mut value = 0;
        // SAFETY: the driver writes one number to memory of ours.
        let code =
            unsafe { (call.driver.cuDeviceGetAttribute)(&raw mut value, CUdevice_attribute(number), device) };
        match code {
            CUDA_SUCCESS => known.push((number, value)),
            // This driver does not know it.
            CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED => {}
            // No such device, or no driver yet.
            code => return Ok(code),
        }
    }
    call.answer.count(Some(known.len()));
    for (number, value) in known {
        call.answer.plain(number);
        call.answer.plain(value);
    }
    Ok(CUDA_SUCCESS)
}
