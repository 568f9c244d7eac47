//! Pointers that reach beyond this process: exported ones, imported ones, and external memory.
//!
//! An entry is removed before the driver is asked to release its memory ([`Imports::leaving`]): afterwards the address
//! may already be another thread's.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use divvy_abi::{CUdeviceptr, CUresult};

use crate::environment::{Environment, Reserve};
use crate::key::Key;
use crate::lock::locked;
use crate::shared::{Share, Shares};

/// An allocation of another process that is open here.
#[derive(Debug)]
pub(crate) struct Imported {
    share: Share,
    /// The context that it ends with; 0 if it outlives every context.
    context: usize,
    /// How often it was opened there: the driver returns the same pointer each time.
    opened: u32,
}

/// External memory: charged until its handle and all its mappings are gone.
struct External {
    /// 0 once it is released.
    handle: usize,
    share: Share,
    context: usize,
    /// Pointers and mipmaps.
    mapped: Vec<u64>,
    /// Driver calls in progress that release the handle or a part.
    leaving: u32,
}

pub(crate) struct Imports {
    table: Mutex<Table>,
    pointers: AtomicUsize,
}

struct Table {
    /// Allocations of this process that others may open.
    exported: BTreeMap<CUdeviceptr, Share>,
    imported: BTreeMap<CUdeviceptr, Imported>,
    external: BTreeMap<u64, External>,
    /// Number of the newest external memory.
    newest: u64,
}

/// The entries under a pointer that this process is about to release.
#[derive(Debug)]
pub(crate) struct Leaving {
    pointer: CUdeviceptr,
    /// The share of memory that others may have open.
    pub exported: Option<Share>,
    /// The memory of another process.
    pub import: Option<ImportLeaving>,
}

/// A part of another process's memory that this process is about to release.
#[derive(Debug)]
pub(crate) enum ImportLeaving {
    /// One opening of several.
    Again,
    /// The last one.
    Last(Imported),
    /// A part of external memory, by its number.
    Mapped(u64),
    /// The handle of external memory.
    Handle(u64),
}

impl Imports {
    pub const fn new() -> Self {
        Self {
            table: Mutex::new(Table {
                exported: BTreeMap::new(),
                imported: BTreeMap::new(),
                external: BTreeMap::new(),
                newest: 0,
            }),
            pointers: AtomicUsize::new(0),
        }
    }

    /// Whether any pointer is noted here.
    #[inline]
    pub fn any(&self) -> bool {
        self.pointers.load(Ordering::Relaxed) != 0
    }

