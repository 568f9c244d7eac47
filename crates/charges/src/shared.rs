//! Allocations that several processes of a slice hold: one of them is charged.
//!
//! The slice's ledger has a table of words, one for an allocation that was exported inside the slice: `key (40 bits) |
//! process slot of the owner (11) | holders (13)`. A process that imports an allocation of the table becomes an
//! importer. A process that imports another allocation enters it and is charged as its owner. The owner stays charged
//! while there are importers. Its process may die meanwhile: the reaper leaves the bytes charged until no importer
//! lives ([`divvy_ledger::shared`]). If the table is full, each importer is charged: too much, never too little.
//!
//! Memory that its owner has freed and that importers have open is residual: it stays charged until the last importer
//! has left. Each call of the owner's threads checks that. As the program may never call again, a thread of ours sleeps
//! for each account with residual charges. A process that leaves calls this thread ([`divvy_ledger::Slot::wait_call`]).

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;

use divvy_abi::CUresult;
use divvy_ledger::Slot;
use divvy_ledger::shared::{Residual, owner_of as slot_of};

use crate::charged::Charged;
use crate::detached::Detached;
use crate::environment::{Account, Environment, Reserve};
use crate::key::{HOLDERS, Key};
use crate::lock::locked;
use crate::page_numbers::Numbered;

/// How many times two processes that import an allocation at the same moment yield to each other.
const MEETINGS: u32 = 16;

/// This process's role in an allocation that several may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It is charged.
    Owner,
    /// Another process is charged, or its remains in the ledger.
    Importer,
}

/// This process's share in an allocation that several may hold.
#[derive(Debug)]
pub(crate) struct Share {
    account: u8,
    /// Bytes that are charged for it.
    bytes: u64,
    /// Bytes that should be charged: the memory is held, even if it does not fit into the ledger's limit.
    owed: u64,
    /// Numbers of the pages of this process's allocation that others may open by its address.
    pages: Numbered,
    /// The pages of a residual allocation: they stay charged.
    residual: Option<Detached>,
    key: Key,
    /// Index of the word; `None` if the table was full.
    place: Option<usize>,
    part: Part,
}

/// One import of this process: account, key and entry. Each account has a table of its own.
type Import = (u8, Key, usize);

/// The shares that belong to no other table, and the imports.
pub(crate) struct Shares<E> {
    pub charged: Charged<E>,
    imports: Mutex<Vec<Import>>,
    residuals: Mutex<Residuals>,
    count: AtomicUsize,
}

struct Residuals {
    shares: Vec<Share>,
    /// Accounts with a sleeping thread, as bits.
    watched: u64,
}

fn bit(account: u8) -> u64 {
    1 << (account % 64)
}

fn table(account: impl Account) -> Option<(&'static Slot, &'static [AtomicU64])> {
    let slot = account.slot()?;
    slot.shared().map(|words| (slot, &words[..]))
}

/// Whether a key is in another entry of the table as well.
fn is_twice(account: impl Account, key: Key, place: usize) -> bool {
    table(account).is_some_and(|(slot, table)| {
        key.places(table).any(|other| {
            let word = table[other].load(Ordering::SeqCst);
            other != place && key.is_of(word) && slot.is_claimed(slot_of(word))
        })
    })
}

fn enter(account: impl Account, key: Key, residual: Residual) -> Option<usize> {
    let (slot, table) = table(account)?;
    let fresh = key.word(slot.index(), 1);
    let place = key.places(table).find(|place| {
        let now = table[*place].load(Ordering::Acquire);
        // Entries of a dead process are free once no importer is left.
        let free = now == 0 || !slot.is_claimed(slot_of(now));
        free && table[*place]
            .compare_exchange(now, fresh, Ordering::SeqCst, Ordering::Acquire)
            .is_ok()
    })?;
    slot.note_shared(place, residual);
    Some(place)
}

/// Whether this process imports the allocation in an entry of the account's table.
fn imports_at(imports: &[Import], account: u8, place: usize) -> bool {
    imports.iter().any(|(of, _, at)| *of == account && *at == place)
}

impl Share {
    fn new(account: u8, key: Key, bytes: u64, place: Option<usize>, part: Part) -> Self {
        Self {
            account,
            bytes,
            owed: 0,
            pages: Numbered::default(),
            residual: None,
            key,
            place,
            part,
        }
    }

    /// An importer learns the size of the opened allocation, which it is charged if the owner dies.
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// It lies in pages of these numbers, which others share.
    pub fn in_pages(mut self, pages: Numbered) -> Self {
        self.pages = pages;
        self
    }

    /// Its charged size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The allocation's key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Index of the account that is charged, or would be.
    pub fn account(&self) -> u8 {
        self.account
    }

    fn word(&self, account: impl Account) -> Option<(&'static Slot, &'static AtomicU64, usize)> {
        let (slot, table) = table(account)?;
        let place = self.place?;
        Some((slot, table.get(place)?, place))
    }

