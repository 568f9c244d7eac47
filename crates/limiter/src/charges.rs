//! The charges of this process, and its accounts in the form that the charges crate needs.

use core::fmt;
use core::time::Duration;

use divvy_abi::{CUdevice, CUresult};
use divvy_charges::Charges;
use divvy_charges::environment::Accounts;

use crate::account::{self, Account};
use crate::driver::Native;
use crate::{leave, log, threads};

/// The charges of this process. A forked child has a copy of its parent's, and uses none of it.
pub(crate) static CHARGES: Charges<Native> = Charges::new(Native);

/// How long the thread that watches residual memory sleeps without a call.
const AT_REST: Duration = Duration::from_secs(5);

impl Accounts for Native {
    type Account = Account;

    #[inline]
    fn is_ours(&self) -> bool {
        account::keeps_charges()
    }

    #[inline]
    fn account(&self, index: u8) -> Option<Account> {
        account::paid(index)
    }

    fn accounts(&self) -> impl Iterator<Item = Account> {
        account::all()
    }

    fn of_device(&self, device: CUdevice) -> Result<Option<Account>, CUresult> {
        account::of_device(device)
    }

    #[inline]
    fn permit(&self, bytes: u64) -> Result<(), CUresult> {
        account::look_around(bytes)
    }

    fn watch(&self, account: Account) -> bool {
        let started = threads::start("divvy-charges", move || watch(account));
        if let Err(error) = &started {
            log::line(format_args!("No thread for residual memory: {error}"));
        }
        started.is_ok()
    }

    fn log(&self, message: fmt::Arguments<'_>) {
        log::line(message);
    }
}

/// Checks at every call, until no residual memory is left.
fn watch(account: Account) {
    let slot = account.attached().slot();
    loop {
        let calls = slot.calls();
        let looked = leave::unless_exiting(|| CHARGES.follow_residuals());
        if CHARGES.watch_ends(account.index(), !looked) {
            return;
        }
        slot.wait_call(calls, AT_REST);
    }
}
