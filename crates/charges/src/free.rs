//! Freeing: the charge of an allocation is removed when the driver has released it.

use divvy_abi::{CUDA_ERROR_INVALID_VALUE, CUdeviceptr, CUresult};

use crate::charges::Charges;
use crate::deferred::Freed;
use crate::environment::{Environment, Stream};
use crate::owner::Owner;
use crate::pointers::Charge;
use crate::release::Releasing;

impl<E: Environment> Charges<E> {
    /// Frees `pointer` by `call`.
    #[inline]
    pub fn free(&self, pointer: CUdeviceptr, call: impl FnOnce() -> CUresult) -> CUresult {
        if !self.env().is_ours() {
            // Either nothing was charged to this process, or it is a forked child with a copy of its parent's tables.
            return call();
        }
        // Removed before the call: afterwards the address may already be another thread's new allocation.
        let charge = self.charged().pointers.take(pointer);
        if let Some(releasing) = self.live().release(pointer, charge, true) {
            return self.releasing(Some(releasing), call);
        }
        let result = call();
        if let Some(charge) = charge {
            self.freed(pointer, charge, result.is_success());
        }
        result
    }

    /// The driver has freed `pointer`, or not.
    #[inline]
    fn freed(&self, pointer: CUdeviceptr, charge: Charge, is_freed: bool) {
        if is_freed {
            self.charged().give_back(charge.at(pointer));
        } else {
            self.charged().put_back(pointer, charge);
        }
    }

    /// Releases other processes' memory at `pointer` by `call`.
    pub fn close(&self, pointer: u64, call: impl FnOnce() -> CUresult) -> CUresult {
        if !self.env().is_ours() {
            return call();
        }
        self.releasing(self.live().release(pointer, None, true), call)
    }

    pub(crate) fn releasing(
        &self,
        releasing: Option<Releasing>,
        call: impl FnOnce() -> CUresult,
    ) -> CUresult {
        let result = call();
        if let Some(releasing) = releasing {
            self.live().end(releasing, result.is_success());
        }
        result
    }

    /// Frees `pointer` in stream order by `call`: its charge is removed when the stream reaches the free.
    #[inline]
    pub fn free_in(&self, stream: Stream, pointer: CUdeviceptr, call: impl FnOnce() -> CUresult) -> CUresult {
        if !self.env().is_ours() {
            return call();
        }
        let charge = self.charged().pointers.take(pointer);
        let releasing = self.live().release(pointer, charge, false);
        let result = call();
        if let Some(charge) = charge
            && matches!(charge.owner, Owner::Spilled(_))
            && result == CUDA_ERROR_INVALID_VALUE
        {
            return self.freed_at_once(pointer, charge);
        }
        if result.is_success()
            && let Some(charge) = charge
            && let Owner::Pool(pool) = charge.owner
        {
            self.charged().pools.will_be_freed(pool, charge.bytes);
        }
        match (releasing, charge) {
            (Some(releasing), _) if result.is_success() => {
                let freed = Freed::Releasing(Box::new(releasing));
                self.deferred.add(stream, freed);
            }
            (Some(releasing), _) => self.live().end(releasing, false),
            (None, Some(charge)) if result.is_success() => {
                let freed = Freed::Owned(charge.at(pointer));
                self.deferred.add(stream, freed);
            }
            (None, Some(charge)) => self.charged().put_back(pointer, charge),
            (None, None) => {}
        }
        result
    }

    /// Frees managed memory that the program believes to be device memory: drivers do not free that in stream order.
    /// Waits for the work that uses it, as cuMemFree does.
    #[cold]
    fn freed_at_once(&self, pointer: CUdeviceptr, charge: Charge) -> CUresult {
        let result = self.env().free(pointer);
        self.freed(pointer, charge, result.is_success());
        result
    }

    /// The current context's work is all finished.
    pub fn context_synchronized(&self) {
        if self.deferred.any() && self.env().is_ours() {
            self.deferred.context_synchronized();
        }
    }

    /// A stream is about to be destroyed.
    pub fn stream_ends(&self, stream: usize) {
        if self.deferred.any() && self.env().is_ours() {
            self.deferred.seal(stream);
        }
    }
}
