//! Pages of allocations that this process has freed, or is about to, and that others may have open.
//!
//! The device keeps such pages, and the driver hands their addresses out again: the next allocation there lies in other
//! pages. So what is freed while it may be open elsewhere is taken out of the map of pages by address, before the
//! driver is asked, and keeps its charge apart. What is freed in stream order stays in the map until the stream gets
//! there, and whoever enters a page looks first whether one has. A page that it shared with others of this process stays charged to them
//! until the last has left; then its charge is that of those apart, for as long as there are any.
//!
//! A pool's are the pool's for as long as it lives: drivers keep what others have open among a pool's reserved memory, which
//! is what it is charged for, and hand its pages out again. What is apart counts when the pool is destroyed and keeps
//! only what is in use ([`super::pools`]).

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::held::{PAGES, Piece};
use super::{MANAGED, POOLS, UNIT, grain, is_pool, locked, pools, small};
use crate::account::{self, Account};
use crate::pages::split;

/// An allocation whose pages are counted apart.
#[derive(Debug)]
pub(crate) struct Apart {
    payer: u16,
    account: u8,
    piece: Piece,
    /// Bytes of pages that were its own.
    whole: u64,
    /// It is in the map of pages still.
    in_pages: bool,
    /// Others were found to have it open after it was freed.
    stays: bool,
    /// Groups of the pages that it had in part.
    groups: [Option<u64>; 2],
}

/// Those apart that lay in one page.
struct Group {
    number: u64,
    /// The page's, in the map of pages.
    key: u64,
    /// Others are in the page still, and it is charged for them.
    inhabited: bool,
    /// Bytes that are charged for it by itself, or that its pool counts apart.
    paid: u64,
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
pub(super) fn parts(account: Account, payer: u16, piece: Piece) -> (u64, [Option<u64>; 2]) {
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
    let mut apart = waiting(payer, piece)?;
    apart.leave_pages();
    Some(apart)
}

/// The same from when a stream gets there, which [`Apart::leave_pages`] is told.
pub(crate) fn waiting(payer: u16, piece: Piece) -> Option<Apart> {
    let account = account_of(payer)?;
    let (whole, keys) = parts(account, payer, piece);
    let mut groups = locked(&GROUPS);
    let numbers = keys.map(|key| {
        let key = key?;
        let at = groups.of(key).unwrap_or_else(|| groups.add(key));
        groups.all[at].members += 1;
        Some(groups.all[at].number)
    });
    Some(Apart {
        payer,
        account: account.index(),
        piece,
        whole,
        in_pages: true,
        stays: false,
        groups: numbers,
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
            groups.all[at].emptied(page);
            kept += page;
        }
    }
    kept
}

/// A pool has put a piece into its pages by address. Answers how many bytes of them it counted apart until now.
#[inline]
pub(crate) fn inhabited(pool: u16, account: Account, piece: Piece) -> u64 {
    if any() {
        inhabited_again(pool, account, piece)
    } else {
        0
    }
}

#[cold]
fn inhabited_again(pool: u16, account: Account, piece: Piece) -> u64 {
    let mut groups = locked(&GROUPS);
    let keys = parts(account, pool, piece).1;
    keys.into_iter().flatten().map(|key| groups.revive(key)).sum()
}

impl Apart {
    /// The pool that has paid for it, and bytes that it has less in use.
    pub fn of_pool(&self) -> Option<(u16, u64)> {
        is_pool(self.payer).then_some((self.payer, self.piece.bytes))
    }

    /// It is in its pages by address no more.
    pub fn leave_pages(&mut self) {
        let Some(account) = account::paid(self.account).filter(|_| self.in_pages) else {
            return;
        };
        self.in_pages = false;
        let page = grain::settled_page(account);
        let keys = parts(account, self.payer, self.piece).1;
        let mut groups = locked(&GROUPS);
        let mut emptied = 0;
        for (key, number) in keys.into_iter().zip(self.groups) {
            if let (Some(key), Some(number)) = (key, number)
                && PAGES.leave_part(key)
            {
                groups.emptied(number, page);
                emptied += page;
            }
        }
        drop(groups);
        if is_pool(self.payer) {
            pools::parted(self.payer, emptied);
        }
    }

    /// Others were found to have it open.
    pub fn stays(&mut self) {
        self.stays = true;
        if is_pool(self.payer) {
            pools::parted(self.payer, self.whole);
        }
    }

    /// Nobody has it any more.
    pub fn ended(self) {
        let mut groups = locked(&GROUPS);
        let numbers = self.groups.into_iter().flatten();
        let paid: u64 = numbers.map(|number| groups.leave(number)).sum();
        drop(groups);
        if is_pool(self.payer) {
            match self.stays {
                true => pools::ended(self.payer, 0, self.whole + paid),
                false => pools::ended(self.payer, self.whole, paid),
            }
        } else if let Some(account) = account::paid(self.account) {
            let bytes = small::left(account, self.piece.bytes, self.whole + paid);
            if bytes > 0 {
                account.give_back(bytes);
            }
        }
    }

    /// The driver has not freed it.
    pub fn undone(self) {
        let Some(account) = account::paid(self.account) else {
            return;
        };
        let keys = parts(account, self.payer, self.piece).1;
        let (mut again, mut surplus) = (0, 0);
        for (key, number) in keys.into_iter().zip(self.groups) {
            let (Some(key), Some(number)) = (key, number) else {
                continue;
            };
            let mut groups = locked(&GROUPS);
            // What was the group's is the page's again, unless others have entered it as a new one meanwhile.
            if !self.in_pages && PAGES.enter_part(key).unwrap_or(false) {
                again += groups.revive_one(number);
            }
            surplus += groups.leave(number);
        }
        if is_pool(self.payer) {
            pools::rejoined(self.payer, again);
            pools::ended(self.payer, 0, surplus);
        } else if surplus > 0 {
            account.give_back(surplus);
        }
    }
}

impl Group {
    /// Nobody is in its page any more but those apart.
    fn emptied(&mut self, page: u64) {
        self.inhabited = false;
        self.paid = page;
    }

    /// Its page is charged for others again. Answers what was charged by itself.
    fn revive(&mut self) -> u64 {
        self.inhabited = true;
        core::mem::take(&mut self.paid)
    }
}

impl Groups {
    /// The group of a page that others are in.
    fn of(&self, key: u64) -> Option<usize> {
        self.all
            .iter()
            .position(|group| group.inhabited && group.key == key)
    }

    fn add(&mut self, key: u64) -> usize {
        self.next += 1;
        self.all.push(Group {
            number: self.next,
            key,
            inhabited: true,
            paid: 0,
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

    /// Nobody is in the page of the group of this number any more.
    fn emptied(&mut self, number: u64, page: u64) {
        let mut all = self.all.iter_mut();
        if let Some(group) = all.find(|group| group.number == number) {
            group.emptied(page);
        }
    }

    /// Others are in the page of this key again.
    fn revive(&mut self, key: u64) -> u64 {
        let empty = |group: &&mut Group| !group.inhabited && group.key == key;
        self.all.iter_mut().find(empty).map_or(0, Group::revive)
    }

    /// The same of the group of this number.
    fn revive_one(&mut self, number: u64) -> u64 {
        let mut all = self.all.iter_mut();
        all.find(|group| group.number == number).map_or(0, Group::revive)
    }
}