    /// Changes the table, and updates the number of its pointers.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = locked(&self.table);
        let answer = change(&mut table);
        let mapped: usize = table
            .external
            .values()
            .map(|external| external.mapped.len())
            .sum();
        let pointers = table.exported.len() + table.imported.len() + mapped;
        self.pointers.store(pointers, Ordering::Relaxed);
        answer
    }

    /// Whether other processes may open the memory at `pointer`.
    pub fn is_exported(&self, pointer: CUdeviceptr) -> bool {
        locked(&self.table).exported.contains_key(&pointer)
    }

    /// Other processes may open the memory at `pointer` from now on.
    pub fn exported<E: Environment>(&self, shares: &Shares<E>, pointer: CUdeviceptr, key: Key) {
        let stale = self.change(|table| {
            let known = table.exported.get(&pointer);
            if known.is_some_and(|share| share.key() == key) {
                return None;
            }
            let owned = shares.charged.pointers.get(pointer)?.at(pointer);
            let account = shares.charged.account_of(owned.owner)?;
            let (residual, pages) = shares.charged.extents().residual(account, owned);
            // The charge itself stays where it is.
            let share = shares.exported(account, key, 0, residual).in_pages(pages);
            // An earlier allocation of this address was freed without the limiter seeing it.
            table.exported.insert(pointer, share)
        });
        end_all(shares, stale);
    }

    /// A pointer of another process was opened here. It ends with `context` unless that is 0. `joined` is this
    /// process's share, if another process was already charged before the driver was asked.
    ///
    /// # Errors
    /// As [`Reserve::reserve`]; it must be closed again.
    pub fn imported<E: Environment>(
        &self,
        shares: &Shares<E>,
        room: &impl Reserve<E::Account>,
        pointer: CUdeviceptr,
        (account, key, bytes): (E::Account, Key, u64),
        joined: Option<Share>,
        context: usize,
    ) -> Result<(), CUresult> {
        let share = match joined {
            Some(share) => share.with_bytes(bytes),
            None if locked(&self.table).opened_again(pointer, key, context) => return Ok(()),
            None => shares.imported(room, account, key, bytes)?,
        };
        let surplus = self.change(|table| {
            if table.opened_again(pointer, key, context) {
                return Some(share);
            }
            let imported = Imported {
                share,
                context,
                opened: 1,
            };
            // An earlier import at this address ended with its context.
            let stale = table.imported.insert(pointer, imported);
            stale.map(|stale| stale.share)
        });
        end_all(shares, surplus);
        Ok(())
    }

    /// The driver is about to be asked to free, close or unmap a pointer. Its entries here are removed.
    pub fn leaving(&self, pointer: CUdeviceptr) -> Option<Leaving> {
        self.change(|table| {
            let exported = table.exported.remove(&pointer);
            let import = table.opening(pointer).or_else(|| table.part(pointer));
            (exported.is_some() || import.is_some()).then_some(Leaving {
                pointer,
                exported,
                import,
            })
        })
    }

    /// The driver has not released it.
    pub fn refused<E: Environment>(&self, shares: &Shares<E>, leaving: Leaving) {
        let pointer = leaving.pointer;
        let surplus = self.change(|table| {
            if let Some(share) = leaving.exported {
                table.exported.insert(pointer, share);
            }
            leaving.import.and_then(|import| table.back(pointer, import))
        });
        end_all(shares, surplus);
    }

    /// The driver has released another process's memory. No lock is held.
    pub fn gone<E: Environment>(&self, shares: &Shares<E>, import: ImportLeaving) {
        let ended = match import {
            ImportLeaving::Again => None,
            ImportLeaving::Last(imported) => Some(imported.share),
            ImportLeaving::Mapped(number) | ImportLeaving::Handle(number) => locked(&self.table).left(number),
        };
        let_go(shares, ended);
    }

    /// External memory was imported, which `share` is charged for.
    pub fn external(&self, handle: usize, share: Share, context: usize) {
        self.change(|table| {
            table.newest += 1;
            let external = External {
                handle,
                share,
                context,
                mapped: Vec::new(),
                leaving: 0,
            };
            table.external.insert(table.newest, external);
        });
    }

    /// Part of external memory is mapped under a pointer, or as a mipmap.
    pub fn external_mapped(&self, handle: usize, mapped: u64) {
        self.change(|table| {
            let mut all = table.external.values_mut();
            if let Some(external) = all.find(|external| external.handle == handle) {
                external.mapped.push(mapped);
            }
        });
    }

    /// The driver is about to be asked to release external memory; its mappings stay.
    pub fn external_leaving(&self, handle: usize) -> Option<Leaving> {
        let mut table = locked(&self.table);
        let mut all = table.external.iter_mut();
        let (number, external) = all.find(|(_, external)| external.handle == handle && handle != 0)?;
        external.handle = 0;
        external.leaving += 1;
        Some(Leaving {
            pointer: handle as u64,
            exported: None,
            import: Some(ImportLeaving::Handle(*number)),
        })
    }

    /// A context has ended, with its imports: other memory may be at their addresses by now. `gone` tells whether a
    /// pointer is no longer valid.
    pub fn context_ended<E: Environment>(
        &self,
        shares: &Shares<E>,
        context: usize,
        gone: impl Fn(CUdeviceptr) -> bool,
    ) {
        let ended = self.change(|table| {
            let of_context = |_: &u64, external: &mut External| external.context == context && context != 0;
            let external = table.external.extract_if(.., of_context);
            let mut ended: Vec<Share> = external.map(|(_, external)| external.share).collect();
            let closed = table.imported.extract_if(.., |pointer, known| {
                (known.context == context && context != 0) || gone(*pointer)
            });
            ended.extend(closed.map(|(_, known)| known.share));
            ended
        });
        let_go(shares, ended);
    }

    /// Takes over charges of dead processes for memory that this process still holds.
    pub fn follow<E: Environment>(&self, shares: &Shares<E>) {
        let mut table = locked(&self.table);
        let table = &mut *table;
        let imported = table.imported.values_mut().map(|known| &mut known.share);
        let external = table.external.values_mut().map(|known| &mut known.share);
        for share in imported.chain(external) {
            shares.settle(share);
        }
    }
}

