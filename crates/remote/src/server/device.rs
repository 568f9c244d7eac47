//! A device's attributes, all in one answer.

use divvy_abi::*;

use super::{Call, Stop};

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