    /// Charges the owed bytes, if they fit by now.
    fn pay(&mut self, account: impl Account) {
        if self.owed != 0 && account.try_reserve(self.owed) {
            self.bytes += core::mem::take(&mut self.owed);
        }
    }
}

impl<E> Shares<E> {
    pub const fn new(env: E) -> Self {
        Self {
            charged: Charged::new(env),
            imports: Mutex::new(Vec::new()),
            residuals: Mutex::new(Residuals {
                shares: Vec::new(),
                watched: 0,
            }),
            count: AtomicUsize::new(0),
        }
    }
}

impl<E: Environment> Shares<E> {
    /// An allocation that `account` was charged `bytes` for is about to be known outside this process. `residual` stays
    /// charged for it if this process dies and others have it open.
    pub fn exported(&self, account: E::Account, key: Key, bytes: u64, residual: Residual) -> Share {
        Share::new(
            account.index(),
            key,
            bytes,
            enter(account, key, residual),
            Part::Owner,
        )
    }

    /// An allocation is being imported: it is charged to `account`, unless another process of the slice is charged
    /// already.
    ///
    /// # Errors
    /// As [`Reserve::reserve`].
    pub fn imported(
        &self,
        room: &impl Reserve<E::Account>,
        account: E::Account,
        key: Key,
        bytes: u64,
    ) -> Result<Share, CUresult> {
        if let Some(share) = self.joined(account, key, bytes) {
            return Ok(share);
        }
        room.reserve(account, bytes, "an imported allocation")?;
        Ok(self.reserved(account, key, bytes))
    }

    /// An allocation was imported, for which `bytes` of `account` are reserved. They are given back if another process
    /// has become the owner meanwhile.
    pub fn reserved(&self, account: E::Account, key: Key, bytes: u64) -> Share {
        let entered = || {
            let place = enter(account, key, Residual::whole(bytes));
            Share::new(account.index(), key, bytes, place, Part::Owner)
        };
        for _ in 0..MEETINGS {
            let share = entered();
            // Another process may have come at the same moment: one of two owners joins the other.
            let alone = match share.place {
                Some(place) => !is_twice(account, key, place) || !self.end_owner(&share, account),
                None => true,
            };
            if alone {
                return share;
            }
            if let Some(share) = self.joined(account, key, bytes) {
                account.give_back(bytes);
                return share;
            }
        }
        entered()
    }

    /// An importer's share in an allocation of `bytes`, if another process is charged for it. If it is joined before
    /// the driver is asked for the allocation, the charge stays, whatever happens to the owner meanwhile.
    pub fn joined(&self, account: E::Account, key: Key, bytes: u64) -> Option<Share> {
        let (slot, table) = table(account)?;
        let index = account.index();
        // One at a time in this process: an import stays noted while any thread has it open.
        let mut imports = locked(&self.imports);
        let place = key.places(table).find(|place| {
            if !key.is_of(table[*place].load(Ordering::Acquire)) {
                return false;
            }
            // This comes first: from here on a reaper of the owner leaves the bytes charged, or the owner is found
            // gone.
            slot.note_open(*place, true);
            let joined = key
                .update(&table[*place], |now| {
                    (slot.is_claimed(slot_of(now)) && now & HOLDERS < HOLDERS).then_some(now + 1)
                })
                .is_some();
            if joined {
                imports.push((index, key, *place));
            } else if !imports_at(&imports, index, *place) {
                slot.note_open(*place, false);
            }
            joined
        })?;
        Some(Share::new(index, key, bytes, Some(place), Part::Importer))
    }

    /// This process lets go of an allocation. Its owner stays charged while others have it open.
    pub fn end(&self, share: Share) {
        let Some(account) = self.charged.env().account(share.account) else {
            return;
        };
        match share.part {
            Part::Importer => self.leave(&share, account),
            Part::Owner if self.end_owner(&share, account) => self.give_back(account, &share),
            Part::Owner => self.add_residual(account, share),
        }
    }

    /// This process has freed an exported allocation that lay in `pages`. They are given back, unless it has importers:
    /// then the share is charged for them.
    pub fn freed(&self, mut share: Share, mut pages: Detached) {
        let account = self.charged.env().account(share.account);
        match account.filter(|account| !self.end_owner(&share, *account)) {
            None => {
                self.charged.end_detached(&pages);
                self.charged.extents().numbers.leave(share.pages);
            }
            Some(account) => {
                self.charged.make_residual(&mut pages);
                self.charged.extents().numbers.leave_addresses(share.pages);
                share.residual = Some(pages);
                self.add_residual(account, share);
            }
        }
    }

