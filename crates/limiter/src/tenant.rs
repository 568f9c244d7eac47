//! This process's membership in its slice.
//!
//! It is strict: a process that was given a slice and cannot join it gets no device memory and no initialised driver,
//! and never an unlimited one.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use core::time::Duration;
use std::path::Path;

use divvy_abi::{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_SYSTEM_NOT_READY, CUresult};
use divvy_ledger::attach::{self, AttachError, Attached};
use divvy_ledger::{CopyPath, PageError};

use crate::{environment, log};

/// This process's membership state.
#[derive(Clone, Copy)]
pub enum Tenant {
    /// No slice was given: nothing is limited.
    Unlimited,
    /// A member of a slice.
    Member(&'static Membership),
}

/// This process's accounts: one for each device of its slice.
#[derive(Debug)]
pub struct Membership {
    first: Attached,
    rest: Vec<Attached>,
    /// Whether an allocation has to look its device up. With one account, and only its own device in use, that account
    /// is charged.
    by_device: AtomicBool,
}

impl Membership {
    /// The account of the slice's first device. It holds the policy and all other settings of the whole slice.
    #[inline]
    #[must_use]
    pub fn first(&self) -> &Attached {
        &self.first
    }

    /// The account with this index.
    #[inline]
    #[must_use]
    pub fn account(&self, index: u8) -> Option<&Attached> {
        match index {
            0 => Some(&self.first),
            _ => self.rest.get(usize::from(index) - 1),
        }
    }

    /// All accounts, by index.
    pub fn accounts(&self) -> impl Iterator<Item = &Attached> {
        core::iter::once(&self.first).chain(&self.rest)
    }

    /// How many accounts there are.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.rest.len()
    }

    /// Whether an allocation has to look its device up.
    #[inline]
    pub(crate) fn is_by_device(&self) -> bool {
        self.by_device.load(Ordering::Relaxed)
    }

    /// From now on, allocations look their device up.
    pub(crate) fn look_devices_up(&self) {
        self.by_device.store(true, Ordering::Relaxed);
    }
}

/// Null until the first check, then [`NO_SLICE`] or a leaked [`Membership`].
static MEMBERSHIP: AtomicPtr<Membership> = AtomicPtr::new(core::ptr::null_mut());
const NO_SLICE: *mut Membership = NonNull::<Membership>::dangling().as_ptr();

/// Held while one thread attaches.
static JOINING: AtomicBool = AtomicBool::new(false);
/// How many milliseconds to wait for another thread's attach, which itself takes 5 s at most.
const TIMEOUT_MS: u32 = 10_000;

/// Joins the slice if there is one and this process has not joined yet.
///
/// # Errors
/// The result of cuInit if the slice cannot be joined: `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH` if the other side uses
/// another version, else `CUDA_ERROR_SYSTEM_NOT_READY`.
#[inline]
pub fn join() -> Result<Tenant, CUresult> {
    match known() {
        Some(tenant) => Ok(tenant),
        None => first_join(),
    }
}

/// This process's state, if it has joined or found that there is no slice to join.
#[inline]
pub fn known() -> Option<Tenant> {
    let membership = MEMBERSHIP.load(Ordering::Acquire);
    if membership.is_null() {
        None
    } else if core::ptr::eq(membership, NO_SLICE) {
        Some(Tenant::Unlimited)
    } else {
        // SAFETY: a pointer that is neither null nor NO_SLICE was leaked by `enter`.
        Some(Tenant::Member(unsafe { &*membership }))
    }
}

/// Counts bytes in the slice's ledger that a worker copied for its program: in that of the first device.
pub fn count_copied(path: CopyPath, bytes: u64) {
    if let Some(Tenant::Member(member)) = known() {
        member.first().slot().count_copied(path, bytes);
    }
}

#[cold]
fn first_join() -> Result<Tenant, CUresult> {
    let Some(path) = environment::slice() else {
        // Another thread may have entered meanwhile: then its state holds.
        let _entered = MEMBERSHIP.compare_exchange(
            core::ptr::null_mut(),
            NO_SLICE,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        return Ok(known().unwrap_or(Tenant::Unlimited));
    };
    for _ in 0..TIMEOUT_MS {
        if let Some(tenant) = known() {
            return Ok(tenant);
        }
        if !JOINING.swap(true, Ordering::AcqRel) {
            let outcome = match known() {
                Some(tenant) => Ok(tenant),
                None => connect_all(path).map(enter).map_err(|error| {
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

/// Attaches to every account of the slice, or to none.
fn connect_all(path: &Path) -> Result<Vec<Attached>, AttachError> {
    let first = attach::connect(path, 0)?;
    let count = first.grant().accounts();
    let mut accounts = vec![first];
    for account in 1..count {
        accounts.push(attach::connect(path, account)?);
    }
    Ok(accounts)
}

/// Makes this process a member with these accounts, by index, for the rest of its life. Without any, its state does not
/// change.
pub fn enter(accounts: Vec<Attached>) -> Tenant {
    let mut accounts = accounts.into_iter();
    let Some(first) = accounts.next() else {
        return known().unwrap_or(Tenant::Unlimited);
    };
    let rest: Vec<_> = accounts.collect();
    // Leaked: hooks on other threads hold references to it until the process ends.
    let member: &'static Membership = Box::leak(Box::new(Membership {
        by_device: AtomicBool::new(!rest.is_empty()),
        first,
        rest,
    }));
    MEMBERSHIP.store(core::ptr::from_ref(member).cast_mut(), Ordering::Release);
    Tenant::Member(member)
}

fn code(error: AttachError) -> CUresult {
    match error {
        AttachError::Version { .. } | AttachError::Page(PageError::Version { .. }) => {
            CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
        }
        _ => CUDA_ERROR_SYSTEM_NOT_READY,
    }
}
