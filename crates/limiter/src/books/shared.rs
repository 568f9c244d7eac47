//! Allocations that several processes of a slice hold: one of them pays.
//!
//! The slice's ledger has a table of words, one for an allocation that was exported inside the slice:
//! `key (40 bits) | process slot of who pays (11) | holders (13)`. Who imports an allocation that is in the table becomes
//! a guest; who imports one that is not pays for it, and enters it. Who pays goes on paying while there are guests, in
//! death as well: whoever reaps it leaves the bytes charged until no guest lives ([`divvy_ledger::shared`]). Where the table
//! is full, each importer pays: too much, never too little.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use divvy_abi::CUresult;
use divvy_ledger::shared::{HOLDER_BITS, SLOT_BITS, Worth, payer_of as slot_of};

use super::apart::Apart;
use super::numbers::Numbered;
use super::{lingering, locked};
use crate::account::{self, Account};

const KEY_SHIFT: u32 = HOLDER_BITS + SLOT_BITS;
const HOLDERS: u64 = (1 << HOLDER_BITS) - 1;
/// Places to look at for a key.
const PROBES: usize = 64;
/// How often who pays for an import gives way to others that came at the same moment.
const MEETINGS: u32 = 16;

/// What an allocation is known by in all processes of a slice; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key(u64);

/// This process's part in an allocation that several may hold.
#[derive(Debug)]
pub(crate) struct Share {
    account: u8,
    /// Bytes that are charged for it.
    bytes: u64,
    /// Numbers of the pages of an allocation of this process that others may open by its address.
    pages: Numbered,
    /// Its pages themselves, once it is freed and others have it open: they stay charged.
    left: Option<Apart>,
    /// Bytes that should be charged: the memory is held, whatever the ledger has room for.
    owed: u64,
    key: Key,
    /// The word; none where the table was full.
    place: Option<usize>,
    pays: bool,
}

/// Accounts, keys and places of what this process holds as a guest, once for each time. Each account has a table of its own.
static OWN_GUESTS: Mutex<Vec<(u8, u64, usize)>> = Mutex::new(Vec::new());

impl Key {
    /// The key of whatever these bytes identify.
    pub fn of(bytes: &[u8]) -> Self {
        // FNV-1a, then mixed: the top bits decide.
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed >> KEY_SHIFT).max(1))
    }

    /// The key of the file behind a descriptor, and its length in bytes; `None` where many allocations come as the same
    /// file, as those of a driver that hands out its device node do.
    pub fn of_file(descriptor: i32) -> Option<(Self, u64)> {
        let mut found = core::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: a valid out-parameter; any number may be asked about.
        if unsafe { libc::fstat(descriptor, found.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: fstat filled it in.
        let found = unsafe { found.assume_init() };
        if found.st_mode & libc::S_IFMT == libc::S_IFCHR {
            return None;
        }
        let mut name = [0; 16];
        name[..8].copy_from_slice(&found.st_dev.to_ne_bytes());
        name[8..].copy_from_slice(&found.st_ino.to_ne_bytes());
        Some((Self::of(&name), u64::try_from(found.st_size).unwrap_or(0)))
    }

    /// The key of an allocation of which only the size is known.
    pub fn of_size(bytes: u64) -> Self {
        let mut name = *b"size\0\0\0\0\0\0\0\0";
        name[4..].copy_from_slice(&bytes.to_ne_bytes());
        Self::of(&name)
    }

    fn word(self, slot: usize, holders: u64) -> u64 {
        (self.0 << SLOT_BITS | slot as u64) << HOLDER_BITS | holders & HOLDERS
    }

    fn is_of(self, word: u64) -> bool {
        word >> KEY_SHIFT == self.0
    }

    /// The places where it may be.
    fn places(self, table: &[AtomicU64]) -> impl Iterator<Item = usize> {
        let (first, count) = (self.0 as usize, table.len());
        (0..PROBES).map(move |probe| (first + probe) % count)
    }
}

fn table(account: Account) -> Option<&'static [AtomicU64]> {
    account.attached().slot().shared().map(|words| &words[..])
}

/// Replaces a word by what `change` makes of it, as long as it is of `key`. Answers the word before.
fn update(word: &AtomicU64, key: Key, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
        if key.is_of(now) { change(now) } else { None }
    })
    .ok()
}

/// Whether others hold what this process pays for, or it does itself as a guest. Who died holding it counts until it is
/// reaped.
fn guests(account: Account, place: usize, word: u64) -> bool {
    let slot = account.attached().slot();
    let own = || {
        let key = word >> KEY_SHIFT;
        let mine = |(of, guest, _): &(u8, u64, usize)| *of == account.index() && *guest == key;
        locked(&OWN_GUESTS).iter().any(mine)
    };
    word & HOLDERS > 1 && (slot.is_open_elsewhere(place) || own())
}

