//! Who pays: an account is one pair of pages, grant and ledger, that pays for one device.
//!
//! Every hook asks here which account an allocation falls on, and reserves through [`reserve`], the one place where a
//! slice says yes or no. What was charged remembers its account's index, so that a free gives back to who paid.

use divvy_abi::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_SYSTEM_NOT_READY, CUdevice, CUresult,
};
use divvy_ledger::ReserveError;
use divvy_ledger::attach::Attached;

use crate::devices::{self, Payer};
use crate::log;
use crate::patience;
use crate::room;
use crate::strangers;
use crate::tenant::{self, Membership, Tenant};

/// Allocations from here on, in bytes, are slow enough in any driver to look around for others who take memory.
const LARGE: u64 = 2 << 20;

/// Who pays for one device. A handle: copying it copies nothing.
#[derive(Clone, Copy)]
pub struct Account {
    attached: &'static Attached,
    index: u8,
}

impl Account {
    /// Which of this process's accounts it is: what a charge remembers.
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

    /// Device memory that may be used, in bytes, by the newest grant.
    #[inline]
    #[must_use]
    pub fn limit_bytes(self) -> u64 {
        self.attached.follow_grant();
        self.attached.memory_limit_bytes()
    }

    /// Bytes of the limit that are neither in use nor the driver's overhead; never below 0. A forked child, which cannot see the ledger, has none.
    #[inline]
    #[must_use]
    pub fn room_bytes(self) -> u64 {
        self.attached.follow_grant();
        self.attached.room_bytes().unwrap_or(0)
    }

    /// Takes `bytes` if they are to be had at once: for the books, under whose locks nobody may wait, and for a first try.
    /// Everybody else comes by [`reserve`].
    #[inline]
    pub(crate) fn try_reserve(self, bytes: u64) -> bool {
        self.attached.reserve(bytes).is_ok()
    }

    /// Bytes that may still be allocated beyond the limit, in managed memory; 0 where that is not allowed.
    #[inline]
    #[must_use]
    pub fn spill_room_bytes(self) -> u64 {
        match self.attached.spill_limit_bytes() {
            0 => 0,
            limit => limit.saturating_sub(self.attached.slot().total_spilled().unwrap_or(limit)),
        }
    }

    /// Returns bytes that [`reserve`] granted.
    #[inline]
    pub fn give_back(self, bytes: u64) {
        if let Err(error) = self.attached.release(bytes) {
            log::line(format_args!("{bytes} bytes cannot be returned: {error}"));
        }
    }
}

/// The account of the current context's device (with one account, that one, without a look), or `None` where nothing is limited. Joins the slice if nobody has.
///
/// # Errors
/// What the program is answered where its slice cannot be joined.
#[inline]
pub fn current() -> Result<Option<Account>, CUresult> {
    match tenant::join()? {
        Tenant::Unlimited => Ok(None),
        Tenant::Member(member) if member.is_by_device() => {
            strangers::permit(member)?;
            payer(member, devices::current(member)?)
        }
        Tenant::Member(member) => Ok(Some(Account {
            attached: member.first(),
            index: 0,
        })),
    }
}

/// The account of the device with this ordinal, or `None` where nothing is limited.
///
/// # Errors
/// As [`current`] and [`reserve`]; `CUDA_ERROR_INVALID_DEVICE` where the slice has no share of the device and its policy is strict.
#[inline]
pub fn of_device(device: CUdevice) -> Result<Option<Account>, CUresult> {
    match tenant::join()? {
        Tenant::Unlimited => Ok(None),
        Tenant::Member(member) => {
            strangers::look(member)?;
            payer(member, devices::of(member, device)?)
        }
    }
}

fn payer(member: &'static Membership, payer: Payer) -> Result<Option<Account>, CUresult> {
    match payer {
        Payer::Nobody => Ok(None),
        Payer::Account(index) => match member.account(index) {
            Some(attached) => Ok(Some(Account { attached, index })),
            None => Err(CUDA_ERROR_INVALID_DEVICE),
        },
    }
}

/// The account with this index, as a charge remembers it; `None` where this process has charged nothing.
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

/// Whether charges of this process can exist: it is a member, and not a forked child with a copy of its parent's books.
#[inline]
#[must_use]
pub fn keeps_books() -> bool {
    matches!(tenant::known(), Some(Tenant::Member(member)) if member.first().is_ours())
}

/// Takes `bytes`, a multiple of the ledger's unit, from `account`, or answers the driver's code for why not. Where the
/// slice's terms say so, it waits for room first; not to be called with a lock held. `what` is for the log: "an
/// allocation".
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY` over the limit; `CUDA_ERROR_NOT_PERMITTED` where a library was found that takes device
/// memory past us, and the policy is strict; in a forked child `CUDA_ERROR_NOT_INITIALIZED`; where the bytes cannot be
/// counted, `CUDA_ERROR_SYSTEM_NOT_READY`.
#[inline]
pub fn reserve(account: Account, bytes: u64, what: &'static str) -> Result<(), CUresult> {
    look_around(bytes)?;
    take(account, bytes, what)
}

/// [`reserve`], after [`look_around`].
///
/// # Errors
/// As [`reserve`].
#[inline]
pub(crate) fn take(account: Account, bytes: u64, what: &'static str) -> Result<(), CUresult> {
    match account.attached.reserve(bytes) {
        Ok(()) => Ok(()),
        Err(refusal) => room::reserve(account, bytes, refusal)
            .or_else(|again| patience::reserve(account, bytes, again))
            .map_err(|why| refused(bytes, what, why)),
    }
}

/// Before a large allocation, looks for libraries that take device memory past us.
///
/// # Errors
/// `CUDA_ERROR_NOT_PERMITTED` where one was found and the policy is strict.
#[inline]
pub(crate) fn look_around(bytes: u64) -> Result<(), CUresult> {
    match tenant::known() {
        Some(Tenant::Member(member)) if bytes >= LARGE => strangers::look(member),
        _ => Ok(()),
    }
}

/// Reserves `bytes` and takes them from the driver by `call`; they are charged exactly if that succeeds. `call` is made
/// again where the driver is out of memory and the slice's terms wait for room, or a process has just died whose
/// memory may be on its way back.
#[inline]
pub fn allocating(
    account: Account,
    bytes: u64,
    what: &'static str,
    call: impl FnMut() -> CUresult,
) -> CUresult {
    match reserve(account, bytes, what) {
        Ok(()) => calling(account, bytes, call),
        Err(code) => code,
    }
}

/// [`allocating`], where `bytes` are reserved by now.
#[inline]
pub(crate) fn calling(account: Account, bytes: u64, mut call: impl FnMut() -> CUresult) -> CUresult {
    let result = call();
    if result.is_success() {
        return result;
    }
    account.give_back(bytes);
    if result == CUDA_ERROR_OUT_OF_MEMORY {
        return patience::ask_again(account, bytes, &mut call);
    }
    result
}

/// The driver's code for a reservation that was not granted.
#[cold]
pub(crate) fn refused(bytes: u64, what: &'static str, refusal: ReserveError) -> CUresult {
    log::line(format_args!("{bytes} bytes for {what} are refused: {refusal}"));
    match refusal {
        ReserveError::Refused { .. } => CUDA_ERROR_OUT_OF_MEMORY,
        // As CUDA has it: a context does not survive a fork.
        ReserveError::Forked => CUDA_ERROR_NOT_INITIALIZED,
        // Strict: what cannot be counted is not granted.
        _ => CUDA_ERROR_SYSTEM_NOT_READY,
    }
}
