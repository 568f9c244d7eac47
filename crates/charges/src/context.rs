//! Contexts, their heaps, and the memory that ends with them; and graphs.
//!
//! Only the driver knows which allocations end with a context. Before a context is destroyed, the driver is asked about
//! each charged pointer, since the address may be another thread's allocation, import or mapping afterwards. If it is
//! not known beforehand whether a context ends, each pointer is checked after the call. The charges of those that the
//! driver no longer knows are removed. This costs nothing at allocation, and it handles shared and pooled memory
//! correctly, which outlives a context.

use divvy_abi::{CUcontext, CUdevice, CUdeviceptr, CUresult};

use crate::charges::Charges;
use crate::contexts::HeapSize;
use crate::environment::{Account, Environment};
use crate::graphs::Needs;
use crate::pointers::Charge;
use crate::release::Releasing;

/// An allocation that will end with its context.
#[derive(Debug)]
enum Leaving {
    /// Other processes may have it open, or it shares a page with such an allocation.
    Beyond(Box<Releasing>),
    /// It belongs to this process alone.
    Own(CUdeviceptr, Charge),
}

impl<E: Environment> Charges<E> {
    /// Makes a context by `call`; `handle` reads it after a success.
    pub fn create_context(
        &self,
        account: E::Account,
        call: impl FnOnce() -> CUresult,
        handle: impl FnOnce() -> CUcontext,
    ) -> CUresult {
        self.contexts.created(self, account, call, handle)
    }

    /// Ensures by `call` that a device has its primary context; `handle` reads it after a success, if it is known.
    pub fn retain_primary(
        &self,
        device: CUdevice,
        account: E::Account,
        call: impl FnOnce() -> CUresult,
        handle: impl FnOnce() -> Option<CUcontext>,
    ) -> CUresult {
        self.contexts
            .primary_retained(self, device, account, call, handle)
    }

    /// The handle of a device's primary context, if this process was charged for it.
    pub fn primary(&self, device: CUdevice) -> Option<CUcontext> {
        self.contexts.primary(device)
    }

    /// Devices whose primary context this process was charged for.
    pub fn primaries(&self) -> Vec<CUdevice> {
        self.contexts.primaries()
    }

    /// Handles of the contexts that an account is charged for.
    pub fn contexts_of(&self, account: u8) -> Vec<usize> {
        self.contexts.of(account)
    }

    /// Whether this process ever had more than one context.
    #[inline]
    pub fn are_contexts_several(&self) -> bool {
        self.contexts.are_several()
    }

    /// A reference to the context was added.
    pub fn context_attached(&self, context: CUcontext) {
        if self.env().is_ours() {
            self.contexts.attached(context);
        }
    }

    /// Sets a heap of a context by `set`. `after` returns its size in bytes once it is set.
    pub fn set_heap(
        &self,
        account: E::Account,
        size: HeapSize,
        set: impl FnOnce() -> CUresult,
        after: impl FnOnce() -> u64,
    ) -> CUresult {
        self.contexts.heap_set(self, account, size, set, after)
    }

    /// Ends a context by `call`. Returns the driver's result, and whether this ended the context.
    pub fn destroy_context(&self, context: CUcontext, call: impl FnOnce() -> CUresult) -> (CUresult, bool) {
        self.end_context(context, true, call, || true)
    }

    /// Removes a reference to the context by `call`, which may end it.
    pub fn detach_context(&self, context: CUcontext, call: impl FnOnce() -> CUresult) -> (CUresult, bool) {
        let is_last = self.contexts.has_one_use(context);
        self.end_context(context, is_last, call, || self.contexts.detached(context))
    }

    fn end_context(
        &self,
        context: CUcontext,
        may_end: bool,
        call: impl FnOnce() -> CUresult,
        ends: impl FnOnce() -> bool,
    ) -> (CUresult, bool) {
        if !self.env().is_ours() {
            return (call(), false);
        }
        let leaving = if may_end {
            self.leaving_with(context as usize)
        } else {
            Vec::new()
        };
        let result = call();
        let ended = result.is_success() && ends();
        for one in leaving {
            match one {
                Leaving::Beyond(releasing) => self.live().end(*releasing, ended),
                Leaving::Own(pointer, charge) if ended => self.charged().give_back(charge.at(pointer)),
                Leaving::Own(pointer, charge) => self.charged().put_back(pointer, charge),
            }
        }
        if ended {
            self.context_ended(context);
            self.give_back_the_gone();
        }
        (result, ended)
    }

