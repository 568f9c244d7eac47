//! Pointers that reach beyond this process: exported ones, imported ones, and external memory.
//!
//! What is let go of is taken out before the driver is asked ([`leaving`]): afterwards the address may already be another
//! thread's.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use divvy_abi::{CUdeviceptr, CUresult};

use super::held::Piece;
use super::shared::{self, Key, Share};
use super::{CHARGED, account_of, is_pool, lingering, locked, numbers, pools};
use crate::account::Account;

#[derive(Debug)]
pub(crate) struct Imported {
    share: Share,
    /// The context that it goes with; 0 for what outlives every context.
    context: usize,
    /// How often it was opened there: the driver answers the same pointer each time.
    opened: u32,
}

struct Books {
    /// Allocations of this process that others may open.
    exported: BTreeMap<CUdeviceptr, Share>,
    imported: BTreeMap<CUdeviceptr, Imported>,
    external: BTreeMap<u64, External>,
    /// Number of the newest external memory.
    newest: u64,
}

/// External memory: charged until its handle and everything that is mapped of it are gone.
struct External {
    /// 0 once it is given up.
    handle: usize,
    share: Share,
    context: usize,
    /// Pointers and mipmaps.
    mapped: Vec<u64>,
    /// Calls at the driver that let go of the handle or of a part.
    leaving: u32,
}

static BOOKS: Mutex<Books> = Mutex::new(Books {
    exported: BTreeMap::new(),
    imported: BTreeMap::new(),
    external: BTreeMap::new(),
    newest: 0,
});
static POINTERS: AtomicUsize = AtomicUsize::new(0);

/// Whether any pointer is noted here.
#[inline]
pub(crate) fn any() -> bool {
    POINTERS.load(Ordering::Relaxed) != 0
}

impl Books {
    fn count(&self) {
        let mapped: usize = self.external.values().map(|external| external.mapped.len()).sum();
        POINTERS.store(
            self.exported.len() + self.imported.len() + mapped,
            Ordering::Relaxed,
        );
    }
}

/// Whether others may open what `pointer` points to.
pub(crate) fn is_exported(pointer: CUdeviceptr) -> bool {
    locked(&BOOKS).exported.contains_key(&pointer)
}

/// Others may open what `pointer` points to.
pub(crate) fn exported(pointer: CUdeviceptr, key: Key) {
    let mut books = locked(&BOOKS);
    if books
        .exported
        .get(&pointer)
        .is_some_and(|share| share.key() == key)
    {
        return;
    }
    let Some(charge) = CHARGED.take(pointer) else {
        return;
    };
    let _room_was_there = CHARGED.insert(pointer, charge.bytes, charge.payer);
    let account = if is_pool(charge.payer) {
        pools::account_of(charge.payer)
    } else {
        account_of(charge.payer)
    };
    let Some(account) = account else { return };
    // The charge itself stays where it is.
    let bytes = charge.bytes;
    let (worth, pages) = numbers::worth(account, charge.payer, Piece { pointer, bytes });
    let share = shared::exported(account, key, 0, worth).in_pages(pages);
    // Another one of this address was freed in a way that we did not see.
    let stale = books.exported.insert(pointer, share);
    books.count();
    drop(books);
    if let Some(stale) = stale {
        stale.ended();
    }
}

/// A pointer of another process was opened here, which goes with `context` unless that is 0. `joined`: the part in it as a
/// guest, if another was found to pay before the driver was asked.
///
/// # Errors
/// As `account::reserve`; it must be closed again.
pub(crate) fn imported(
    pointer: CUdeviceptr,
    account: Account,
    key: Key,
    bytes: u64,
    joined: Option<Share>,
    context: usize,
) -> Result<(), CUresult> {
    let share = match joined {
        Some(share) => share.with_bytes(bytes),
        None if locked(&BOOKS).opened_again(pointer, key, context) => return Ok(()),
        None => shared::imported(account, key, bytes)?,
    };
    let mut books = locked(&BOOKS);
    let surplus = if books.opened_again(pointer, key, context) {
        Some(share)
    } else {
        let imported = Imported {
            share,
            context,
            opened: 1,
        };
        // Another one of this address went with its context.
        let stale = books.imported.insert(pointer, imported);
        stale.map(|stale| stale.share)
    };
    books.count();
    drop(books);
    if let Some(surplus) = surplus {
        surplus.ended();
    }
    Ok(())
}

