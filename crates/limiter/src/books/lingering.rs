//! Allocations that this process has let go of and pays for, until nobody has them open any more.
//!
//! Each of its threads that comes by looks. And as the program may never call again, while there are any a thread of ours
//! sleeps for each account, until it is called by somebody who has left one ([`divvy_ledger::Slot::wait_call`]).

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Mutex;

use super::locked;
use super::shared::Share;
use crate::account::Account;
use crate::{gate, log, threads};

/// How long it sleeps uncalled.
const AT_REST: Duration = Duration::from_secs(5);

struct Lingering {
    shares: Vec<Share>,
    /// Accounts that a thread sleeps for, by bits.
    watched: u64,
}

static LINGERING: Mutex<Lingering> = Mutex::new(Lingering {
    shares: Vec::new(),
    watched: 0,
});
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether there are any.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// `share` goes on paying for what this process has let go of.
pub(super) fn add(share: Share, account: Account) {
    share.note_let_go(account);
    // Who left before that did not know that there was somebody to be called.
    let Some(share) = share.followed() else { return };
    let index = account.index();
    let mut lingering = locked(&LINGERING);
    lingering.shares.push(share);
    COUNT.store(lingering.shares.len(), Ordering::Relaxed);
    let watched = lingering.watched & bit(index) != 0;
    lingering.watched |= bit(index);
    drop(lingering);
    if !watched && let Err(error) = threads::start("divvy-books", move || watch(account)) {
        log::line(format_args!("No books thread: {error}"));
        locked(&LINGERING).watched &= !bit(index);
    }
}

fn bit(account: u8) -> u64 {
    1 << (account % 64)
}

/// Gives back what nobody has open any more. Who comes while another does waits until it is back.
pub(crate) fn follow() {
    if !any() {
        return;
    }
    let mut lingering = locked(&LINGERING);
    let shares = core::mem::take(&mut lingering.shares);
    lingering.shares = shares.into_iter().filter_map(Share::followed).collect();
    COUNT.store(lingering.shares.len(), Ordering::Relaxed);
}

/// Looks whenever it is called, until nothing lingers.
fn watch(account: Account) {
    let slot = account.attached().slot();
    loop {
        let calls = slot.calls();
        let looked = gate::unless_exiting(follow);
        let mut lingering = locked(&LINGERING);
        let mut left = lingering.shares.iter();
        if !looked || !left.any(|share| share.account() == account.index()) {
            lingering.watched &= !bit(account.index());
            return;
        }
        drop(lingering);
        slot.wait_call(calls, AT_REST);
    }
}