    /// The allocations that will end with a context. They are taken out of the tables beforehand, since the driver may
    /// reuse the addresses before they are checked. The program promises to free none of them meanwhile.
    fn leaving_with(&self, context: usize) -> Vec<Leaving> {
        let env = self.env();
        let _quiet = env.quiet();
        let of_context = self.charged().pointers.snapshot().into_iter();
        // Memory of a pool outlives every context.
        let of_context = of_context
            .filter(|(pointer, charge)| !charge.owner.is_pool() && env.context_of(*pointer) == Some(context));
        // Allocations that others may have open come first: only then is it known which allocations share a page with
        // them.
        let (exported, rest): (Vec<_>, Vec<_>) =
            of_context.partition(|(pointer, _)| self.live().imports.is_exported(*pointer));
        exported
            .into_iter()
            .chain(rest)
            .filter_map(|(pointer, charge)| self.leaving(pointer, charge))
            .collect()
    }

    fn leaving(&self, pointer: CUdeviceptr, charge: Charge) -> Option<Leaving> {
        let pointers = &self.charged().pointers;
        let charge = pointers.take_if(pointer, |present| present == charge)?;
        let releasing = self.live().release(pointer, Some(charge), true);
        Some(match releasing {
            Some(releasing) => Leaving::Beyond(Box::new(releasing)),
            None => Leaving::Own(pointer, charge),
        })
    }

    /// A context has ended, and everything inside it.
    fn context_ended(&self, context: CUcontext) {
        let (env, live, context) = (self.env(), self.live(), context as usize);
        self.deferred.context_ended(context);
        for objects in [&self.arrays, &self.mipmaps, &self.modules] {
            objects.context_ended(self.extents(), context);
        }
        live.imports
            .context_ended(&live.shares, context, |pointer| env.is_gone(pointer));
        self.contexts.ended(env, context);
        if self.graphs.any() {
            self.graphs.trimmed(env);
        }
    }

    /// A device's primary context has ended. Returns it, if this process was charged for it.
    pub fn primary_ended(&self, device: CUdevice) -> Option<CUcontext> {
        let context = self.contexts.primary(device);
        if let Some(context) = context {
            self.context_ended(context);
        }
        self.give_back_the_gone();
        context
    }

    /// A device was reset, which may or may not end its pools. None of them is queried before the program names it
    /// again.
    pub fn device_reset(&self, device: CUdevice) {
        self.give_back_the_gone();
        if let Ok(Some(account)) = self.env().of_device(device) {
            self.charged().pools.reset(account.index());
        }
    }

    /// Removes the charge of each pointer that the driver no longer knows.
    fn give_back_the_gone(&self) {
        let _quiet = self.env().quiet();
        let pointers = &self.charged().pointers;
        for (pointer, charge) in pointers.snapshot() {
            if self.env().is_gone(pointer)
                && let Some(charge) = pointers.take_if(pointer, |present| present == charge)
            {
                // Other processes may still have it open, as after a free.
                match self.live().release(pointer, Some(charge), true) {
                    Some(releasing) => self.live().end(releasing, true),
                    None => self.charged().give_back(charge.at(pointer)),
                }
            }
        }
    }

    /// Whether any graph has memory nodes, or memory.
    #[inline]
    pub fn any_graphs(&self) -> bool {
        self.graphs.any() && self.env().is_ours()
    }

    /// Bytes that a graph's node may take for an allocation of `bytes`: each may have pages of its own.
    pub fn node_bytes(&self, device: CUdevice, bytes: u64) -> u64 {
        match self.env().of_device(device) {
            Ok(Some(account)) => self.extents().most(account, bytes),
            _ => crate::units::rounded(bytes),
        }
    }

    /// Makes an executable graph of nodes that need memory by `call`, which may upload it; `exec` reads its handle
    /// after a success. Memory that outlives a launch may be freed by the next one.
    pub fn instantiate_graph(
        &self,
        needs: Needs,
        (uploads, frees_on_launch): (bool, bool),
        call: impl FnOnce() -> CUresult,
        exec: impl FnOnce() -> usize,
    ) -> CUresult {
        let result = if uploads {
            self.graphs.with_room(self.env(), self, &needs, call)
        } else {
            call()
        };
        if result.is_success() {
            self.graphs.instantiated(exec(), needs, frees_on_launch);
        }
        result
    }

    /// Launches or uploads an executable graph into a stream by `call`.
    pub fn launch_graph(&self, exec: usize, stream: usize, call: impl FnOnce() -> CUresult) -> CUresult {
        self.graphs.launched(self.env(), self, exec, stream, call)
    }

    /// An executable graph is about to be destroyed.
    pub fn graph_ends(&self, exec: usize) {
        if self.any_graphs() {
            // Before the call: afterwards the handle may already be another thread's.
            self.graphs.destroyed(exec);
        }
    }

    /// Makes the driver release memory that no graph uses, by `call`.
    pub fn trim_graphs(&self, call: impl FnOnce() -> CUresult) -> CUresult {
        if self.any_graphs() {
            self.graphs.trimming(self.env(), call)
        } else {
            call()
        }
    }
}