/// What this process is about to let go of under a pointer.
#[derive(Debug)]
pub(crate) struct Leaving {
    pointer: CUdeviceptr,
    exported: Option<Share>,
    rest: Option<Beyond>,
}

/// The part of that which is others' memory.
#[derive(Debug)]
pub(crate) enum Beyond {
    /// One opening of several.
    Again,
    /// The last one.
    Last(Imported),
    /// A part of external memory, by its number.
    Mapped(u64),
    /// The handle of external memory.
    Handle(u64),
}

/// The driver is about to be asked to free, close or unmap a pointer. What is known of it here is taken out.
pub(crate) fn leaving(pointer: CUdeviceptr) -> Option<Leaving> {
    let mut books = locked(&BOOKS);
    let exported = books.exported.remove(&pointer);
    let rest = books.opening(pointer).or_else(|| books.part(pointer));
    books.count();
    (exported.is_some() || rest.is_some()).then_some(Leaving {
        pointer,
        exported,
        rest,
    })
}

impl Leaving {
    /// Whether others may have it open.
    pub fn is_exported(&self) -> bool {
        self.exported.is_some()
    }

    /// The share of what others may have open, and what is others' memory.
    pub fn into_parts(self) -> (Option<Share>, Option<Beyond>) {
        (self.exported, self.rest)
    }

    /// Who pays for it, or would.
    pub fn account(&self) -> Option<u8> {
        match (&self.exported, &self.rest) {
            (Some(share), _) => Some(share.account()),
            (None, Some(Beyond::Last(imported))) => Some(imported.share.account()),
            _ => None,
        }
    }

    /// The driver has not let go.
    pub fn refused(self) {
        let mut books = locked(&BOOKS);
        if let Some(share) = self.exported {
            books.exported.insert(self.pointer, share);
        }
        let surplus = match self.rest {
            Some(rest) => books.back(self.pointer, rest),
            None => None,
        };
        books.count();
        drop(books);
        if let Some(surplus) = surplus {
            surplus.ended();
        }
    }
}

impl Beyond {
    /// The driver has let go. No lock is held.
    pub fn gone(self) {
        match self {
            Self::Again => {}
            Self::Last(imported) => let_go(imported.share),
            Self::Mapped(number) | Self::Handle(number) => {
                let ended = locked(&BOOKS).left(number);
                if let Some(share) = ended {
                    let_go(share);
                }
            }
        }
    }

    /// The driver has not.
    pub fn refused(self, what: u64) {
        let surplus = locked(&BOOKS).back(what, self);
        if let Some(surplus) = surplus {
            surplus.ended();
        }
    }
}

/// No lock is held. What this process itself had freed before, and kept alive by this, goes with it.
fn let_go(share: Share) {
    share.ended();
    lingering::follow();
}

/// External memory was imported, which `share` pays for.
pub(crate) fn external(handle: usize, share: Share, context: usize) {
    let mut books = locked(&BOOKS);
    books.newest += 1;
    let number = books.newest;
    books.external.insert(
        number,
        External {
            handle,
            share,
            context,
            mapped: Vec::new(),
            leaving: 0,
        },
    );
}

/// Part of external memory is mapped under a pointer, or as a mipmap.
pub(crate) fn external_mapped(handle: usize, mapped: u64) {
    let mut books = locked(&BOOKS);
    if let Some(external) = books
        .external
        .values_mut()
        .find(|external| external.handle == handle)
    {
        external.mapped.push(mapped);
        books.count();
    }
}

