//! An account is one pair of pages, grant and ledger, for one device.
//!
//! Every hook gets the account of an allocation here. Its reservation is the only place where a slice grants or refuses
//! memory. A charge remembers its account's index, so that a free gives back to it.

use core::time::Duration;

use divvy_abi::{CUDA_ERROR_INVALID_DEVICE, CUdevice, CUresult};
use divvy_charges::environment;
use divvy_ledger::attach::Attached;
use divvy_ledger::{ReserveError, Slot};

use crate::bypass_libraries;
use crate::devices::{self, DeviceAccount};
use crate::log;
use crate::tenant::{self, Membership, Tenant};

/// Allocations from this size on, in bytes, are slow enough in any driver to check for bypasses as well.
const LARGE: u64 = 2 << 20;

/// The account of one device. A handle: copying it copies nothing.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    attached: &'static Attached,
    index: u8,
}

impl Account {
    /// Its index among this process's accounts, which a charge remembers.
    #[inline]
    #[must_use]
    pub fn index(self) -> u8 {
        self.index
    }

    /// The pages.
    #[inline]
    #[must_use]
    pub fn attached(self) -> &'static Attached {
        self.attached
    }
}

impl environment::Account for Account {
    #[inline]
    fn index(self) -> u8 {
        self.index
    }

    #[inline]
    fn reserve(self, bytes: u64) -> Result<(), ReserveError> {
        self.attached.reserve(bytes)
    }

    #[inline]
    fn give_back(self, bytes: u64) {
        if let Err(error) = self.attached.release(bytes) {
            log::line(format_args!("{bytes} bytes cannot be returned: {error}"));
        }
    }

    /// According to the newest grant.
    #[inline]
    fn limit_bytes(self) -> u64 {
        self.attached.follow_grant();
        self.attached.memory_limit_bytes()
    }

    /// Memory that is neither in use nor the driver's overhead. A forked child, which cannot see the ledger, has none.
    #[inline]
    fn room_bytes(self) -> u64 {
        self.attached.follow_grant();
        self.attached.room_bytes().unwrap_or(0)
    }

    fn context_bytes(self) -> u64 {
        self.attached.grant().terms().context_bytes
    }

    fn slot(self) -> Option<&'static Slot> {
        Some(self.attached.slot())
    }

    #[inline]
    fn spill_limit_bytes(self) -> u64 {
        self.attached.spill_limit_bytes()
    }

    fn look_afresh(self, bytes: u64) -> bool {
        self.attached.look_afresh(bytes)
    }

    fn since_return(self) -> Option<Duration> {
        self.attached.since_return()
    }

    fn begin_waiting(self, bytes: u64) -> Option<impl FnMut() -> bool> {
        let mut waiting = self.attached.begin_waiting(bytes)?;
        Some(move || waiting.pause())
    }
}

/// The account of the current context's device, or `None` if nothing is limited. A single account is returned without
/// asking the driver. Joins the slice at the first call.
///
/// # Errors
/// The program's result if its slice cannot be joined.
#[inline]
pub fn current() -> Result<Option<Account>, CUresult> {
    match tenant::join()? {
        Tenant::Unlimited => Ok(None),
        Tenant::Member(member) if member.is_by_device() => {
            bypass_libraries::permit(member)?;
            account_of(member, devices::current(member)?)
        }
        Tenant::Member(member) => Ok(Some(Account {
            attached: member.first(),
            index: 0,
        })),
    }
}

/// The account of the device with this ordinal, or `None` if nothing is limited.
///
/// # Errors
/// As [`current`]; `CUDA_ERROR_INVALID_DEVICE` if the slice has no share of the device and its policy is strict.
#[inline]
pub fn of_device(device: CUdevice) -> Result<Option<Account>, CUresult> {
    match tenant::join()? {
        Tenant::Unlimited => Ok(None),
        Tenant::Member(member) => {
            bypass_libraries::look(member)?;
            account_of(member, devices::of(member, device)?)
        }
    }
}

fn account_of(member: &'static Membership, charged: DeviceAccount) -> Result<Option<Account>, CUresult> {
    match charged {
        DeviceAccount::NoAccount => Ok(None),
        DeviceAccount::Account(index) => match member.account(index) {
            Some(attached) => Ok(Some(Account { attached, index })),
            None => Err(CUDA_ERROR_INVALID_DEVICE),
        },
    }
}

/// The account with this index, which a charge remembers; `None` if this process has charged nothing.
#[inline]
#[must_use]
pub fn paid(index: u8) -> Option<Account> {
    match tenant::known() {
        Some(Tenant::Member(member)) => member.account(index).map(|attached| Account { attached, index }),
        _ => None,
    }
}

/// All accounts of this process, by index.
pub(crate) fn all() -> impl Iterator<Item = Account> {
    let count = match tenant::known() {
        Some(Tenant::Member(member)) => member.count(),
        _ => 0,
    };
    (0..count).filter_map(|index| paid(u8::try_from(index).ok()?))
}

/// Whether charges of this process can exist: it is a member, and not a forked child with a copy of its parent's
/// tables.
#[inline]
#[must_use]
pub fn keeps_charges() -> bool {
    matches!(tenant::known(), Some(Tenant::Member(member)) if member.first().is_ours())
}

/// Before a large allocation, checks for libraries that take device memory past the limiter.
///
/// # Errors
/// `CUDA_ERROR_NOT_PERMITTED` if one was found and the policy is strict.
#[inline]
pub(crate) fn look_around(bytes: u64) -> Result<(), CUresult> {
    match tenant::known() {
        Some(Tenant::Member(member)) if bytes >= LARGE => bypass_libraries::look(member),
        _ => Ok(()),
    }
}
