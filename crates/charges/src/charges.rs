//! All charges of a process, and which of them can be given back.

use divvy_abi::CUresult;

use crate::charged::Charged;
use crate::contexts::Contexts;
use crate::deferred::Deferred;
use crate::environment::{Account, Environment, Reserve};
use crate::extents::Extents;
use crate::graphs::Graphs;
use crate::objects::Objects;
use crate::physical::Physical;
use crate::release::Live;
use crate::reserve::{Reclaim, find, refused};
use crate::shared::Shares;

/// The charges of one process. The functions that hooks call are in `allocate`, `free`, `share`, `context` and
/// `object`.
pub struct Charges<E> {
    pub(crate) deferred: Deferred<E>,
    pub(crate) physical: Physical,
    pub(crate) contexts: Contexts,
    pub(crate) graphs: Graphs,
    pub(crate) arrays: Objects,
    pub(crate) mipmaps: Objects,
    pub(crate) modules: Objects,
    pub(crate) libraries: Objects,
}

impl<E> Charges<E> {
    /// The charges of a new process: none.
    pub const fn new(env: E) -> Self {
        Self {
            deferred: Deferred::new(env),
            physical: Physical::new(),
            contexts: Contexts::new(),
            graphs: Graphs::new(),
            arrays: Objects::new("an array"),
            mipmaps: Objects::new("a mipmap"),
            modules: Objects::new("a module's variables"),
            libraries: Objects::new("a library's variables"),
        }
    }
}

impl<E: Environment> Charges<E> {
    #[inline]
    pub(crate) fn live(&self) -> &Live<E> {
        &self.deferred.live
    }

    pub(crate) fn shares(&self) -> &Shares<E> {
        &self.deferred.live.shares
    }

    #[inline]
    pub(crate) fn charged(&self) -> &Charged<E> {
        &self.deferred.live.shares.charged
    }

    #[inline]
    pub(crate) fn extents(&self) -> &Extents<E> {
        self.charged().extents()
    }

    /// The environment of the charges.
    #[inline]
    pub fn env(&self) -> &E {
        self.charged().env()
    }

    /// Updates the charges to what the driver has done meanwhile: frees that their streams have reached, and memory
    /// that pools have released. Without pending frees this costs some loads.
    #[inline]
    pub fn follow(&self) {
        if self.deferred.any()
            || self.charged().pools.any_slack()
            || self.graphs.any()
            || self.shares().any_residual()
        {
            self.follow_now();
        }
    }

    #[cold]
    fn follow_now(&self) {
        if self.env().is_ours() {
            self.deferred.settle();
            self.charged().pools.follow();
            self.follow_residuals();
            self.graphs.follow(self.env());
        }
    }

    /// Gives back residual memory without importers.
    pub fn follow_residuals(&self) {
        self.shares().follow();
    }

    /// Whether an account's sleeping thread ends: it is `over`, or no residual memory is left.
    pub fn watch_ends(&self, account: u8, over: bool) -> bool {
        self.shares().watch_ends(account, over)
    }
}

impl<E: Environment> Reclaim<E::Account> for Charges<E> {
    fn reclaim(&self, account: E::Account) {
        let (env, index) = (self.env(), account.index());
        let pools = &self.charged().pools;
        self.deferred.settle();
        pools.follow();
        pools.trim(index);
        self.graphs.follow(env);
        self.graphs.trim(env, index);
        self.follow_residuals();
        self.physical.follow(self.shares());
        self.live().imports.follow(self.shares());
    }

    fn coming_bytes(&self) -> Option<u64> {
        self.deferred.any().then(|| self.deferred.waiting_bytes())
    }
}

impl<E: Environment> Reserve<E::Account> for Charges<E> {
    #[inline]
    fn take(&self, account: E::Account, bytes: u64, what: &'static str) -> Result<(), CUresult> {
        match account.reserve(bytes) {
            Ok(()) => Ok(()),
            Err(refusal) => find(self, account, bytes, refusal)
                .map_err(|refusal| refused(self.env(), account, bytes, what, refusal)),
        }
    }

    #[inline]
    fn reserve(&self, account: E::Account, bytes: u64, what: &'static str) -> Result<(), CUresult> {
        self.env().permit(bytes)?;
        self.take(account, bytes, what)
    }
}