/// The driver is about to be asked to give external memory up; what is mapped of it stays.
pub(crate) fn external_leaving(handle: usize) -> Option<Beyond> {
    let mut books = locked(&BOOKS);
    let mut all = books.external.iter_mut();
    let (number, external) = all.find(|(_, external)| external.handle == handle && handle != 0)?;
    external.handle = 0;
    external.leaving += 1;
    Some(Beyond::Handle(*number))
}

impl Books {
    /// Counts one opening more, if it is one of the allocation of `key` that is open there already.
    fn opened_again(&mut self, pointer: CUdeviceptr, key: Key, context: usize) -> bool {
        let known = self.imported.get_mut(&pointer);
        match known.filter(|known| known.share.key() == key && known.context == context) {
            Some(known) => {
                known.opened += 1;
                true
            }
            None => false,
        }
    }

    /// Takes one opening of a pointer out.
    fn opening(&mut self, pointer: CUdeviceptr) -> Option<Beyond> {
        let known = self.imported.get_mut(&pointer)?;
        if known.opened > 1 {
            known.opened -= 1;
            return Some(Beyond::Again);
        }
        self.imported.remove(&pointer).map(Beyond::Last)
    }

    /// Takes a mapped part of external memory out.
    fn part(&mut self, mapped: u64) -> Option<Beyond> {
        self.external.iter_mut().find_map(|(number, external)| {
            let at = external.mapped.iter().position(|other| *other == mapped)?;
            external.mapped.swap_remove(at);
            external.leaving += 1;
            Some(Beyond::Mapped(*number))
        })
    }

    /// Puts back what was taken out. Answers a share that is one too many by now.
    fn back(&mut self, what: u64, rest: Beyond) -> Option<Share> {
        match rest {
            Beyond::Again => {
                if let Some(known) = self.imported.get_mut(&what) {
                    known.opened += 1;
                }
            }
            Beyond::Last(imported) => match self.imported.get_mut(&what) {
                Some(known) => {
                    known.opened += 1;
                    return Some(imported.share);
                }
                None => drop(self.imported.insert(what, imported)),
            },
            Beyond::Mapped(number) => {
                if let Some(external) = self.external.get_mut(&number) {
                    external.mapped.push(what);
                    external.leaving -= 1;
                }
            }
            Beyond::Handle(number) => {
                if let Some(external) = self.external.get_mut(&number) {
                    external.handle = what as usize;
                    external.leaving -= 1;
                }
            }
        }
        None
    }

    /// The driver has let go of external memory, or of a part. Answers its share if that was the last of it.
    fn left(&mut self, number: u64) -> Option<Share> {
        let external = self.external.get_mut(&number)?;
        external.leaving -= 1;
        let unused = external.handle == 0 && external.mapped.is_empty() && external.leaving == 0;
        let ended = unused.then(|| self.external.remove(&number))?;
        ended.map(|external| external.share)
    }
}

/// A context has ended, with what was imported in it: whatever is at its address by now. `gone` says of a pointer that it is
/// no longer valid.
pub(crate) fn context_ended(context: usize, gone: impl Fn(CUdeviceptr) -> bool) {
    let mut books = locked(&BOOKS);
    let of_context = |_: &u64, external: &mut External| external.context == context && context != 0;
    let mut ended: Vec<Share> = books
        .external
        .extract_if(.., of_context)
        .map(|(_, external)| external.share)
        .collect();
    let closed = books.imported.extract_if(.., |pointer, known| {
        (known.context == context && context != 0) || gone(*pointer)
    });
    ended.extend(closed.map(|(_, known)| known.share));
    books.count();
    drop(books);
    for share in ended {
        let_go(share);
    }
}

/// Takes over what the dead have paid for and this process still holds.
pub(crate) fn follow() {
    let mut books = locked(&BOOKS);
    for known in books.imported.values_mut() {
        let _settled = known.share.settle();
    }
    for external in books.external.values_mut() {
        let _settled = external.share.settle();
    }
}
