//! Pages of allocations that this process has freed, or is about to, and that others may have open.
//!
//! The device keeps such pages, and the driver hands their addresses out again: the next allocation there lies in other
//! pages. So what is freed while it may be open elsewhere is taken out of the map of pages by address, before the
//! driver is asked, and keeps its charge apart. A page that it shared with others of this process stays charged to them
//! until the last has left; then its charge is that of those apart, for as long as there are any.
//!
//! Where a pool has paid, the pages apart are owed until the pool lets go of them, and paid of what it gives back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::held::{PAGES, Piece};
use super::{MANAGED, POOLS, UNIT, grain, is_pool, locked, pools, small};
use crate::account::{self, Account};
use crate::map::PAYERS;
use crate::pages::split;

/// An allocation whose pages are counted apart.
#[derive(Debug)]
pub(crate) struct Apart {
    payer: u16,
    account: u8,
    piece: Piece,
    /// Bytes of pages that were its own.
    whole: u64,
    /// Of a pool's: the number under which they are owed or paid, once others were found to have it open.
    owed: Option<u64>,
    /// Groups of the pages that it had in part.
    groups: [Option<u64>; 2],
    /// Pages that it was the last in.
    emptied: u64,
}

/// Those apart that lay in one page, or the pages of one alone.
struct Group {
    number: u64,
    /// The page's, in the map of pages; 0 where there is none.
    key: u64,
    account: u8,
    /// Others are in the page still, and it is charged for them.
    inhabited: bool,
    /// Bytes that are charged for it by itself.
    paid: u64,
    /// Bytes that should be, and a pool has not given back.
    owed: u64,
    members: u32,
}

struct Groups {
    next: u64,
    all: Vec<Group>,
}

static GROUPS: Mutex<Groups> = Mutex::new(Groups {
    next: 0,
    all: Vec::new(),
});
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether there are any.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Bytes of whole pages, and the keys of the pages that a piece has in part.
fn parts(account: Account, payer: u16, piece: Piece) -> (u64, [Option<u64>; 2]) {
    match grain::settled_page(account) {
        UNIT => (piece.bytes, [None; 2]),
        page => split(payer, page, piece.pointer, piece.bytes),
    }
}

/// The account that pays for pages as `payer`, by itself or for a pool.
fn account_of(payer: u16) -> Option<Account> {
    match payer {
        0..MANAGED if is_pool(payer) => pools::account_of(payer),
        0..POOLS => super::account_of(payer),
        _ => None,
    }
}

/// Whether a page of this piece is shared with one that is apart: then it has to be as well.
#[inline]
pub(crate) fn touches(payer: u16, piece: Piece) -> bool {
    any() && touches_one(payer, piece)
}

#[cold]
fn touches_one(payer: u16, piece: Piece) -> bool {
    let Some(account) = account_of(payer) else {
        return false;
    };
    let groups = locked(&GROUPS);
    let keys = parts(account, payer, piece).1;
    keys.into_iter().flatten().any(|key| groups.of(key).is_some())
}

/// Counts the pages of a piece apart from now on; `None` where not pages are paid for it, but its size.
pub(crate) fn taken(payer: u16, piece: Piece) -> Option<Apart> {
    let account = account_of(payer)?;
    let (whole, keys) = parts(account, payer, piece);
    let page = grain::settled_page(account);
    let mut groups = locked(&GROUPS);
    let mut emptied = 0;
    let groups = keys.map(|key| {
        let key = key?;
        let at = groups.of(key).unwrap_or_else(|| groups.add(key, account.index()));
        groups.all[at].members += 1;
        if PAGES.leave_part(key) {
            groups.all[at].emptied(payer, page);
            emptied += page;
        }
        Some(groups.all[at].number)
    });
    Some(Apart {
        payer,
        account: account.index(),
        piece,
        whole,
        owed: None,
        groups,
        emptied,
    })
}

/// A piece has left its pages by address. Answers how many bytes of them stay charged, for those that are apart in them.
#[inline]
pub(crate) fn kept(payer: u16, account: Account, piece: Piece) -> u64 {
    if any() {
        kept_for_some(payer, account, piece)
    } else {
        0
    }
}

#[cold]
fn kept_for_some(payer: u16, account: Account, piece: Piece) -> u64 {
    let page = grain::settled_page(account);
    let mut groups = locked(&GROUPS);
    let keys = parts(account, payer, piece).1;
    let mut kept = 0;
    for key in keys.into_iter().flatten().filter(|key| !PAGES.holds_part(*key)) {
        if let Some(at) = groups.of(key) {
            groups.all[at].emptied(payer, page);
            kept += page;
        }
    }
    kept
}

