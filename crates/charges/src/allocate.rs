//! Allocating: reserve, call the driver, and note the allocation or give the reservation back.
//!
//! Over the limit the answer is `CUDA_ERROR_OUT_OF_MEMORY` and the driver is not called: out-parameters stay untouched.

use divvy_abi::{CUDA_ERROR_OUT_OF_MEMORY, CUdeviceptr, CUresult};
use divvy_ledger::ReserveError;

use crate::charges::Charges;
use crate::deferred::Freed;
use crate::environment::{Account, Environment, Reserve as _, Stream};
use crate::owner::{Extent, Owned, Owner};
use crate::pools::Begun;
use crate::reserve::{Reclaim as _, ask_again, note_refusal, refused};
use crate::units::rounded;

impl<E: Environment> Charges<E> {
    /// Allocates `bytes` by `call`; `pointer` reads the address after a success.
    ///
    /// Pages for all of it are reserved first. If the driver has put it into pages that are held already, they are
    /// given back.
    #[inline]
    pub fn allocate(
        &self,
        account: E::Account,
        bytes: u64,
        call: impl FnMut() -> CUresult,
        pointer: impl FnOnce() -> CUdeviceptr,
    ) -> CUresult {
        if let Err(code) = self.env().permit(bytes) {
            return code;
        }
        let (bytes, most) = (rounded(bytes), self.extents().most(account, bytes));
        if let Err(code) = self.take(account, most, "an allocation") {
            return code;
        }
        let result = self.calling(account, most, call);
        if !result.is_success() {
            return result;
        }
        let pointer = pointer();
        self.keep(account, Extent { pointer, bytes }, most)
    }

    /// Allocates `height` rows of `width` bytes by `call`; `filled_in` reads the address and the rows' pitch in bytes
    /// after a success. Rows are charged at the driver's pitch, which is known only then. So the usual pitch is
    /// reserved first, and then corrected.
    pub fn allocate_rows(
        &self,
        account: E::Account,
        (width, height): (u64, u64),
        call: impl FnMut() -> CUresult,
        filled_in: impl FnOnce() -> (CUdeviceptr, u64),
    ) -> CUresult {
        // Every device so far pitches rows to a multiple of 512 bytes.
        let expected = rounded(width).saturating_mul(height);
        let most = self.extents().most(account, expected);
        let taken = self.env().permit(expected);
        if let Err(code) = taken.and_then(|()| self.take(account, most, "an allocation of rows")) {
            return code;
        }
        let result = self.calling(account, most, call);
        if !result.is_success() {
            return result;
        }
        let (pointer, pitch) = filled_in();
        let bytes = rounded(pitch.saturating_mul(height));
        self.keep(account, Extent { pointer, bytes }, most)
    }

    /// Allocates managed memory of `bytes` by `call`. It takes the device's pages when they are touched, and gives them
    /// up under pressure, so it is charged by its size. It may lie beyond the share.
    pub fn allocate_managed(
        &self,
        account: E::Account,
        bytes: u64,
        mut call: impl FnMut() -> CUresult + Copy,
        pointer: impl Fn() -> CUdeviceptr,
    ) -> CUresult {
        let bytes = self.extents().taken(account, bytes);
        if account.spill_limit_bytes() != 0 {
            let mut again = call;
            return self.within_or_beyond(Request {
                account,
                bytes,
                most: bytes,
                is_managed: true,
                call: &mut call,
                managed: &mut again,
                pointer: &pointer,
            });
        }
        let result = self.allocating(account, bytes, "managed memory", call);
        if !result.is_success() {
            return result;
        }
        let pointer = pointer();
        self.note(Owned {
            owner: Owner::Managed(account.index()),
            extent: Extent { pointer, bytes },
        })
    }

    /// [`Charges::allocate`]. If that does not fit, allocates by `managed` beyond the share, if the terms allow it
    /// (`--oversubscribe=2x`). The device maps such memory and holds none of it.
    #[inline]
    pub fn allocate_or_spill(
        &self,
        account: E::Account,
        bytes: u64,
        mut call: impl FnMut() -> CUresult,
        mut managed: impl FnMut() -> CUresult,
        pointer: impl Fn() -> CUdeviceptr,
    ) -> CUresult {
        if account.spill_limit_bytes() == 0 {
            return self.allocate(account, bytes, call, pointer);
        }
        self.within_or_beyond(Request {
            account,
            bytes: rounded(bytes),
            most: self.extents().most(account, bytes),
            is_managed: false,
            call: &mut call,
            managed: &mut managed,
            pointer: &pointer,
        })
    }

