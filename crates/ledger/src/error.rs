//! What can go wrong with pages and reservations.

use core::fmt;

use rustix::io::Errno;

/// Why a page cannot be made or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageError {
    /// The bytes are not a Divvy page.
    Foreign {
        /// "grant" or "ledger".
        page: &'static str,
    },
    /// The page is of another version of the page ABI.
    Version {
        /// "grant" or "ledger".
        page: &'static str,
        /// The version that this program uses.
        ours: u32,
        /// The version of the page.
        theirs: u32,
    },
    /// The page's size is not that of its version.
    Size {
        /// "grant" or "ledger".
        page: &'static str,
        /// Size in bytes of a page of this program's version.
        expected: u64,
        /// Size in bytes found.
        found: u64,
    },
    /// The descriptor lacks seals. Without them its pages may vanish, or be written, under their users.
    Unsealed {
        /// "grant" or "ledger".
        page: &'static str,
    },
    /// A slice's id or name is longer than its field.
    TextTooLong {
        /// Length of the text in bytes.
        bytes: usize,
    },
    /// A slice has at least one account and at most [`crate::MAX_ACCOUNTS`], numbered from 0.
    NoSuchAccount {
        /// The account's number.
        account: u32,
        /// How many accounts were declared.
        accounts: u32,
    },
    /// All process slots are taken by living processes.
    NoFreeSlot,
    /// The page's contents cannot come from its users' algorithms: another writer is corrupting it.
    Corrupted {
        /// "grant" or "ledger".
        page: &'static str,
    },
    /// The system refused a step.
    System {
        /// The call and what it was for.
        step: &'static str,
        /// The system's reason.
        errno: Errno,
    },
}

impl PageError {
    /// For `map_err`: names the failed step.
    pub(crate) fn system(step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::System { step, errno }
    }
}

impl fmt::Display for PageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign { page } => write!(out, "Not a {page} page of Divvy's"),
            Self::Version { page, ours, theirs } => write!(
                out,
                "The {page} page is of page-ABI version {theirs}; this program speaks version {ours}"
            ),
            Self::Size {
                page,
                expected,
                found,
            } => {
                write!(out, "The {page} page has {found} bytes instead of {expected}")
            }
            Self::Unsealed { page } => write!(out, "The {page} page is not sealed as the agent seals it"),
            Self::TextTooLong { bytes } => {
                write!(
                    out,
                    "A text of {bytes} bytes does not fit the grant's {} bytes",
                    crate::TEXT_BYTES
                )
            }
            Self::NoSuchAccount { account, accounts } => {
                write!(out, "There is no account {account} in a slice of {accounts}")
            }
            Self::NoFreeSlot => {
                write!(
                    out,
                    "All {} process slots of the slice are taken",
                    crate::accounting::SLOTS
                )
            }
            Self::Corrupted { page } => write!(out, "The {page} page has been written over"),
            Self::System { step, errno } => write!(out, "{step}: {errno}"),
        }
    }
}

impl core::error::Error for PageError {}

/// Why a reservation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReserveError {
    /// It does not fit.
    Refused {
        /// The limit it was held against, in bytes.
        limit_bytes: u64,
        /// The use at the moment of the decision, in bytes.
        used_bytes: u64,
    },
    /// This process is a forked child of the slot's owner: it has to take a slot of its own first.
    Forked,
    /// The ledger's contents cannot come from its users' algorithms: another writer is corrupting it.
    Corrupted,
}

impl fmt::Display for ReserveError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused {
                limit_bytes,
                used_bytes,
            } => {
                write!(
                    out,
                    "Does not fit: {used_bytes} of {limit_bytes} bytes are in use"
                )
            }
            Self::Forked => write!(out, "The slot belongs to the parent process"),
            Self::Corrupted => write!(out, "The ledger page has been written over"),
        }
    }
}

impl core::error::Error for ReserveError {}
