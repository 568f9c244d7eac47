//! This process's membership in its slice.
//!
//! Strict: a process that was given a slice and cannot join it gets no device memory and no initialised driver, never
//! an unlimited one.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use core::time::Duration;

use divvy_abi::{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_NOT_READY, CUresult};
use divvy_ledger::PageError;
use divvy_ledger::attach::{self, AttachError, Attached};

use crate::{environment, log};

/// Where this process stands.
#[derive(Clone, Copy)]
pub enum Tenant {
    /// No slice was given: nothing is limited.
    Unlimited,
    /// A member of a slice.
    Member(&'static Attached),
}

/// Null until the first look, then [`NO_SLICE`] or a leaked [`Attached`].
static MEMBERSHIP: AtomicPtr<Attached> = AtomicPtr::new(core::ptr::null_mut());
const NO_SLICE: *mut Attached = NonNull::<Attached>::dangling().as_ptr();

/// Held while one thread attaches.
static JOINING: AtomicBool = AtomicBool::new(false);
/// Rounds of a millisecond to wait for another thread's attach, which itself takes 5 s at most.
const PATIENCE: u32 = 10_000;

/// Joins the slice if there is one and nobody has.
///
/// # Errors
/// What cuInit answers when the slice cannot be joined: `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH` where the other side
/// speaks another version, else `CUDA_ERROR_SYSTEM_NOT_READY`.
#[inline]
pub fn join() -> Result<Tenant, CUresult> {
    match known() {
        Some(tenant) => Ok(tenant),
        None => first_join(),
    }
}

/// Where this process stands, if it has joined or found that there is nothing to join.
#[inline]
pub fn known() -> Option<Tenant> {
    let membership = MEMBERSHIP.load(Ordering::Acquire);
    if membership.is_null() {
        None
    } else if core::ptr::eq(membership, NO_SLICE) {
        Some(Tenant::Unlimited)
    } else {
        // SAFETY: what is neither null nor NO_SLICE was leaked by `enter`.
        Some(Tenant::Member(unsafe { &*membership }))
    }
}

#[cold]
fn first_join() -> Result<Tenant, CUresult> {
    let Some(path) = environment::slice() else {
        // Somebody may have entered meanwhile: then that holds.
        let _entered = MEMBERSHIP.compare_exchange(
            core::ptr::null_mut(),
            NO_SLICE,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        return Ok(known().unwrap_or(Tenant::Unlimited));
    };
    for _ in 0..PATIENCE {
        if let Some(tenant) = known() {
            return Ok(tenant);
        }
        if !JOINING.swap(true, Ordering::AcqRel) {
            let outcome = match known() {
                Some(tenant) => Ok(tenant),
                None => attach::connect(path, 0).map(enter).map_err(|error| {
                    log::line(format_args!(
                        "Cannot join the slice at {}: {error}",
                        path.display()
                    ));
                    code(error)
                }),
            };
            JOINING.store(false, Ordering::Release);
            return outcome;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(CUDA_ERROR_SYSTEM_NOT_READY)
}

/// Makes this process a member, for the rest of its life.
pub fn enter(attached: Attached) -> Tenant {
    // Leaked: hooks on other threads hold references to it until the process ends.
    let attached: &'static Attached = Box::leak(Box::new(attached));
    MEMBERSHIP.store(core::ptr::from_ref(attached).cast_mut(), Ordering::Release);
    Tenant::Member(attached)
}

fn code(error: AttachError) -> CUresult {
    match error {
        AttachError::Version { .. } | AttachError::Page(PageError::Version { .. }) => {
            CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        }
        _ => CUDA_ERROR_SYSTEM_NOT_READY,
    }
}