    /// Allocates `bytes` in stream order from a pool by `call`; `pointer` reads the address after a success.
    pub fn allocate_from_pool(
        &self,
        account: E::Account,
        (pool, stream): (usize, Stream),
        bytes: u64,
        call: impl FnOnce() -> CUresult,
        pointer: impl FnOnce() -> CUdeviceptr,
    ) -> CUresult {
        let (env, pools) = (self.env(), &self.charged().pools);
        let bytes = rounded(bytes);
        let pool = match pools.number(pool, account.index()) {
            Ok(pool) => pool,
            Err(code) => return code,
        };
        let owner = Owner::Pool(pool);
        let same_stream = self.deferred.waiting_in(stream, owner);
        let begun = match self.begin_in_pool(pool, bytes, same_stream) {
            Ok(begun) => begun,
            Err(code) => return code,
        };
        let result = call();
        if !result.is_success() {
            pools.failed(&begun);
            return result;
        }
        let pointer = pointer();
        let mut still_waiting = 0;
        if same_stream >= bytes {
            self.deferred.settle();
            still_waiting = self.deferred.waiting_in(stream, owner);
        }
        let extent = Extent { pointer, bytes };
        let owned = Owned { owner, extent };
        match pools.finish(&begun, extent, still_waiting) {
            Ok(()) => self.note(owned),
            Err(noted) => {
                env.free_in(pointer, stream);
                if noted {
                    pools.will_be_freed(pool, bytes);
                    self.deferred.add(stream, Freed::Owned(owned));
                }
                CUDA_ERROR_OUT_OF_MEMORY
            }
        }
    }

    /// Reserves the possible growth of a pool for `bytes` more, when `same_stream` bytes wait to be freed in the same
    /// stream.
    fn begin_in_pool(&self, pool: u16, bytes: u64, same_stream: u64) -> Result<Begun, CUresult> {
        let (env, pools) = (self.env(), &self.charged().pools);
        let account = self.charged().account_of(Owner::Pool(pool));
        let account = account.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        env.permit(bytes)?;
        let need = pools.need(account, bytes);
        let begin = |promised| Ok(pools.begin(pool, bytes, promised));
        if account.try_reserve(need.most) {
            return begin(need.most);
        }
        if pools.reuses(pool, bytes, same_stream) {
            return begin(0);
        }
        // First freed memory that has not come back, and then as much memory kept by the pools as is needed.
        self.deferred.settle();
        pools.follow();
        let had = account.try_reserve(need.most) || {
            pools.trim_for(account, need.most);
            account.try_reserve(need.most)
        };
        if had {
            return begin(need.most);
        }
        if pools.is_idle(pool, bytes) {
            return begin(0);
        }
        // If larger steps than whole pages were not observed, they are not assumed where that would mean a refusal.
        let least = if need.is_coarse { need.most } else { need.least };
        self.take(account, least, "memory of a pool")?;
        begin(least)
    }

    /// Reserves `bytes` and takes them from the driver by `call`; they are charged exactly if that succeeds. `call` is
    /// repeated while the driver is out of memory and the slice's terms wait. It is also repeated if a process has just
    /// died whose memory may be on its way back.
    #[inline]
    pub(crate) fn allocating(
        &self,
        account: E::Account,
        bytes: u64,
        what: &'static str,
        call: impl FnMut() -> CUresult,
    ) -> CUresult {
        match self.reserve(account, bytes, what) {
            Ok(()) => self.calling(account, bytes, call),
            Err(code) => code,
        }
    }

    /// [`Charges::allocating`], with `bytes` already reserved.
    #[inline]
    pub(crate) fn calling(
        &self,
        account: E::Account,
        bytes: u64,
        mut call: impl FnMut() -> CUresult,
    ) -> CUresult {
        let result = call();
        if result.is_success() {
            return result;
        }
        account.give_back(bytes);
        if result == CUDA_ERROR_OUT_OF_MEMORY {
            return ask_again(self, account, bytes, &mut call);
        }
        result
    }

