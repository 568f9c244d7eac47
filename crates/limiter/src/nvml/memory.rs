//! The slice's memory instead of the device's.

use divvy_abi::nvml::*;
use divvy_ledger::attach::Observed;

use super::below::forward;
use super::outcome::{Result, code, done};
use super::slice;

/// Total, used and free bytes of a slice on a device that has `device_free` free bytes. If use is above a lowered
/// limit, the slice shows as full. Free is the lesser of the slice's free memory and the device's.
fn shares(slice: &Observed, device_free: u64) -> (u64, u64, u64) {
    let total = slice.memory_limit_bytes;
    let used = slice.memory_used_bytes.min(total);
    (total, used, (total - used).min(device_free))
}

/// `part` of a device with `device_total` bytes, scaled to the slice's fraction of it.
fn scaled(part: u64, limit: u64, device_total: u64) -> u64 {
    let scaled = u128::from(part) * u128::from(limit) / u128::from(device_total.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX).min(part)
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    // The library below checks the arguments, and reports the free memory.
    // SAFETY: the program's arguments.
    let answer = unsafe { forward::nvmlDeviceGetMemoryInfo(device, memory) };
    let Some(path) = slice::path() else { return answer };
    let rewrite = || -> Result {
        done(answer)?;
        let slice = slice::account_of(path, device)?;
        // SAFETY: the library below has just written there.
        let (total, used, free) = shares(&slice, unsafe { (*memory).free });
        // SAFETY: as above.
        unsafe { memory.write(nvmlMemory_t { total, free, used }) };
        Ok(())
    };
    code(rewrite())
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the program's arguments.
    let answer = unsafe { forward::nvmlDeviceGetMemoryInfo_v2(device, memory) };
    let Some(path) = slice::path() else { return answer };
    let rewrite = || -> Result {
        done(answer)?;
        let slice = slice::account_of(path, device)?;
        // SAFETY: the library below has just written there.
        let before = unsafe { *memory };
        let (total, used, free) = shares(&slice, before.free);
        let now = nvmlMemory_v2_t {
            version: before.version,
            total,
            // Memory that the slice may use and that the device does not have at this moment.
            reserved: total - used - free,
            free,
            used,
        };
        // SAFETY: as above.
        unsafe { memory.write(now) };
        Ok(())
    };
    code(rewrite())
}

pub unsafe extern "C-unwind" fn nvmlDeviceGetBAR1MemoryInfo(
    device: nvmlDevice_t,
    memory: *mut nvmlBAR1Memory_t,
) -> nvmlReturn_t {
    // SAFETY: the program's arguments.
    let answer = unsafe { forward::nvmlDeviceGetBAR1MemoryInfo(device, memory) };
    let Some(path) = slice::path() else { return answer };
    let rewrite = || -> Result {
        done(answer)?;
        let limit = slice::account_of(path, device)?.memory_limit_bytes;
        let mut whole = nvmlMemory_t::default();
        // SAFETY: a valid out-parameter.
        done(unsafe { forward::nvmlDeviceGetMemoryInfo(device, &raw mut whole) })?;
        // SAFETY: the library below has just written there.
        let before = unsafe { *memory };
        let total = scaled(before.bar1Total, limit, whole.total);
        // The library does not tell which process maps what: the slice's part of it is assumed to equal its part of the
        // device.
        let used = scaled(before.bar1Used, limit, whole.total).min(total);
        let now = nvmlBAR1Memory_t {
            bar1Total: total,
            bar1Free: total - used,
            bar1Used: used,
        };
        // SAFETY: as above.
        unsafe { memory.write(now) };
        Ok(())
    };
    code(rewrite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(limit: u64, used: u64) -> Observed {
        Observed {
            account: 0,
            accounts: 1,
            device_uuid: [0; 16],
            memory_limit_bytes: limit,
            memory_used_bytes: used,
            terms: divvy_ledger::Terms::default(),
            processes: Vec::new(),
            observer_pid: 0,
        }
    }

    #[test]
    fn a_slice_has_its_limit_and_no_more_room_than_the_device() {
        assert_eq!(shares(&slice(100, 30), 1000), (100, 30, 70));
        assert_eq!(shares(&slice(100, 30), 20), (100, 30, 20));
        assert_eq!(shares(&slice(100, 130), 1000), (100, 100, 0));
        assert_eq!(shares(&slice(0, 0), 1000), (0, 0, 0));
    }

    #[test]
    fn parts_scale_without_overflow() {
        assert_eq!(scaled(128, 10, 80), 16);
        assert_eq!(scaled(u64::MAX, u64::MAX, 1), u64::MAX);
        assert_eq!(scaled(128, 10, 0), 128);
    }
}
