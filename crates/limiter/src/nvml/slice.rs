//! The slice's limits and use, as its page server reports them, and the device of each of its accounts.

use core::time::Duration;
use std::ffi::CStr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};

use divvy_abi::nvml::*;
use divvy_ledger::attach::{self, Observed};

use super::below::forward;
use super::outcome::{Result, done};
use crate::{environment, log};

/// One device of the slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its handle, as the library below gave it.
    pub handle: Handle,
    /// The account that is charged for it.
    pub account: u32,
}

/// A handle: an address that only the library below dereferences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(usize);

impl Handle {
    pub fn of(raw: nvmlDevice_t) -> Self {
        Self(raw as usize)
    }

    pub fn raw(self) -> nvmlDevice_t {
        self.0 as nvmlDevice_t
    }
}

/// The slice's devices since the last nvmlInit.
static DEVICES: Mutex<Option<Vec<Device>>> = Mutex::new(None);
/// The last known state of each account. It is shown when the page server is gone and the program continues.
static SEEN: Mutex<Vec<Observed>> = Mutex::new(Vec::new());

/// How many milliseconds to wait for another thread's observation. In a forked child the thread that holds a lock may
/// not exist.
/// exist.
const TIMEOUT_MS: u32 = 5_000;

fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..TIMEOUT_MS {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// The slice's attach socket, if this process is in a slice.
pub fn path() -> Option<&'static Path> {
    environment::slice()
}

/// Names processes as those who look know them.
static NAMED: OnceLock<fn(u32) -> u32> = OnceLock::new();

/// Has lists of processes name each process of the ledger by what this gives for its id. A process that answers for
/// another one sets it: the ledger has workers, and their programs are what people know.
pub fn name_processes(named: fn(u32) -> u32) {
    let _first = NAMED.set(named);
}

/// The id under which a process of the ledger is shown.
pub fn shown(pid: u32) -> u32 {
    NAMED.get().map_or(pid, |named| named(pid))
}

/// Has the devices searched again at their next use: handles are those of the newest nvmlInit.
pub fn forget_devices() {
    if let Some(mut devices) = lock(&DEVICES) {
        *devices = None;
    }
}

/// The present state of account `account` of the slice; the last known one, if its page server no longer answers.
///
/// # Errors
/// `NVML_ERROR_NOT_READY` if no state is known.
pub fn look(path: &Path, account: u32) -> Result<Observed> {
    let found = attach::observe(path, account);
    let seen = lock(&SEEN);
    match found {
        Ok(now) => {
            if let Some(mut seen) = seen {
                match seen.iter_mut().find(|before| before.account == account) {
                    Some(before) => *before = now.clone(),
                    None => seen.push(now.clone()),
                }
            }
            Ok(now)
        }
        Err(error) => {
            log::line(format_args!(
                "Cannot look at the slice at {}: {error}",
                path.display()
            ));
            let before = seen.and_then(|seen| seen.iter().find(|before| before.account == account).cloned());
            before.ok_or(NVML_ERROR_NOT_READY)
        }
    }
}

/// The slice's devices, in the order of its accounts, which is also CUDA's order. An account that covers any device
/// stands for all devices that no other account covers.
///
/// # Errors
/// As [`look`], or the error of the library below.
pub fn devices(path: &Path) -> Result<Vec<Device>> {
    let mut known = lock(&DEVICES).ok_or(NVML_ERROR_NOT_READY)?;
    if let Some(devices) = known.as_ref() {
        return Ok(devices.clone());
    }
    let first = look(path, 0)?;
    let mut accounts = Vec::new();
    for account in 1..first.accounts {
        accounts.push(look(path, account)?);
    }
    accounts.insert(0, first);
    let mut below = devices_below()?;
    let is_gpu = |uuid: &[u8; 16]| *uuid == [0; 16] || below.iter().any(|(_, other)| other == uuid);
    if !accounts.iter().all(|account| is_gpu(&account.device_uuid)) {
        // A MIG device has no index of its own.
        let instances = mig_devices_below(&below)?;
        below.extend(instances);
    }
    let mut devices = Vec::new();
    for account in accounts.iter().filter(|account| account.device_uuid != [0; 16]) {
        if let Some(place) = below.iter().position(|(_, uuid)| *uuid == account.device_uuid) {
            let (handle, _) = below.remove(place);
            devices.push(Device {
                handle,
                account: account.account,
            });
        }
    }
    if let Some(any) = accounts.iter().find(|account| account.device_uuid == [0; 16]) {
        devices.extend(below.iter().map(|(handle, _)| Device {
            handle: *handle,
            account: any.account,
        }));
    }
    *known = Some(devices.clone());
    Ok(devices)
}

