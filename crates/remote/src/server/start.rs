//! The beginning: what programs ask first, in one answer.

use divvy_abi::*;

use super::{Call, Stop, device};

/// So many devices are told of: more than a machine has.
const MOST_DEVICES: i32 = 1024;

/// Initialises the driver. The answer is whether its version is known, the version, and on success the devices, their UUIDs, then a
/// mark, the device and its attributes for each device that there is room for, and the mark that no more follow.
pub fn start(call: &mut Call<'_>) -> Result<CUresult, Stop> {
    call.message.end()?;
    let driver = call.driver;
    let (mut version, mut count) = (0, 0);
    // SAFETY: the driver writes one number to memory of ours.
    let known = unsafe { (driver.cuDriverGetVersion)(&raw mut version) } == CUDA_SUCCESS;
    call.answer.flag(known);
    call.answer.plain(version);
    // SAFETY: as above.
    let code = unsafe {
        match (driver.cuInit)(0) {
            CUDA_SUCCESS => (driver.cuDeviceGetCount)(&raw mut count),
            code => code,
        }
    };
    if code != CUDA_SUCCESS {
        return Ok(code);
    }
    let mut devices = Vec::new();
    for ordinal in 0..count.min(MOST_DEVICES) {
        let mut device: CUdevice = 0;
        // SAFETY: as above.
        let code = unsafe { (driver.cuDeviceGet)(&raw mut device, ordinal) };
        if code != CUDA_SUCCESS {
            return Ok(code);
        }
        devices.push(device);
    }
    if devices.len() * (size_of::<CUdevice>() + size_of::<CUuuid>()) + 8 > call.answer.left() {
        return Err(Stop::TOO_LARGE);
    }
    call.answer.count(Some(devices.len()));
    for device in &devices {
        call.answer.plain(*device);
    }
    for device in &devices {
        let mut uuid = CUuuid::default();
        // SAFETY: the driver writes a UUID to memory of ours. One that it does not tell is zeros.
        unsafe { (driver.cuDeviceGetUuid_v2)(&raw mut uuid, *device) };
        call.answer.plain(uuid);
    }
    for device in devices {
        // What is not told now is asked for when the program wants it.
        let Ok(known) = device::known(call, device) else {
            break;
        };
        // The mark, the device, the count, and the last mark.
        if 1 + 4 + 4 + 8 * known.len() + 1 > call.answer.left() {
            break;
        }
        call.answer.flag(true);
        call.answer.plain(device);
        device::tell(call, &known);
    }
    call.answer.flag(false);
    Ok(CUDA_SUCCESS)
}
