//! What allocations with an address hold of the device: every page that they lie in, for as long as any of them does.

use divvy_abi::CUdeviceptr;

use super::{UNIT, grain};
use crate::account::Account;
use crate::map::Exhausted;
use crate::pages::PageMap;

pub(super) static PAGES: PageMap = PageMap::new();

/// An allocation that is, or waits to be, freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub pointer: CUdeviceptr,
    /// Its size as the ledger counts.
    pub bytes: u64,
}

/// `payer`, which is `account` or a pool that it pays for, has allocated a piece. Answers how many bytes of pages it holds
/// more by that.
///
/// # Errors
/// [`Exhausted`]; nothing is changed then.
#[inline]
pub(crate) fn enter(payer: u16, account: Account, piece: Piece) -> Result<u64, Exhausted> {
    match grain::settled_page(account) {
        UNIT => Ok(piece.bytes),
        page => PAGES.enter(payer, page, piece.pointer, piece.bytes),
    }
}

/// A piece that was entered is gone. Answers how many bytes of pages the payer holds less by that.
#[inline]
pub(crate) fn leave(payer: u16, account: Account, piece: Piece) -> u64 {
    match grain::settled_page(account) {
        UNIT => piece.bytes,
        page => PAGES.leave(payer, page, piece.pointer, piece.bytes),
    }
}
