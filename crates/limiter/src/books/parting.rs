//! Letting go of a pointer that reaches beyond this process: one that others may have open, or that is of others, or whose
//! page one such lay in.
//!
//! What is known of it is taken out of the books before the driver is asked, which may hand the address out again at once;
//! it counts until the driver has done it.

use divvy_abi::CUdeviceptr;

use super::apart::{self, Apart};
use super::held::Piece;
use super::imports::{self, Leaving};
use super::{CHARGED, is_pool, pools, returned};
use crate::map::Charge;

type TakeApart = fn(u16, Piece) -> Option<Apart>;

/// A pointer that is being let go.
#[derive(Debug)]
pub(crate) struct Parting {
    pointer: CUdeviceptr,
    /// What it was charged, if it is an allocation of this process.
    charge: Option<Charge>,
    /// Its pages, where it has some.
    pages: Option<Apart>,
    leaving: Option<Leaving>,
}

impl Parting {
    /// The driver is about to be asked. `charge` was taken out of the books; `None` where there is nothing to it but that.
    #[inline]
    pub fn begin(pointer: CUdeviceptr, charge: Option<Charge>) -> Option<Self> {
        Self::begin_as(pointer, charge, apart::taken)
    }

    /// The same where the driver lets go when a stream gets there: [`Parting::arrived`].
    #[inline]
    pub fn begin_in_stream(pointer: CUdeviceptr, charge: Option<Charge>) -> Option<Self> {
        Self::begin_as(pointer, charge, apart::waiting)
    }

    #[inline]
    fn begin_as(pointer: CUdeviceptr, charge: Option<Charge>, take: TakeApart) -> Option<Self> {
        if !imports::any()
            && !charge.is_some_and(|charge| apart::touches(charge.payer, piece(pointer, charge)))
        {
            return None;
        }
        Self::begin_beyond(pointer, charge, take)
    }

    #[cold]
    fn begin_beyond(pointer: CUdeviceptr, charge: Option<Charge>, take: TakeApart) -> Option<Self> {
        let leaving = imports::leaving(pointer);
        let is_exported = leaving.as_ref().is_some_and(Leaving::is_exported);
        let pages = charge.and_then(|charge| {
            let piece = piece(pointer, charge);
            let is_apart = is_exported || apart::touches(charge.payer, piece);
            is_apart.then(|| take(charge.payer, piece))?
        });
        (leaving.is_some() || pages.is_some()).then_some(Self {
            pointer,
            charge,
            pages,
            leaving,
        })
    }

    /// The driver has not let go.
    pub fn refused(self) {
        if let Some(pages) = self.pages {
            pages.undone();
        }
        if let Some(leaving) = self.leaving {
            leaving.refused();
        }
        if let Some(charge) = self.charge {
            let _room_was_there = CHARGED.insert(self.pointer, charge.bytes, charge.payer);
        }
    }

    /// The driver has let go. No lock is held.
    pub fn done(self) {
        self.end(false);
    }

    /// The stream has come to where the driver lets go. No lock is held.
    pub fn arrived(self) {
        self.end(true);
    }

    fn end(mut self, in_stream: bool) {
        if let Some(pages) = &mut self.pages {
            pages.leave_pages();
        }
        let (exported, rest) = self.leaving.map_or((None, None), Leaving::into_parts);
        let of_pool = self.pages.as_ref().and_then(Apart::of_pool);
        match (exported, self.pages) {
            (Some(share), Some(pages)) => share.freed(pages),
            (None, Some(pages)) => pages.ended(),
            (exported, None) => {
                if let Some(share) = exported {
                    share.ended();
                }
                if let Some(charge) = self.charge {
                    returned_after(self.pointer, charge, in_stream);
                }
            }
        }
        if let Some((pool, bytes)) = of_pool {
            pools::freed_apart(pool, bytes, in_stream);
        }
        if let Some(rest) = rest {
            rest.gone();
        }
    }

    /// Who pays for it, or would.
    pub fn payer(&self) -> u16 {
        let account = || self.leaving.as_ref().and_then(Leaving::account);
        self.charge
            .map_or_else(|| account().unwrap_or(0).into(), |charge| charge.payer)
    }

    /// Bytes that it was charged here.
    pub fn bytes(&self) -> u64 {
        self.charge.map_or(0, |charge| charge.bytes)
    }
}

fn returned_after(pointer: CUdeviceptr, charge: Charge, in_stream: bool) {
    if in_stream && is_pool(charge.payer) {
        pools::arrived(charge.payer, &[piece(pointer, charge)]);
    } else {
        returned(pointer, charge);
    }
}

fn piece(pointer: CUdeviceptr, charge: Charge) -> Piece {
    Piece {
        pointer,
        bytes: charge.bytes,
    }
}
