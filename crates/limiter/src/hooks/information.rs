//! Functions that tell how much memory there is: inside a slice, the slice's.
#![allow(non_snake_case)]

use divvy_abi::{CUdevice, CUresult, guard};
use divvy_ledger::attach::Attached;

use crate::below::forward;
use crate::tenant::{self, Tenant};

/// The member whose slice to show, if this process is in one.
#[inline]
fn member() -> Option<&'static Attached> {
    match tenant::known() {
        Some(Tenant::Member(member)) => Some(member),
        _ => None,
    }
}

/// What the slice sees of a device: the smaller of its own room and the device's, never below 0.
#[inline]
fn within(member: &Attached, free: u64, total: u64) -> (u64, u64) {
    member.follow_grant();
    let limit = member.memory_limit_bytes();
    // A forked child cannot see the ledger; neither can it use the device.
    let used = member.total_used().unwrap_or(limit);
    (free.min(limit.saturating_sub(used)), total.min(limit))
}

/// The older interface counts in 32 bits. What is shown is never above the driver's own answer, so it fits.
fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

macro_rules! memory_info {
    ($name:ident, $of:ty, $narrow:expr) => {
        pub(super) unsafe extern "C-unwind" fn $name(free: *mut $of, total: *mut $of) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came.
                let result = unsafe { forward::$name(free, total) };
                if let Some(member) = member()
                    && result.is_success()
                    && !free.is_null()
                    && !total.is_null()
                {
                    // SAFETY: the driver has just filled them in.
                    unsafe {
                        let (slice_free, slice_total) =
                            within(member, free.read() as u64, total.read() as u64);
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
                if let Some(member) = member()
                    && result.is_success()
                    && !bytes.is_null()
                {
                    member.follow_grant();
                    // SAFETY: the driver has just filled it in.
                    unsafe {
                        bytes.write($narrow(
                            (bytes.read() as u64).min(member.memory_limit_bytes()),
                        ))
                    };
                }
                result
            })
        }
    };
}

total_memory!(cuDeviceTotalMem, u32, narrow);
total_memory!(cuDeviceTotalMem_v2, usize, |bytes| bytes as usize);
