//! The devices, and a device's attributes, all in one answer.

use divvy_abi::*;

use super::{Call, Stop};

/// All attributes of a device: a count, then number and value of each.
pub fn attributes(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    let device: CUdevice = call.message.plain()?;
    call.message.end()?;
    let known = known(call, device)?;
    tell(call, &known);
    Ok(CUDA_SUCCESS)
}

/// Number and value of each attribute that the driver knows.
pub fn known(call: &Call<'_>, device: CUdevice) -> Result<Vec<(i32, i32)>, CUresult> {
    let mut known = Vec::new();
    for number in 1..CU_DEVICE_ATTRIBUTE_MAX.0 {
        let mut value = 0;
        // SAFETY: the driver writes one number to memory of ours.
        let code =
            unsafe { (call.driver.cuDeviceGetAttribute)(&raw mut value, CUdevice_attribute(number), device) };
        match code {
            CUDA_SUCCESS => known.push((number as i32, value)),
            // This driver does not know it.
            CUDA_ERROR_INVALID_VALUE | CUDA_ERROR_NOT_SUPPORTED => {}
            // No such device, or no driver yet.
            code => return Err(code),
        }
    }
    Ok(known)
}

/// Writes them.
pub fn tell(call: &mut Call<'_>, known: &[(i32, i32)]) {
    call.answer.count(Some(known.len()));
    for (number, value) in known {
        call.answer.plain(*number);
        call.answer.plain(*value);
    }
}
