//! Functions that report memory sizes: inside a slice, the slice's sizes.
#![allow(non_snake_case)]

use divvy_abi::{CUdevice, CUresult, guard};
use divvy_charges::environment::Account as _;

use crate::account::{self, Account};
use crate::below::forward;
use crate::charges::CHARGES;

/// Bytes that may still be allocated beyond the limit, in managed memory; 0 if that is not allowed.
fn spill_room_bytes(account: Account) -> u64 {
    match account.spill_limit_bytes() {
        0 => 0,
        limit => {
            let spilled = account.attached().slot().total_spilled();
            limit.saturating_sub(spilled.unwrap_or(limit))
        }
    }
}

/// A device's free memory as the slice sees it: the smaller of the slice's and the device's, never below 0.
#[inline]
fn within(account: Account, free: u64, total: u64) -> (u64, u64) {
    // Memory beyond the share counts as well, since it does not lie on the device.
    (
        free.min(account.room_bytes())
            .saturating_add(spill_room_bytes(account)),
        total_within(account, total),
    )
}

/// A device's total memory as the slice sees it.
#[inline]
fn total_within(account: Account, total: u64) -> u64 {
    total
        .min(account.limit_bytes())
        .saturating_add(account.spill_limit_bytes())
}

/// The older interface counts in 32 bits: larger values are shown as the maximum.
fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

macro_rules! memory_info {
    ($name:ident, $of:ty, $narrow:expr) => {
        pub(super) unsafe extern "C-unwind" fn $name(free: *mut $of, total: *mut $of) -> CUresult {
            guard(|| {
                CHARGES.follow();
                // SAFETY: the arguments are handed on as they came.
                let result = unsafe { forward::$name(free, total) };
                if result.is_success()
                    && let Ok(Some(account)) = account::current()
                    && !free.is_null()
                    && !total.is_null()
                {
                    // SAFETY: the driver has just filled them in.
                    unsafe {
                        let (slice_free, slice_total) =
                            within(account, free.read() as u64, total.read() as u64);
                        free.write($narrow(slice_free));
                        total.write($narrow(slice_total));
                    }
                }
                result
            })
        }
    };
}

memory_info!(cuMemGetInfo, u32, narrow);
memory_info!(cuMemGetInfo_v2, usize, |bytes| bytes as usize);

macro_rules! total_memory {
    ($name:ident, $of:ty, $narrow:expr) => {
        pub(super) unsafe extern "C-unwind" fn $name(bytes: *mut $of, device: CUdevice) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came.
                let result = unsafe { forward::$name(bytes, device) };
                if result.is_success()
                    && let Ok(Some(account)) = account::of_device(device)
                    && !bytes.is_null()
                {
                    // SAFETY: the driver has just filled it in.
                    unsafe { bytes.write($narrow(total_within(account, bytes.read() as u64))) };
                }
                result
            })
        }
    };
}

total_memory!(cuDeviceTotalMem, u32, narrow);
total_memory!(cuDeviceTotalMem_v2, usize, |bytes| bytes as usize);