    /// Takes over from an owner that has died.
    pub fn settle(&self, share: &mut Share) {
        let Some(account) = self.charged.env().account(share.account) else {
            return;
        };
        if share.part == Part::Importer {
            let taken_over = share.word(account).is_some_and(|(slot, word, _)| {
                share
                    .key
                    .update(word, |now| {
                        let dead = !slot.is_claimed(slot_of(now));
                        dead.then(|| {
                            let holders = (now & HOLDERS).saturating_sub(1).max(1);
                            share.key.word(slot.index(), holders)
                        })
                    })
                    .is_some()
            });
            if !taken_over {
                return;
            }
            self.close(share, account);
            share.part = Part::Owner;
            // The memory is held already. A part that does not fit shows as the device's overhead until it fits.
            share.owed = core::mem::take(&mut share.bytes);
        }
        share.pay(account);
    }

    /// Whether others hold memory that this process is charged for, or this process also holds it as an importer. A
    /// process that died as an importer counts until it is reaped.
    fn has_importers(&self, account: E::Account, key: Key, place: usize, word: u64) -> bool {
        let own = || {
            let imports = locked(&self.imports);
            imports
                .iter()
                .any(|(of, other, _)| *of == account.index() && *other == key)
        };
        let elsewhere = || account.slot().is_some_and(|slot| slot.is_open_elsewhere(place));
        word & HOLDERS > 1 && (elsewhere() || own())
    }

    /// Ends the owner's share and the entry, unless others hold the allocation. This is one step, since importers may
    /// come at any moment. Returns whether it has ended.
    fn end_owner(&self, share: &Share, account: E::Account) -> bool {
        let Some((_, word, place)) = share.word(account) else {
            return true;
        };
        let key = share.key;
        let alone = key
            .update(word, |now| {
                (!self.has_importers(account, key, place, now)).then_some(0)
            })
            .is_some();
        alone || !self.is_held(share, account)
    }

    fn is_held(&self, share: &Share, account: E::Account) -> bool {
        share.word(account).is_some_and(|(_, word, place)| {
            let now = word.load(Ordering::Acquire);
            share.key.is_of(now) && self.has_importers(account, share.key, place, now)
        })
    }

    /// Ends an importer's share.
    fn leave(&self, share: &Share, account: E::Account) {
        if let Some((_, word, _)) = share.word(account) {
            let _left = share
                .key
                .update(word, |now| Some(if now & HOLDERS <= 1 { 0 } else { now - 1 }));
        }
        self.close(share, account);
    }

    /// Stops being an importer.
    fn close(&self, share: &Share, account: E::Account) {
        let (Some(place), Some(slot)) = (share.place, account.slot()) else {
            return;
        };
        let mut imports = locked(&self.imports);
        let own = (share.account, share.key, place);
        if let Some(at) = imports.iter().position(|import| *import == own) {
            imports.swap_remove(at);
        }
        if !imports_at(&imports, share.account, place) {
            slot.note_open(place, false);
        }
    }

    /// Whether any memory is residual.
    #[inline]
    pub fn any_residual(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// `share` stays charged for memory that this process has let go of.
    fn add_residual(&self, account: E::Account, share: Share) {
        if let (Some(place), Some(slot)) = (share.place, account.slot()) {
            slot.note_let_go(place);
        }
        // An importer that left before that did not know that it had to call a process.
        let Some(share) = self.followed(share) else {
            return;
        };
        let bit = bit(share.account);
        let mut residuals = locked(&self.residuals);
        residuals.shares.push(share);
        self.count.store(residuals.shares.len(), Ordering::Relaxed);
        let watched = residuals.watched & bit != 0;
        residuals.watched |= bit;
        drop(residuals);
        if !watched && !self.charged.env().watch(account) {
            locked(&self.residuals).watched &= !bit;
        }
    }

    /// A residual share; `None` once it has no importers and is given back.
    fn followed(&self, share: Share) -> Option<Share> {
        let account = self.charged.env().account(share.account)?;
        if self.is_held(&share, account) || !self.end_owner(&share, account) {
            return Some(share);
        }
        self.give_back(account, &share);
        None
    }

    /// Gives back memory without importers. Concurrent callers block until it is back.
    pub fn follow(&self) {
        if !self.any_residual() {
            return;
        }
        let mut residuals = locked(&self.residuals);
        let shares = core::mem::take(&mut residuals.shares);
        residuals.shares = shares
            .into_iter()
            .filter_map(|share| self.followed(share))
            .collect();
        self.count.store(residuals.shares.len(), Ordering::Relaxed);
    }

    /// Whether the account's sleeping thread ends: it is `over`, or the account has no residual memory.
    pub fn watch_ends(&self, account: u8, over: bool) -> bool {
        let mut residuals = locked(&self.residuals);
        let ends = over || residuals.shares.iter().all(|share| share.account != account);
        if ends {
            residuals.watched &= !bit(account);
        }
        ends
    }

    fn give_back(&self, account: E::Account, share: &Share) {
        account.give_back(share.bytes);
        if let Some(pages) = &share.residual {
            self.charged.end_detached(pages);
        }
        self.charged.extents().numbers.leave(share.pages);
    }
}
