//! Which of the slice's accounts covers a device. It is found by UUID, since CUDA_VISIBLE_DEVICES may change a device's
//! ordinal.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};

use divvy_abi::{CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_SUPPORTED, CUdevice, CUresult, CUuuid};
use divvy_ledger::{Bypass, MAX_ACCOUNTS, Policy};

use crate::below::forward;
use crate::log;
use crate::tenant::Membership;

/// Ordinals that are remembered. A host with more devices asks the driver each time.
const REMEMBERED: usize = 128;
const UNKNOWN: u8 = 0;
const NO_ACCOUNT: u8 = u8::MAX;
const _: () = assert!(MAX_ACCOUNTS < NO_ACCOUNT as u32);

/// By ordinal: [`UNKNOWN`], [`NO_ACCOUNT`], or an account's index plus one. An ordinal means the same device as long as the
/// process lives.
static ACCOUNTS: [AtomicU8; REMEMBERED] = [const { AtomicU8::new(UNKNOWN) }; REMEMBERED];

/// The account that is charged for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceAccount {
    /// The account with this index.
    Account(u8),
    /// No account: the slice has no share of it, but the policy allows its use.
    NoAccount,
}

/// The account for the current context's device.
///
/// # Errors
/// The driver's error if there is no current context, or as [`of`].
pub(crate) fn current(member: &Membership) -> Result<DeviceAccount, CUresult> {
    let mut device = MaybeUninit::<CUdevice>::uninit();
    // SAFETY: a valid out-parameter.
    unsafe { forward::cuCtxGetDevice(device.as_mut_ptr()) }.ok()?;
    // SAFETY: the driver has just filled it in.
    of(member, unsafe { device.assume_init() })
}

/// The account for `device`.
///
/// # Errors
/// `CUDA_ERROR_INVALID_DEVICE` for a device of which the slice has no share, under a strict policy. The driver's error
/// if it does not know the device's UUID.
pub(crate) fn of(member: &Membership, device: CUdevice) -> Result<DeviceAccount, CUresult> {
    let place = usize::try_from(device)
        .ok()
        .and_then(|ordinal| ACCOUNTS.get(ordinal));
    let account = match place.map_or(UNKNOWN, |place| place.load(Ordering::Relaxed)) {
        UNKNOWN => {
            let account = ask(member, device)?;
            if let Some(place) = place
                && place
                    .compare_exchange(UNKNOWN, account, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
                && account == NO_ACCOUNT
            {
                note_foreign_device(member, device);
            }
            account
        }
        account => account,
    };
    if account != NO_ACCOUNT {
        return Ok(DeviceAccount::Account(account - 1));
    }
    match member.first().policy() {
        Policy::Strict => Err(CUDA_ERROR_INVALID_DEVICE),
        Policy::BestEffort => {
            member.look_devices_up();
            Ok(DeviceAccount::NoAccount)
        }
    }
}

fn ask(member: &Membership, device: CUdevice) -> Result<u8, CUresult> {
    let mut uuid = MaybeUninit::<CUuuid>::zeroed();
    // SAFETY: a valid out-parameter; the driver checks the ordinal. The second version tells MIG devices apart.
    let mut answer = unsafe { forward::cuDeviceGetUuid_v2(uuid.as_mut_ptr(), device) };
    if answer == CUDA_ERROR_NOT_SUPPORTED {
        // SAFETY: as above.
        answer = unsafe { forward::cuDeviceGetUuid(uuid.as_mut_ptr(), device) };
    }
    if answer == CUDA_ERROR_NOT_SUPPORTED && member.count() == 1 {
        // The driver does not tell its devices apart: one account covers them all.
        return Ok(1);
    }
    answer.ok()?;
    // SAFETY: plain bytes, for which any value is valid; and the driver has filled them in.
    let uuid = unsafe { uuid.assume_init() };
    let uuid = uuid.bytes.map(|byte| byte.to_ne_bytes()[0]);
    let account = member.accounts().position(|account| {
        let theirs = account.grant().device_uuid();
        // A grant that names no device covers any.
        theirs == uuid || theirs == [0; 16]
    });
    Ok(account
        .and_then(|index| u8::try_from(index + 1).ok())
        .unwrap_or(NO_ACCOUNT))
}

#[cold]
fn note_foreign_device(member: &Membership, device: CUdevice) {
    match member.first().policy() {
        Policy::Strict => log::line(format_args!(
            "Device {device} is refused: this slice has no share of it"
        )),
        Policy::BestEffort => {
            log::line(format_args!(
                "Device {device} is used past the limiter: this slice has no share of it"
            ));
            member.first().slot().count(Bypass::ForeignDevice);
        }
    }
}