/// The account that is charged for the device of a handle. Each hook starts with this.
///
/// # Errors
/// `NVML_ERROR_NO_PERMISSION` for a device that is not the slice's; otherwise as [`devices`].
pub fn account_of(path: &Path, device: nvmlDevice_t) -> Result<Observed> {
    let devices = devices(path)?;
    let wanted = Handle::of(device);
    let found = devices.iter().find(|device| device.handle == wanted);
    look(path, found.ok_or(NVML_ERROR_NO_PERMISSION)?.account)
}

/// Handle and UUID of every MIG device of these GPUs.
fn mig_devices_below(gpus: &[(Handle, [u8; 16])]) -> Result<Vec<(Handle, [u8; 16])>> {
    let mut devices = Vec::new();
    for (gpu, _) in gpus {
        let mut most = 0;
        // SAFETY: the handle came from the library below; a valid out-parameter. A GPU without MIG has none.
        if unsafe { forward::nvmlDeviceGetMaxMigDeviceCount(gpu.raw(), &raw mut most) } != NVML_SUCCESS {
            continue;
        }
        for index in 0..most {
            let mut handle = core::ptr::null_mut();
            // SAFETY: as above. There may be holes between the indices.
            if unsafe { forward::nvmlDeviceGetMigDeviceHandleByIndex(gpu.raw(), index, &raw mut handle) }
                == NVML_SUCCESS
            {
                devices.extend(named(handle));
            }
        }
    }
    Ok(devices)
}

/// A device's handle with its UUID; `None` for a device that does not report one.
fn named(handle: nvmlDevice_t) -> Option<(Handle, [u8; 16])> {
    let mut text = [0; NVML_DEVICE_UUID_V2_BUFFER_SIZE as usize];
    // SAFETY: the buffer has the stated size.
    let answer =
        unsafe { forward::nvmlDeviceGetUUID(handle, text.as_mut_ptr(), NVML_DEVICE_UUID_V2_BUFFER_SIZE) };
    if answer != NVML_SUCCESS {
        return None;
    }
    // SAFETY: the library below wrote a C string.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Some((Handle::of(handle), uuid(text.to_bytes()).unwrap_or([0; 16])))
}

/// Handle and UUID of every device below, in its order.
fn devices_below() -> Result<Vec<(Handle, [u8; 16])>> {
    let mut count = 0;
    // SAFETY: a valid out-parameter.
    done(unsafe { forward::nvmlDeviceGetCount_v2(&raw mut count) })?;
    let mut devices = Vec::new();
    for index in 0..count {
        let mut handle = core::ptr::null_mut();
        // SAFETY: a valid out-parameter.
        if unsafe { forward::nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle) } != NVML_SUCCESS {
            // A device that has fallen off the bus has no account.
            continue;
        }
        devices.extend(named(handle));
    }
    Ok(devices)
}

/// Reads `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, or the same after `MIG-`.
fn uuid(text: &[u8]) -> Option<[u8; 16]> {
    let text = text.strip_prefix(b"GPU-").or(text.strip_prefix(b"MIG-"))?;
    let mut digits = text.iter().filter(|byte| **byte != b'-').map(|byte| {
        let digit = char::from(*byte).to_digit(16)?;
        u8::try_from(digit).ok()
    });
    let mut uuid = [0; 16];
    for byte in &mut uuid {
        *byte = digits.next()?? << 4 | digits.next()??;
    }
    digits.next().is_none().then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_read_as_nvml_writes_them() {
        let bytes = [0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0xff];
        assert_eq!(uuid(b"GPU-1a2b3c4d-0001-0203-0405-060708090aff"), Some(bytes));
        assert_eq!(uuid(b"MIG-1A2B3C4D-0001-0203-0405-060708090AFF"), Some(bytes));
        for wrong in [
            &b"1a2b3c4d-0001-0203-0405-060708090aff"[..],
            b"GPU-1a2b",
            b"GPU-1a2b3c4d-0001-0203-0405-060708090aff00",
            b"GPU-1a2b3c4d-0001-0203-0405-060708090azz",
        ] {
            assert_eq!(uuid(wrong), None);
        }
    }
}