/// An allocation that `account` was charged `bytes` for is about to be known outside this process. `worth`: what stays
/// charged for it when this process dies and others have it.
pub(crate) fn exported(account: Account, key: Key, bytes: u64, worth: Worth) -> Share {
    Share::new(account, key, bytes, enter(account, key, worth), true)
}

/// An allocation comes from outside: charged to `account`, unless another process of the slice pays already.
///
/// # Errors
/// As [`account::reserve`].
pub(crate) fn imported(account: Account, key: Key, bytes: u64) -> Result<Share, CUresult> {
    if let Some(share) = joined(account, key, bytes) {
        return Ok(share);
    }
    account::reserve(account, bytes, "an imported allocation")?;
    Ok(reserved(account, key, bytes))
}

/// An allocation has come from outside, for which `bytes` of `account` are reserved. They go back if another process has come
/// to pay meanwhile.
pub(crate) fn reserved(account: Account, key: Key, bytes: u64) -> Share {
    for _ in 0..MEETINGS {
        let place = enter(account, key, Worth::whole(bytes));
        let share = Share::new(account, key, bytes, place, true);
        // Another may have come at the same moment: of two who pay one joins the other.
        let alone = match place {
            Some(place) => !is_twice(account, key, place) || !share.end(account),
            None => true,
        };
        if alone {
            return share;
        }
        if let Some(share) = joined(account, key, bytes) {
            account.give_back(bytes);
            return share;
        }
    }
    let place = enter(account, key, Worth::whole(bytes));
    Share::new(account, key, bytes, place, true)
}

/// A guest's part in an allocation of `bytes` that another pays for, if one does. Joined before the driver is asked for the
/// allocation, it is paid for whatever becomes of it meanwhile.
pub(crate) fn joined(account: Account, key: Key, bytes: u64) -> Option<Share> {
    let place = join(account, key)?;
    Some(Share::new(account, key, bytes, Some(place), false))
}

/// Whether a key is in the table at another place as well.
fn is_twice(account: Account, key: Key, place: usize) -> bool {
    let slot = account.attached().slot();
    table(account).is_some_and(|table| {
        key.places(table).any(|other| {
            let word = table[other].load(Ordering::SeqCst);
            other != place && key.is_of(word) && slot.is_claimed(slot_of(word))
        })
    })
}

fn enter(account: Account, key: Key, worth: Worth) -> Option<usize> {
    let table = table(account)?;
    let slot = account.attached().slot();
    let fresh = key.word(slot.index(), 1);
    let place = key.places(table).find(|place| {
        let now = table[*place].load(Ordering::Acquire);
        // Entries of the dead whom nobody follows are free.
        let free = now == 0 || !slot.is_claimed(slot_of(now));
        free && table[*place]
            .compare_exchange(now, fresh, Ordering::SeqCst, Ordering::Acquire)
            .is_ok()
    })?;
    slot.note_shared(place, worth);
    Some(place)
}

/// Whether this process has the allocation at a place of the account's table open.
fn has_open(own: &[(u8, u64, usize)], account: Account, place: usize) -> bool {
    own.iter()
        .any(|(of, _, other)| *of == account.index() && *other == place)
}

fn join(account: Account, key: Key) -> Option<usize> {
    let table = table(account)?;
    let slot = account.attached().slot();
    // One at a time in this process: what is noted as open is so while any thread has it open.
    let mut own = locked(&OWN_GUESTS);
    key.places(table).find(|place| {
        if !key.is_of(table[*place].load(Ordering::Acquire)) {
            return false;
        }
        // First: from here on, who reaps the payer leaves the bytes charged, or the payer is found gone.
        slot.note_open(*place, true);
        let joined = update(&table[*place], key, |now| {
            (slot.is_claimed(slot_of(now)) && now & HOLDERS < HOLDERS).then_some(now + 1)
        })
        .is_some();
        if joined {
            own.push((account.index(), key.0, *place));
        } else if !has_open(&own, account, *place) {
            slot.note_open(*place, false);
        }
        joined
    })
}

impl Share {
    fn new(account: Account, key: Key, bytes: u64, place: Option<usize>, pays: bool) -> Self {
        Self {
            account: account.index(),
            bytes,
            pages: Numbered::default(),
            left: None,
            owed: 0,
            key,
            place,
            pays,
        }
    }

    /// A guest learns the size of what it has opened: what it has to pay should the payer die.
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// It lies in pages of these numbers, beside others.
    pub fn in_pages(mut self, pages: Numbered) -> Self {
        self.pages = pages;
        self
    }

    /// Its size, in bytes, as far as it is paid for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the allocation is known by.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Index of the account that pays, or would.
    pub fn account(&self) -> u8 {
        self.account
    }

    /// This process lets go of the allocation. Who pays goes on doing so while others have it.
    pub fn ended(self) {
        let Some(account) = account::paid(self.account) else {
            return;
        };
        if !self.pays {
            self.leave(account);
        } else if self.end(account) {
            self.give_back(account);
        } else {
            lingering::add(self, account);
        }
    }

