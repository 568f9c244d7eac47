//! Allocations that go beyond the share instead of being refused, in a slice whose terms allow it
//! (`--oversubscribe=2x`).
//!
//! What no longer fits becomes managed memory that prefers the host: the device maps it, and none of it takes room on
//! the device that belongs to others. It is charged to the ledger's second book. Physical memory (cuMemCreate), pools
//! and arrays cannot be managed memory, and are refused as ever.

use divvy_abi::{
    CU_DEVICE_CPU, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
    CUDA_ERROR_OUT_OF_MEMORY, CUdevice, CUdeviceptr, CUresult,
};
use divvy_ledger::ReserveError;

use super::charge::{charged_to, kept, noted};
use crate::account::{self, Account};
use crate::below::forward;
use crate::books::held::Piece;
use crate::books::{MANAGED, SPILLED, grain, rounded, spilled};
use crate::{log, room};

/// [`charged_to`], and where that does not fit, `managed` beyond the share, if the terms allow it.
#[inline]
pub(super) fn charged_or_spilled(
    bytes: u64,
    mut call: impl FnMut() -> CUresult,
    mut managed: impl FnMut() -> CUresult,
    pointer: impl Fn() -> CUdeviceptr,
) -> CUresult {
    match account::current() {
        Ok(Some(account)) if account.attached().spill_limit_bytes() != 0 => within_or_beyond(Request {
            account,
            bytes: rounded(bytes),
            most: grain::most(account, bytes),
            within: Within::Device,
            call: &mut call,
            managed: &mut managed,
            pointer: &pointer,
        }),
        Ok(Some(account)) => charged_to(account, bytes, call, pointer),
        Ok(None) => call(),
        Err(code) => code,
    }
}

/// Managed memory, within the share or beyond it. It takes the device's pages when they are touched, and gives them up
/// under pressure: charged by its size.
pub(super) fn managed(
    bytes: u64,
    mut call: impl FnMut() -> CUresult + Copy,
    pointer: impl Fn() -> CUdeviceptr,
) -> CUresult {
    let account = match account::current() {
        Ok(Some(account)) => account,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    let bytes = grain::taken(account, bytes);
    if account.attached().spill_limit_bytes() != 0 {
        let mut again = call;
        return within_or_beyond(Request {
            account,
            bytes,
            most: bytes,
            within: Within::Managed,
            call: &mut call,
            managed: &mut again,
            pointer: &pointer,
        });
    }
    let result = account::allocating(account, bytes, "managed memory", call);
    if !result.is_success() {
        return result;
    }
    let pointer = pointer();
    noted(MANAGED + u16::from(account.index()), Piece { pointer, bytes })
}

/// What an allocation is within the share.
#[derive(Clone, Copy)]
enum Within {
    Device,
    Managed,
}

/// An allocation that may go either way.
struct Request<'a> {
    account: Account,
    bytes: u64,
    /// Bytes of pages that it can take within the share.
    most: u64,
    within: Within,
    call: &'a mut dyn FnMut() -> CUresult,
    managed: &'a mut dyn FnMut() -> CUresult,
    pointer: &'a dyn Fn() -> CUdeviceptr,
}

#[cold]
fn within_or_beyond(mut request: Request<'_>) -> CUresult {
    let (account, bytes) = (request.account, request.bytes);
    if let Err(code) = account::look_around(bytes) {
        return code;
    }
    if let Some(answer) = request.within() {
        return answer;
    }
    // What was freed and has not come back is nearer than the host.
    room::look(account);
    if let Some(answer) = request.either() {
        return answer;
    }
    if let Some(mut waiting) = account.attached().begin_waiting(bytes) {
        while waiting.pause() {
            if let Some(answer) = request.either() {
                return answer;
            }
        }
    }
    log::line(format_args!(
        "{bytes} bytes are refused: they fit neither in the share nor beyond it"
    ));
    CUDA_ERROR_OUT_OF_MEMORY
}

impl Request<'_> {
    fn either(&mut self) -> Option<CUresult> {
        self.within().or_else(|| self.beyond())
    }

    /// Within the share and on the device; nothing where either has no room.
    fn within(&mut self) -> Option<CUresult> {
        let (account, bytes, most) = (self.account, self.bytes, self.most);
        match account.attached().reserve(most) {
            Ok(()) => {}
            Err(ReserveError::Refused { .. }) => return None,
            Err(other) => return Some(account::refused(bytes, "an allocation", other)),
        }
        let result = (self.call)();
        if result.is_success() {
            let pointer = (self.pointer)();
            let piece = Piece { pointer, bytes };
            return Some(match self.within {
                Within::Device => kept(account, piece, most),
                Within::Managed => noted(MANAGED + u16::from(account.index()), piece),
            });
        }
        account.give_back(most);
        (result != CUDA_ERROR_OUT_OF_MEMORY).then_some(result)
    }

    /// Beyond the share; nothing where that is used up as well.
    fn beyond(&mut self) -> Option<CUresult> {
        let account = self.account;
        let bytes = grain::taken(account, self.bytes);
        let attached = account.attached();
        match attached.slot().reserve_spill(bytes, attached.spill_limit_bytes()) {
            Ok(()) => {}
            Err(ReserveError::Refused { .. }) => return None,
            Err(other) => return Some(account::refused(bytes, "an allocation", other)),
        }
        let result = (self.managed)();
        if !result.is_success() {
            spilled::freed(account.index().into(), bytes);
            return Some(result);
        }
        let pointer = (self.pointer)();
        prefer_the_host(pointer, bytes);
        spilled::taken(account);
        Some(noted(
            SPILLED + u16::from(account.index()),
            Piece { pointer, bytes },
        ))
    }
}

/// Keeps the pages where they take no room on the device, mapped into it. Hints: a device or a system that cannot do
/// it moves the pages to and fro instead, and the memory is no less usable.
fn prefer_the_host(pointer: CUdeviceptr, bytes: u64) {
    let mut device: CUdevice = 0;
    // SAFETY: the pointer is the driver's own, of so many bytes at least; the out-parameter is ours.
    unsafe {
        let bytes = bytes as usize;
        let _hint = forward::cuMemAdvise(
            pointer,
            bytes,
            CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
            CU_DEVICE_CPU,
        );
        if forward::cuCtxGetDevice(&raw mut device).is_success() {
            let _hint = forward::cuMemAdvise(pointer, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
        }
    }
}