    /// Records an allocation that the driver has made, for whose pages `reserved` bytes were reserved. If it takes
    /// less, the rest is given back. If it takes more than fits, the allocation is undone.
    #[inline]
    fn keep(&self, account: E::Account, extent: Extent, reserved: u64) -> CUresult {
        let extents = self.extents();
        let owner = Owner::Account(account.index());
        let owned = Owned { owner, extent };
        if extents.any_detached() {
            // If importers have a page open that is empty here, it is another page when its address is reused.
            self.deferred.settle();
        }
        let Ok(taken) = extents.enter(account, owned) else {
            self.free_again(extent.pointer);
            account.give_back(reserved);
            return CUDA_ERROR_OUT_OF_MEMORY;
        };
        if taken < reserved {
            account.give_back(reserved - taken);
        } else if taken > reserved && !account.try_reserve(taken - reserved) {
            self.free_again(extent.pointer);
            self.env().log(format_args!(
                "{} bytes took {taken} of pages, with {reserved} reserved: undone",
                extent.bytes
            ));
            // Other allocations may be in the same pages by now.
            let left = taken - extents.leave(account, owned).min(taken);
            account.give_back(reserved.saturating_sub(left));
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        self.note(owned)
    }

    /// Records the owner of an allocation.
    #[inline]
    fn note(&self, owned: Owned) -> CUresult {
        match self.charged().pointers.insert(owned) {
            Ok(None) => CUresult::default(),
            // The address was freed without the limiter seeing it: its old charge is removed.
            Ok(Some(old)) => {
                self.charged().give_back(old.at(owned.extent.pointer));
                CUresult::default()
            }
            // The charge cannot be recorded, so the allocation is refused.
            Err(_) => {
                self.free_again(owned.extent.pointer);
                self.charged().give_back(owned);
                CUDA_ERROR_OUT_OF_MEMORY
            }
        }
    }

    #[cold]
    fn free_again(&self, pointer: CUdeviceptr) {
        let _freed = self.env().free(pointer);
    }

    #[cold]
    fn within_or_beyond(&self, mut request: Request<'_, E::Account>) -> CUresult {
        let (account, bytes) = (request.account, request.bytes);
        if let Err(code) = self.env().permit(bytes) {
            return code;
        }
        if let Some(answer) = self.within(&mut request) {
            return answer;
        }
        let mut either = || self.within(&mut request).or_else(|| self.beyond(&mut request));
        // Freed memory that has not come back is better than memory on the host.
        self.reclaim(account);
        if let Some(answer) = either() {
            return answer;
        }
        if let Some(mut pause) = account.begin_waiting(bytes) {
            while pause() {
                if let Some(answer) = either() {
                    return answer;
                }
            }
        }
        self.env().log(format_args!(
            "{bytes} bytes are refused: they fit neither in the share nor beyond it"
        ));
        note_refusal(account, bytes);
        CUDA_ERROR_OUT_OF_MEMORY
    }

    /// Within the share and on the device; `None` if either lacks the space.
    fn within(&self, request: &mut Request<'_, E::Account>) -> Option<CUresult> {
        let (account, bytes, most) = (request.account, request.bytes, request.most);
        match account.reserve(most) {
            Ok(()) => {}
            Err(ReserveError::Refused { .. }) => return None,
            Err(other) => return Some(refused(self.env(), account, bytes, "an allocation", other)),
        }
        let result = (request.call)();
        if result.is_success() {
            let pointer = (request.pointer)();
            let extent = Extent { pointer, bytes };
            return Some(if request.is_managed {
                let owner = Owner::Managed(account.index());
                self.note(Owned { owner, extent })
            } else {
                self.keep(account, extent, most)
            });
        }
        account.give_back(most);
        (result != CUDA_ERROR_OUT_OF_MEMORY).then_some(result)
    }

    /// Beyond the share; `None` if that is used up as well.
    fn beyond(&self, request: &mut Request<'_, E::Account>) -> Option<CUresult> {
        let account = request.account;
        let spilled = &self.charged().spilled;
        let bytes = self.extents().taken(account, request.bytes);
        match account.slot()?.reserve_spill(bytes, account.spill_limit_bytes()) {
            Ok(()) => {}
            Err(ReserveError::Refused { .. }) => return None,
            Err(other) => return Some(refused(self.env(), account, bytes, "an allocation", other)),
        }
        let result = (request.managed)();
        if !result.is_success() {
            spilled.freed(self.env(), account.index(), bytes);
            return Some(result);
        }
        let pointer = (request.pointer)();
        self.env().prefer_host(pointer, bytes);
        spilled.taken(self.env(), account);
        Some(self.note(Owned {
            owner: Owner::Spilled(account.index()),
            extent: Extent { pointer, bytes },
        }))
    }
}

/// An allocation that may lie within the share or beyond it.
struct Request<'a, A> {
    account: A,
    bytes: u64,
    /// Bytes of pages that it can take within the share.
    most: u64,
    /// It is managed memory within the share as well.
    is_managed: bool,
    call: &'a mut dyn FnMut() -> CUresult,
    managed: &'a mut dyn FnMut() -> CUresult,
    pointer: &'a dyn Fn() -> CUdeviceptr,
}