    /// What this process has let go of and pays for; `None` once nobody else has it, and it is paid back.
    pub(super) fn followed(self) -> Option<Self> {
        let account = account::paid(self.account)?;
        if self.has_guests(account) || !self.end(account) {
            return Some(self);
        }
        self.give_back(account);
        None
    }

    /// Says so to others: it wants to be told when they leave.
    pub(super) fn note_let_go(&self, account: Account) {
        if let Some(place) = self.place {
            account.attached().slot().note_let_go(place);
        }
    }

    fn give_back(self, account: Account) {
        account.give_back(self.bytes);
        if let Some(pages) = self.left {
            pages.ended();
        }
    }

    /// This process has freed an exported allocation that lay in `pages`. They are given back, unless others have it open:
    /// then this share pays for them.
    pub fn freed(mut self, mut pages: Apart) {
        let account = account::paid(self.account).filter(|account| !self.end(*account));
        let Some(account) = account else {
            return pages.ended();
        };
        pages.stays();
        self.pages.leave_addresses();
        self.left = Some(pages);
        lingering::add(self, account);
    }

    /// Pays what is owed, if there is room by now.
    fn pay(&mut self) {
        if self.owed != 0
            && let Some(account) = account::paid(self.account)
            && account.try_reserve(self.owed)
        {
            self.bytes += core::mem::take(&mut self.owed);
        }
    }

    fn word(&self, account: Account) -> Option<&'static AtomicU64> {
        table(account)?.get(self.place?)
    }

    fn has_guests(&self, account: Account) -> bool {
        let Some(word) = self.word(account) else {
            return false;
        };
        let now = word.load(Ordering::Acquire);
        self.key.is_of(now) && guests(account, self.place.unwrap_or(0), now)
    }

    /// Ends the payer's part, and the entry with it, unless others hold the allocation: in one step, since they may come
    /// at any moment.
    fn end(&self, account: Account) -> bool {
        let Some(word) = self.word(account) else {
            return true;
        };
        let alone = update(word, self.key, |now| {
            (!guests(account, self.place.unwrap_or(0), now)).then_some(0)
        })
        .is_some();
        alone || !self.has_guests(account)
    }

    /// Is no guest any more.
    fn no_guest(&self, account: Account) {
        let Some(place) = self.place else { return };
        let mut guests = locked(&OWN_GUESTS);
        let own = (account.index(), self.key.0, place);
        if let Some(at) = guests.iter().position(|guest| *guest == own) {
            guests.swap_remove(at);
        }
        if !has_open(&guests, account, place) {
            account.attached().slot().note_open(place, false);
        }
    }

    /// Ends a guest's part.
    fn leave(&self, account: Account) {
        if let Some(word) = self.word(account) {
            let _left = update(word, self.key, |now| {
                Some(if now & HOLDERS <= 1 { 0 } else { now - 1 })
            });
        }
        self.no_guest(account);
    }

    /// Takes over from a payer who has died. Answers whether this process pays, or nobody needs to.
    pub fn settle(&mut self) -> bool {
        if self.pays {
            self.pay();
            return true;
        }
        let Some(account) = account::paid(self.account) else {
            return true;
        };
        let slot = account.attached().slot();
        let taken_over = self.word(account).is_some_and(|word| {
            update(word, self.key, |now| {
                let dead = !slot.is_claimed(slot_of(now));
                dead.then(|| {
                    self.key
                        .word(slot.index(), (now & HOLDERS).saturating_sub(1).max(1))
                })
            })
            .is_some()
        });
        if taken_over {
            self.no_guest(account);
            self.pays = true;
            // The memory is held already. What there is no room for shows as the device's overhead until there is.
            self.owed = core::mem::take(&mut self.bytes);
            self.pay();
        }
        self.pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_key_payer_and_holders() {
        for bytes in [&b"a"[..], b"b", b"", &[0; 64], &[255; 64]] {
            let key = Key::of(bytes);
            let word = key.word(2047, 3);
            assert_ne!(word, 0);
            assert!(key.is_of(word));
            assert_eq!((slot_of(word), word & HOLDERS), (2047, 3));
            assert!(!Key::of(b"another").is_of(word));
        }
        assert_ne!(Key::of_size(1 << 20), Key::of_size(2 << 20));
    }

    #[test]
    fn a_file_is_known_and_a_device_node_is_not() {
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let again = std::fs::File::open("/proc/self/exe").expect("this program");
        let node = std::fs::File::open("/dev/null").expect("a device node");
        use std::os::fd::AsRawFd as _;
        assert_eq!(Key::of_file(file.as_raw_fd()), Key::of_file(again.as_raw_fd()));
        assert!(Key::of_file(file.as_raw_fd()).is_some());
        assert_eq!(Key::of_file(node.as_raw_fd()), None);
        assert_eq!(Key::of_file(-1), None);
    }
}