fn end_all<E: Environment>(shares: &Shares<E>, ended: impl IntoIterator<Item = Share>) {
    for share in ended {
        shares.end(share);
    }
}

/// No lock is held. Memory that this process had freed before, and that this import kept, is released as well.
fn let_go<E: Environment>(shares: &Shares<E>, ended: impl IntoIterator<Item = Share>) {
    for share in ended {
        shares.end(share);
        shares.follow();
    }
}

impl Leaving {
    /// Index of the account that is charged for it, or would be.
    pub fn account(&self) -> Option<u8> {
        match (&self.exported, &self.import) {
            (Some(share), _) => Some(share.account()),
            (None, Some(ImportLeaving::Last(imported))) => Some(imported.share.account()),
            _ => None,
        }
    }
}

impl Table {
    /// Counts one more opening, if the allocation of `key` is open there already.
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

    /// Removes one opening of a pointer.
    fn opening(&mut self, pointer: CUdeviceptr) -> Option<ImportLeaving> {
        let known = self.imported.get_mut(&pointer)?;
        if known.opened > 1 {
            known.opened -= 1;
            return Some(ImportLeaving::Again);
        }
        self.imported.remove(&pointer).map(ImportLeaving::Last)
    }

    /// Removes a mapped part of external memory.
    fn part(&mut self, mapped: u64) -> Option<ImportLeaving> {
        self.external.iter_mut().find_map(|(number, external)| {
            let at = external.mapped.iter().position(|other| *other == mapped)?;
            external.mapped.swap_remove(at);
            external.leaving += 1;
            Some(ImportLeaving::Mapped(*number))
        })
    }

    /// Restores the removed entries. Returns a share that has become superfluous.
    fn back(&mut self, pointer: u64, import: ImportLeaving) -> Option<Share> {
        match import {
            ImportLeaving::Again => {
                if let Some(known) = self.imported.get_mut(&pointer) {
                    known.opened += 1;
                }
            }
            ImportLeaving::Last(imported) => match self.imported.get_mut(&pointer) {
                Some(known) => {
                    known.opened += 1;
                    return Some(imported.share);
                }
                None => drop(self.imported.insert(pointer, imported)),
            },
            ImportLeaving::Mapped(number) => {
                if let Some(external) = self.external.get_mut(&number) {
                    external.mapped.push(pointer);
                    external.leaving -= 1;
                }
            }
            ImportLeaving::Handle(number) => {
                if let Some(external) = self.external.get_mut(&number) {
                    external.handle = pointer as usize;
                    external.leaving -= 1;
                }
            }
        }
        None
    }

    /// The driver has released external memory, or a part of it. Returns its share if that was the last part.
    fn left(&mut self, number: u64) -> Option<Share> {
        let external = self.external.get_mut(&number)?;
        external.leaving -= 1;
        let unused = external.handle == 0 && external.mapped.is_empty() && external.leaving == 0;
        let ended = unused.then(|| self.external.remove(&number))?;
        ended.map(|external| external.share)
    }
}
