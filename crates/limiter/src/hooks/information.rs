//! Functions that tell how much memory there is: inside a slice, the slice's.
#![allow(non_snake_case)]

use divvy_abi::{CUdevice, CUresult, guard};

use crate::account::{self, Account};
use crate::below::forward;
use crate::books::follow;

/// What the slice sees of a device: the smaller of its own room and the device's, never below 0.
#[inline]
fn within(account: Account, free: u64, total: u64) -> (u64, u64) {
    (free.min(account.room_bytes()), total.min(account.limit_bytes()))
}

/// The older interface counts in 32 bits. What is shown is never above the driver's own answer, so it fits.
fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

macro_rules! memory_info {
    ($name:ident, $of:ty, $narrow:expr) => {
        pub(super) unsafe extern "C-unwind" fn $name(free: *mut $of, total: *mut $of) -> CUresult {
            guard(|| {
                follow();
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
                    unsafe { bytes.write($narrow((bytes.read() as u64).min(account.limit_bytes()))) };
                }
                result
            })
        }
    };
}

total_memory!(cuDeviceTotalMem, u32, narrow);
total_memory!(cuDeviceTotalMem_v2, usize, |bytes| bytes as usize);
