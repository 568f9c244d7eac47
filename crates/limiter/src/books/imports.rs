//! Pointers that reach beyond this process: exported ones, imported ones, and external memory.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use divvy_abi::{CUdeviceptr, CUresult};

use super::held::Piece;
use super::shared::{self, Key, Share};
use super::{CHARGED, account_of, grain, is_pool, locked};
use crate::account::{self, Account};
use crate::map::Charge;

struct Imported {
    share: Share,
    /// How often it was opened: the driver answers the same pointer each time.
    opened: u32,
}

struct Books {
    /// Allocations of this process that others may open.
    exported: BTreeMap<CUdeviceptr, Share>,
    imported: BTreeMap<CUdeviceptr, Imported>,
    external: Vec<External>,
}

/// External memory: charged until its handle and everything that is mapped of it are gone.
struct External {
    /// 0 once it is given up.
    handle: usize,
    share: Share,
    context: usize,
    /// Pointers and mipmaps.
    mapped: Vec<u64>,
}

static BOOKS: Mutex<Books> = Mutex::new(Books {
    exported: BTreeMap::new(),
    imported: BTreeMap::new(),
    external: Vec::new(),
});
static POINTERS: AtomicUsize = AtomicUsize::new(0);

/// Whether any pointer is noted here.
#[inline]
pub(crate) fn any() -> bool {
    POINTERS.load(Ordering::Relaxed) != 0
}

impl Books {
    fn count(&self) {
        let mapped: usize = self.external.iter().map(|external| external.mapped.len()).sum();
        POINTERS.store(
            self.exported.len() + self.imported.len() + mapped,
            Ordering::Relaxed,
        );
    }
}

/// Others may open what `pointer` points to.
pub(crate) fn exported(pointer: CUdeviceptr, key: Key) {
    let mut books = locked(&BOOKS);
    if books.exported.contains_key(&pointer) {
        return;
    }
    let Some(charge) = CHARGED.take(pointer) else {
        return;
    };
    let _room_was_there = CHARGED.insert(pointer, charge.bytes, charge.payer);
    // A pool's account is not known here; of whichever ledger, the entry only says that somebody pays.
    let account = if is_pool(charge.payer) {
        account::current().ok().flatten()
    } else {
        account_of(charge.payer)
    };
    if let Some(account) = account {
        // The charge itself stays where it is.
        let worth = grain::most(account, charge.bytes);
        books
            .exported
            .insert(pointer, shared::exported(account, key, 0, worth));
        books.count();
    }
}

/// A pointer of another process was opened here.
///
/// # Errors
/// As [`account::reserve`]; it must be closed again.
pub(crate) fn imported(pointer: CUdeviceptr, account: Account, key: Key, bytes: u64) -> Result<(), CUresult> {
    if let Some(known) = locked(&BOOKS).imported.get_mut(&pointer) {
        known.opened += 1;
        return Ok(());
    }
    let share = shared::imported(account, key, bytes)?;
    let mut books = locked(&BOOKS);
    match books.imported.get_mut(&pointer) {
        Some(known) => {
            known.opened += 1;
            drop(books);
            share.ended();
        }
        None => {
            books.imported.insert(pointer, Imported { share, opened: 1 });
            books.count();
        }
    }
    Ok(())
}

/// An allocation of this process was freed that was charged `charge`. Answers what of it may be given back: nothing while
/// other processes have it open, for which this one goes on paying.
pub(crate) fn released(pointer: CUdeviceptr, charge: Charge) -> Option<Charge> {
    let mut books = locked(&BOOKS);
    let Some(share) = books.exported.remove(&pointer) else {
        return Some(charge);
    };
    books.count();
    drop(books);
    if is_pool(charge.payer) {
        share.freed_in_pool(charge.bytes);
        return Some(charge);
    }
    let bytes = charge.bytes;
    share
        .freed(charge.payer, Piece { pointer, bytes })
        .then_some(charge)
}

/// A pointer was freed, or closed, that may be noted here.
pub(crate) fn freed(pointer: CUdeviceptr) {
    let mut books = locked(&BOOKS);
    let closed = match books.imported.get_mut(&pointer) {
        Some(known) if known.opened > 1 => {
            known.opened -= 1;
            None
        }
        Some(_) => books.imported.remove(&pointer).map(|known| known.share),
        None => None,
    };
    let unmapped = books.unmapped(pointer);
    books.count();
    drop(books);
    for share in [closed, unmapped].into_iter().flatten() {
        let_go(share);
    }
}

/// No lock is held. What this process itself had freed before, and kept alive by this, goes with it.
fn let_go(share: Share) {
    share.ended();
    shared::follow();
}

/// External memory was imported, which `share` pays for.
pub(crate) fn external(handle: usize, share: Share, context: usize) {
    locked(&BOOKS).external.push(External {
        handle,
        share,
        context,
        mapped: Vec::new(),
    });
}

/// Part of external memory is mapped under a pointer, or as a mipmap.
pub(crate) fn external_mapped(handle: usize, mapped: u64) {
    let mut books = locked(&BOOKS);
    if let Some(external) = books
        .external
        .iter_mut()
        .find(|external| external.handle == handle)
    {
        external.mapped.push(mapped);
        books.count();
    }
}

/// External memory was given up; what is mapped of it stays.
pub(crate) fn external_closed(handle: usize) {
    let mut books = locked(&BOOKS);
    let closed = books
        .external
        .iter_mut()
        .find(|external| external.handle == handle);
    if let Some(external) = closed {
        external.handle = 0;
    }
    let share = books.take_unused();
    drop(books);
    if let Some(share) = share {
        let_go(share);
    }
}

impl Books {
    fn unmapped(&mut self, pointer: CUdeviceptr) -> Option<Share> {
        let (external, at) = self.external.iter_mut().find_map(|external| {
            let at = external.mapped.iter().position(|mapped| *mapped == pointer)?;
            Some((external, at))
        })?;
        external.mapped.swap_remove(at);
        self.take_unused()
    }

    /// External memory that nobody refers to any more.
    fn take_unused(&mut self) -> Option<Share> {
        let unused = |external: &External| external.handle == 0 && external.mapped.is_empty();
        let at = self.external.iter().position(unused)?;
        Some(self.external.swap_remove(at).share)
    }
}

/// A context has ended, with the external memory that was imported in it. `gone` says of a pointer that it is no longer
/// valid.
pub(crate) fn context_ended(context: usize, gone: impl Fn(CUdeviceptr) -> bool) {
    let mut books = locked(&BOOKS);
    let of_context = |external: &mut External| external.context == context && context != 0;
    let mut ended: Vec<Share> = books
        .external
        .extract_if(.., of_context)
        .map(|external| external.share)
        .collect();
    let closed: Vec<CUdeviceptr> = books
        .imported
        .keys()
        .copied()
        .filter(|pointer| gone(*pointer))
        .collect();
    for pointer in closed {
        ended.extend(books.imported.remove(&pointer).map(|known| known.share));
    }
    let freed: Vec<CUdeviceptr> = books
        .exported
        .keys()
        .copied()
        .filter(|pointer| gone(*pointer))
        .collect();
    for pointer in freed {
        if let Some(share) = books.exported.remove(&pointer) {
            share.ended_for_all();
        }
    }
    books.count();
    drop(books);
    for share in ended {
        share.ended();
    }
}

/// Takes over what the dead have paid for and this process still holds.
pub(crate) fn follow() {
    let mut books = locked(&BOOKS);
    for known in books.imported.values_mut() {
        let _settled = known.share.settle();
    }
    for external in &mut books.external {
        let _settled = external.share.settle();
    }
}
