//! Releasing a pointer that reaches beyond this process. It has or may have importers, it is another process's memory,
//! or such an allocation lay in its page.
//!
//! Its entries are removed from the tables before the driver is asked, which may reuse the address at once. It stays
//! charged until the driver has released it.

use divvy_abi::CUdeviceptr;

use crate::charged::Charged;
use crate::detached::Detached;
use crate::environment::Environment;
use crate::imports::{Imports, Leaving};
use crate::owner::Owner;
use crate::pointers::Charge;
use crate::shared::Shares;

/// The tables of live memory.
pub(crate) struct Live<E> {
    pub shares: Shares<E>,
    pub imports: Imports,
}

/// A pointer that is being released.
#[derive(Debug)]
pub(crate) struct Releasing {
    pointer: CUdeviceptr,
    /// Its charge, if it is an allocation of this process.
    charge: Option<Charge>,
    /// Its pages, if it has any.
    pages: Option<Detached>,
    leaving: Option<Leaving>,
}

impl<E> Live<E> {
    pub const fn new(env: E) -> Self {
        Self {
            shares: Shares::new(env),
            imports: Imports::new(),
        }
    }
}

impl<E: Environment> Live<E> {
    #[inline]
    pub fn charged(&self) -> &Charged<E> {
        &self.shares.charged
    }

    /// The driver is about to be asked to release a pointer: `at_once`, or when a stream reaches the call. `charge` was
    /// removed from the table. `None` if there are no other entries.
    #[inline]
    pub fn release(&self, pointer: CUdeviceptr, charge: Option<Charge>, at_once: bool) -> Option<Releasing> {
        if !self.imports.any() && !self.charged().extents().any_detached() {
            return None;
        }
        self.release_beyond(pointer, charge, at_once)
    }

    #[cold]
    fn release_beyond(
        &self,
        pointer: CUdeviceptr,
        charge: Option<Charge>,
        at_once: bool,
    ) -> Option<Releasing> {
        let leaving = self.imports.leaving(pointer);
        let is_exported = leaving.as_ref().is_some_and(|leaving| leaving.exported.is_some());
        let pages = charge.and_then(|charge| {
            let owned = charge.at(pointer);
            let detaches = is_exported || self.charged().touches_detached(owned);
            detaches.then(|| self.charged().detach(owned, at_once))?
        });
        (leaving.is_some() || pages.is_some()).then_some(Releasing {
            pointer,
            charge,
            pages,
            leaving,
        })
    }

    /// The driver is about to be asked to release external memory.
    pub fn release_external(&self, handle: usize) -> Option<Releasing> {
        Some(Releasing {
            pointer: handle as u64,
            charge: None,
            pages: None,
            leaving: Some(self.imports.external_leaving(handle)?),
        })
    }

    /// The driver has released it, or refused. No lock is held.
    pub fn end(&self, releasing: Releasing, has_let_go: bool) {
        if has_let_go {
            self.released(releasing, false);
        } else {
            self.refused(releasing);
        }
    }

    fn refused(&self, releasing: Releasing) {
        if let Some(pages) = &releasing.pages {
            self.charged().undo_detached(pages);
        }
        if let Some(leaving) = releasing.leaving {
            self.imports.refused(&self.shares, leaving);
        }
        if let Some(charge) = releasing.charge {
            self.charged().put_back(releasing.pointer, charge);
        }
    }

    /// The driver has released it: at once, or since a stream has reached the call. No lock is held.
    pub fn released(&self, mut releasing: Releasing, in_stream: bool) {
        let charged = self.charged();
        if let Some(pages) = &mut releasing.pages {
            charged.leave_pages(pages);
        }
        let (exported, import) = match releasing.leaving {
            Some(leaving) => (leaving.exported, leaving.import),
            None => (None, None),
        };
        let detached = releasing.pages.as_ref().map(|pages| pages.owned);
        match (exported, releasing.pages) {
            (Some(share), Some(pages)) => self.shares.freed(share, pages),
            (None, Some(pages)) => charged.end_detached(&pages),
            (exported, None) => {
                if let Some(share) = exported {
                    self.shares.end(share);
                }
                if let Some(charge) = releasing.charge {
                    self.returned(releasing.pointer, charge, in_stream);
                }
            }
        }
        if let Some(owned) = detached
            && let Owner::Pool(pool) = owned.owner
        {
            let bytes = owned.extent.bytes;
            charged.pools.freed_detached(pool, bytes, in_stream);
        }
        if let Some(import) = import {
            self.imports.gone(&self.shares, import);
        }
    }

    fn returned(&self, pointer: CUdeviceptr, charge: Charge, in_stream: bool) {
        let owned = charge.at(pointer);
        match owned.owner {
            Owner::Pool(pool) if in_stream => {
                let charged = self.charged();
                charged.pools.freed(pool, &[owned.extent], true);
            }
            _ => self.charged().give_back(owned),
        }
    }
}

impl Releasing {
    /// The owner that is charged for it, or would be.
    pub fn owner(&self) -> Owner {
        let account = || self.leaving.as_ref().and_then(Leaving::account);
        self.charge
            .map_or_else(|| Owner::Account(account().unwrap_or(0)), |charge| charge.owner)
    }

    /// The bytes charged for it in this process.
    pub fn bytes(&self) -> u64 {
        self.charge.map_or(0, |charge| charge.bytes)
    }
}
