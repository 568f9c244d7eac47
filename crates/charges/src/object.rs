//! Objects without a reported address (arrays, modules, libraries), memory pools, and kernel launches.

use divvy_abi::CUresult;
use divvy_ledger::ReserveError;

use crate::charges::Charges;
use crate::environment::{Account, Environment};
use crate::objects::Objects;
use crate::reserve::refused;
use crate::spilled;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A CUDA array.
    Array,
    /// A mipmap.
    Mipmap,
    /// A module, by its variables.
    Module,
    /// A library, by its variables.
    Library,
}

impl<E: Environment> Charges<E> {
    fn objects(&self, kind: Kind) -> &Objects {
        match kind {
            Kind::Array => &self.arrays,
            Kind::Mipmap => &self.mipmaps,
            Kind::Module => &self.modules,
            Kind::Library => &self.libraries,
        }
    }

    /// Makes an object of `bytes`, in at most so many allocations of the driver's, by `call`; `handle` reads its handle
    /// after a success.
    pub fn make_object(
        &self,
        kind: Kind,
        account: E::Account,
        (bytes, allocations): (u64, u64),
        call: impl FnMut() -> CUresult,
        handle: impl FnOnce() -> usize,
    ) -> CUresult {
        let (extents, objects) = (self.extents(), self.objects(kind));
        let object = match objects.reserve(extents, self, account, bytes, allocations) {
            Ok(object) => object,
            Err(code) => return code,
        };
        // Its memory is reserved already; the call itself reserves nothing.
        let result = self.calling(account, 0, call);
        if result.is_success() {
            objects.made(extents, handle(), object);
        } else {
            extents.leave_object(object);
        }
        result
    }

    /// Ends an object by `call`.
    pub fn end_object(&self, kind: Kind, handle: usize, call: impl FnOnce() -> CUresult) -> CUresult {
        if !self.env().is_ours() {
            return call();
        }
        self.objects(kind).ended(self.extents(), handle, call)
    }

    /// An array or mipmap has ended: the tiles of a sparse one are free.
    pub fn array_ended(&self, handle: usize) {
        if self.env().is_ours() {
            self.physical.unbind(self.shares(), handle);
        }
    }

    /// Refuses an object larger than the device.
    pub fn refuse(&self, account: E::Account, bytes: u64, what: &'static str) -> CUresult {
        let limit_bytes = account.limit_bytes();
        let used_bytes = limit_bytes.saturating_sub(account.room_bytes());
        let refusal = ReserveError::Refused {
            limit_bytes,
            used_bytes,
        };
        refused(self.env(), account, bytes, what, refusal)
    }

    /// The program received a pool that is charged to `account`. If there is no entry for the pool, an allocation from
    /// it is refused.
    pub fn pool_known(&self, pool: usize, account: E::Account) {
        let _noted = self.charged().pools.number(pool, account.index());
    }

    /// Destroys a pool by `call`.
    pub fn destroy_pool(&self, pool: usize, call: impl FnOnce() -> CUresult) -> CUresult {
        if !self.env().is_ours() {
            return call();
        }
        self.charged().pools.destroyed(pool, call)
    }

    /// A pool's threshold has changed, or it was trimmed.
    pub fn pool_changed(&self, pool: usize) {
        if self.env().is_ours() {
            self.follow();
            self.charged().pools.follow_one(pool);
        }
    }

    /// A kernel is launched. `account` looks up the current device's. Costs a load where nothing is spilled.
    #[inline]
    pub fn kernel_launched(&self, account: impl FnOnce() -> Option<E::Account>) {
        if self.charged().spilled.launched()
            && self.env().is_ours()
            && let Some(account) = account()
        {
            spilled::note(self.env(), account, true);
        }
    }
}
