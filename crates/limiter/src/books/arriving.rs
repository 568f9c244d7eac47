//! Physical memory that is about to come by a shareable handle, paid for before the driver is asked: when nobody holds it
//! any more but the handle, the import is what takes it from the device.
//!
//! On which device it is, the driver tells only after the import. Until then its bytes are reserved on every device of the
//! slice.

use divvy_abi::CUresult;

use super::physical::{self, Held, Identity};
use super::shared::{self, Key, Share};
use super::{grain, rounded};
use crate::account::{self, Account};

/// What is paid for an import until the driver has answered.
pub(crate) enum Arriving {
    /// This process has it already, and keeps it until then.
    Held(Held),
    /// Another process of the slice pays.
    Guest(Share),
    /// Bytes reserved of these accounts; of none where nobody tells the size.
    Reserved(Vec<(Account, u64)>),
}

impl Arriving {
    /// The driver is about to be asked for an allocation.
    ///
    /// # Errors
    /// As [`account::reserve`]; the driver is not to be asked.
    pub fn begin(identity: Option<Identity>) -> Result<Self, CUresult> {
        let Some(Identity { key, bytes }) = identity else {
            return Ok(Self::Reserved(Vec::new()));
        };
        if let Some(held) = physical::held(key) {
            return Ok(Self::Held(held));
        }
        let Some(bytes) = bytes else {
            return Ok(Self::Reserved(Vec::new()));
        };
        let bytes = |account| rounded(grain::whole_pages(account, bytes));
        if let Some(share) = account::all().find_map(|account| shared::joined(account, key, bytes(account))) {
            return Ok(Self::Guest(share));
        }
        let mut reserved = Vec::new();
        for account in account::all() {
            let bytes = bytes(account);
            if let Err(code) = account::reserve(account, bytes, "an imported allocation") {
                Self::Reserved(reserved).not_needed();
                return Err(code);
            }
            reserved.push((account, bytes));
        }
        Ok(Self::Reserved(reserved))
    }

    /// The driver has refused, or nobody needs to pay. No lock is held.
    pub fn not_needed(self) {
        match self {
            Self::Held(held) => held.ended(),
            Self::Guest(share) => share.ended(),
            Self::Reserved(reserved) => {
                for (account, bytes) in reserved {
                    account.give_back(bytes);
                }
            }
        }
    }

    /// It is on the device of `account`, and has `bytes`. No lock is held.
    ///
    /// # Errors
    /// As [`account::reserve`], where more is needed than was thought.
    pub fn paid(self, account: Account, key: Key, bytes: u64) -> Result<Share, CUresult> {
        match self {
            Self::Guest(share) if share.account() == account.index() => return Ok(share.with_bytes(bytes)),
            Self::Reserved(mut reserved) => {
                let place = reserved
                    .iter()
                    .position(|(other, has)| other.index() == account.index() && *has >= bytes);
                let enough = place.map(|place| reserved.swap_remove(place));
                Self::Reserved(reserved).not_needed();
                if let Some((account, has)) = enough {
                    account.give_back(has - bytes);
                    return Ok(shared::reserved(account, key, bytes));
                }
            }
            other => other.not_needed(),
        }
        shared::imported(account, key, bytes)
    }
}
