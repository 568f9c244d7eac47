//! Objects that hold device memory under a handle, and report no address: arrays, mipmaps, modules, libraries.

use std::collections::BTreeMap;
use std::sync::Mutex;

use divvy_abi::CUresult;

use crate::environment::{Environment, Reserve};
use crate::extents::{Extents, Object};
use crate::lock::locked;

/// All objects of one kind, by handle.
pub(crate) struct Objects {
    what: &'static str,
    /// Each with the context that it ends with; 0 for none.
    all: Mutex<BTreeMap<usize, (Object, usize)>>,
}

impl Objects {
    pub const fn new(what: &'static str) -> Self {
        Self {
            what,
            all: Mutex::new(BTreeMap::new()),
        }
    }

    /// Reserves memory for an object of `bytes`, of at most `allocations` allocations of the driver's.
    ///
    /// # Errors
    /// As [`Reserve::reserve`].
    pub fn reserve<E: Environment>(
        &self,
        extents: &Extents<E>,
        room: &impl Reserve<E::Account>,
        account: E::Account,
        bytes: u64,
        allocations: u64,
    ) -> Result<Object, CUresult> {
        extents.enter_object(room, account, bytes, allocations, self.what)
    }

    /// The driver has made an object in the current context.
    pub fn made<E: Environment>(&self, extents: &Extents<E>, handle: usize, object: Object) {
        let context = extents.env.current_context();
        // If the handle exists already, the old object was released without the limiter seeing it.
        if let Some((old, _)) = locked(&self.all).insert(handle, (object, context)) {
            extents.leave_object(old);
        }
    }

    /// Ends the object with this handle by `call`.
    pub fn ended<E: Environment>(
        &self,
        extents: &Extents<E>,
        handle: usize,
        call: impl FnOnce() -> CUresult,
    ) -> CUresult {
        // Before the call: afterwards the handle may already be another thread's.
        let object = locked(&self.all).remove(&handle);
        let result = call();
        match object {
            Some((object, _)) if result.is_success() => extents.leave_object(object),
            Some(object) => drop(locked(&self.all).insert(handle, object)),
            None => {}
        }
        result
    }

    /// A context has ended, and so have its objects.
    pub fn context_ended<E: Environment>(&self, extents: &Extents<E>, ended: usize) {
        let gone = |_: &usize, (_, context): &mut (Object, usize)| *context == ended && ended != 0;
        let all: Vec<_> = locked(&self.all).extract_if(.., gone).collect();
        for (_, (object, _)) in all {
            extents.leave_object(object);
        }
    }
}