/// Gives back bytes of a pool; first of all to what was of a pool, and others still have open.
pub(crate) fn give_back(account: Account, mut bytes: u64) {
    if any() {
        for group in locked(&GROUPS).owing(account) {
            let paid = group.owed.min(bytes);
            group.owed -= paid;
            group.paid += paid;
            bytes -= paid;
        }
    }
    if bytes > 0 {
        account.give_back(bytes);
    }
}

/// Pays what is owed and no pool has given back, where there is room.
pub(crate) fn follow() {
    if any() {
        for group in locked(&GROUPS).all.iter_mut().filter(|group| group.owed > 0) {
            if let Some(account) = account::paid(group.account)
                && account.try_reserve(group.owed)
            {
                group.paid += core::mem::take(&mut group.owed);
            }
        }
    }
}

impl Apart {
    /// The pool that has paid for it, and what that has less in use: bytes, and bytes of pages.
    pub fn of_pool(&self) -> Option<(u16, u64, u64)> {
        is_pool(self.payer).then_some((self.payer, self.piece.bytes, self.whole + self.emptied))
    }

    /// Others were found to have it open.
    pub fn stays(&mut self) {
        if is_pool(self.payer) && self.owed.is_none() && self.whole > 0 {
            let mut groups = locked(&GROUPS);
            let at = groups.add(0, self.account);
            let own = &mut groups.all[at];
            (own.inhabited, own.owed, own.members) = (false, self.whole, 1);
            self.owed = Some(own.number);
        }
    }

    /// Nobody has it any more.
    pub fn ended(self) {
        let Some(account) = account::paid(self.account) else {
            return;
        };
        let mut groups = locked(&GROUPS);
        let all = self.groups.into_iter().chain([self.owed]).flatten();
        let paid: u64 = all.map(|number| groups.leave(number)).sum();
        drop(groups);
        let bytes = if is_pool(self.payer) {
            paid
        } else {
            small::left(account, self.piece.bytes, self.whole + paid)
        };
        if bytes > 0 {
            account.give_back(bytes);
        }
    }

    /// The driver has not freed it.
    pub fn undone(self) {
        let Some(account) = account::paid(self.account) else {
            return;
        };
        let page = grain::settled_page(account);
        let keys = parts(account, self.payer, self.piece).1;
        let mut surplus = 0;
        for (key, number) in keys.into_iter().zip(self.groups) {
            let (Some(key), Some(number)) = (key, number) else {
                continue;
            };
            let mut groups = locked(&GROUPS);
            let fresh = PAGES.enter_part(key).unwrap_or(false);
            let freed = groups.leave(number);
            // What was the group's is the page's again, which others may have entered as a new one meanwhile.
            if fresh && freed == 0 {
                surplus += groups.revive(number);
            } else if !fresh || is_pool(self.payer) {
                surplus += freed;
            } else {
                surplus += freed.saturating_sub(page);
            }
        }
        if surplus > 0 {
            account.give_back(surplus);
        }
    }
}

impl Group {
    /// Nobody is in its page any more but those apart.
    fn emptied(&mut self, payer: u16, page: u64) {
        self.inhabited = false;
        if is_pool(payer) {
            self.owed = page;
        } else {
            self.paid = page;
        }
    }
}

impl Groups {
    /// What of the account's is owed.
    fn owing(&mut self, account: Account) -> impl Iterator<Item = &mut Group> {
        self.all
            .iter_mut()
            .filter(move |group| group.account == account.index() && group.owed > 0)
    }

    /// The group of a page that others are in.
    fn of(&self, key: u64) -> Option<usize> {
        self.all
            .iter()
            .position(|group| group.inhabited && group.key == key)
    }

    fn add(&mut self, key: u64, account: u8) -> usize {
        self.next += 1;
        self.all.push(Group {
            number: self.next,
            key,
            account,
            inhabited: true,
            paid: 0,
            owed: 0,
            members: 0,
        });
        COUNT.store(self.all.len(), Ordering::Relaxed);
        self.all.len() - 1
    }

    /// One member less. Answers what was charged for the group, if that was the last.
    fn leave(&mut self, number: u64) -> u64 {
        let Some(at) = self.all.iter().position(|group| group.number == number) else {
            return 0;
        };
        self.all[at].members -= 1;
        if self.all[at].members > 0 {
            return 0;
        }
        let group = self.all.swap_remove(at);
        COUNT.store(self.all.len(), Ordering::Relaxed);
        group.paid
    }

    /// An allocation is in the group's page again, which is charged for that. Answers what was paid by itself beyond that.
    fn revive(&mut self, number: u64) -> u64 {
        let Some(group) = self.all.iter_mut().find(|group| group.number == number) else {
            return 0;
        };
        (group.inhabited, group.owed) = (true, 0);
        let paid = core::mem::take(&mut group.paid);
        if is_pool((group.key % u64::from(PAYERS)) as u16) {
            paid
        } else {
            0
        }
    }
}
