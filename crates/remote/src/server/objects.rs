//! The objects of a connection: from the names that its client knows to the driver's handles.
//!
//! A call that uses an object has a [`Use`] of it. A call that destroys an object waits until no other call uses it, or
//! anything that goes with it. So the driver below gets no handle that another thread's call has freed.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use divvy_abi::{CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUresult};

use crate::handle::{Id, Kind, Origin};

/// The objects.
pub struct Objects {
    by_id: HashMap<Id, Object>,
    by_real: HashMap<(Kind, u64), Id>,
    /// Numbers for the names that the server makes.
    next: u64,
    /// So many objects may there be.
    most: usize,
    /// How many of them hold images.
    modules: usize,
}

struct Object {
    real: u64,
    parent: Option<Id>,
    children: BTreeSet<Id>,
    /// So many calls go on that destroy it, or what it goes with.
    ending: u32,
    /// Cloned for each call that uses it.
    uses: Use,
}

/// A call's use of an object, for as long as it is there.
pub type Use = Arc<()>;

/// What a call that destroys an object waits for: the uses of all that goes with it.
pub struct Uses {
    own: Weak<()>,
    others: Vec<Weak<()>>,
}

impl Uses {
    /// Whether no other call uses any of it. The caller has so many uses of the object itself.
    fn are_over(&self, own: usize) -> bool {
        // One more is the table's.
        self.own.strong_count() <= own + 1 && self.others.iter().all(|uses| uses.strong_count() <= 1)
    }

    /// Waits until then. No call begins to use it meanwhile.
    pub fn wait(&self, own: usize) {
        let mut looks = 0_u32;
        while !self.are_over(own) {
            looks += 1;
            match looks {
                0..100 => std::thread::yield_now(),
                // The other call waits for the device.
                _ => std::thread::sleep(std::time::Duration::from_micros(200)),
            }
        }
        // What the other calls did is done before ours begins: each gave its use back by a release.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    }
}

fn holds_images(kind: Kind) -> bool {
    matches!(kind, Kind::Module | Kind::Library | Kind::Linker)
}

impl Objects {
    /// No objects, and room for so many.
    pub fn new(most: usize) -> Self {
        Self {
            by_id: HashMap::new(),
            by_real: HashMap::new(),
            next: 0,
            most,
            modules: 0,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// How many of them are modules, libraries and linkers.
    pub fn modules(&self) -> usize {
        self.modules
    }

    /// Whether one more may come.
    pub fn has_room(&self) -> bool {
        self.len() < self.most
    }

    /// The driver's handle for what a client holds as an object of this kind, and a use of it for as long as the call goes
    /// on. Constants of the interface are themselves.
    ///
    /// # Errors
    /// It names no object, or one of another kind: the code that CUDA has for that.
    pub fn real(&self, kind: Kind, bits: u64) -> Result<(u64, Option<Use>), CUresult> {
        if kind.is_constant(bits) {
            return Ok((bits, None));
        }
        let object = Id::from_bits(bits)
            .filter(|id| kind.accepts(id.kind()))
            .and_then(|id| self.by_id.get(&id))
            .filter(|object| object.ending == 0);
        let used = object.map(|object| (object.real, Some(Arc::clone(&object.uses))));
        used.ok_or(match kind {
            Kind::Context => CUDA_ERROR_INVALID_CONTEXT,
            _ => CUDA_ERROR_INVALID_HANDLE,
        })
    }

    /// Whether a client may give a new object of this kind this name: it is the client's to give, and unused.
    pub fn is_free(&self, kind: Kind, id: Id) -> bool {
        id.kind() == kind && id.origin() == Origin::Client && !self.by_id.contains_key(&id)
    }

    /// Enters an object. A name that the same handle had before is void, for the driver has made the handle again: gives
    /// that name and those of what went with it.
    pub fn insert(&mut self, id: Id, real: u64, parent: Option<Id>) -> Vec<Id> {
        let old = self.by_real.get(&(id.kind(), real)).copied();
        let gone = old.map(|old| self.remove(old)).unwrap_or_default();
        // A node that is found by another node goes with the graph of both.
        let parent = match parent {
            Some(node) if node.kind() == Kind::GraphNode && id.kind() == Kind::GraphNode => {
                self.by_id.get(&node).and_then(|node| node.parent)
            }
            parent => parent,
        };
        let parent = parent.filter(|parent| *parent != id);
        let entered = parent
            .and_then(|parent| self.by_id.get_mut(&parent))
            .map(|parent| parent.children.insert(id));
        let object = Object {
            real,
            parent: entered.and(parent),
            children: BTreeSet::new(),
            ending: 0,
            uses: Use::default(),
        };
        if self.by_id.insert(id, object).is_none() {
            self.modules += usize::from(holds_images(id.kind()));
        }
        self.by_real.insert((id.kind(), real), id);
        gone
    }

    /// The name of an object that the driver gave, which is entered where it is new. `None` where there is no room.
    pub fn found(&mut self, kind: Kind, real: u64, parent: Option<Id>) -> Option<u64> {
        if kind.is_constant(real) {
            return Some(real);
        }
        if let Some(id) = self.by_real.get(&(kind, real)) {
            return Some(id.bits());
        }
        if !self.has_room() {
            return None;
        }
        let id = Id::new(kind, Origin::Server, self.next);
        self.next += 1;
        // The handle had no name, so none is void.
        self.insert(id, real, parent);
        Some(id.bits())
    }

    /// The name that a handle of the driver has.
    pub fn id(&self, kind: Kind, real: u64) -> Option<Id> {
        self.by_real.get(&(kind, real)).copied()
    }

    /// A call that destroys this object begins: no other call finds it from now on, nor anything that goes with it. Gives
    /// what the call has to wait for. None where another thread's call destroys it already, or has done so.
    pub fn begin_end(&mut self, id: Id) -> Option<Uses> {
        let object = self.by_id.get(&id).filter(|object| object.ending == 0)?;
        let own = Arc::downgrade(&object.uses);
        let mut others = Vec::new();
        self.mark(id, |object| {
            object.ending += 1;
            others.push(Arc::downgrade(&object.uses));
        });
        // The first is the object itself.
        others.swap_remove(0);
        Some(Uses { own, others })
    }

    /// That call failed: the object is there as before.
    pub fn keep(&mut self, id: Id) {
        self.mark(id, |object| object.ending = object.ending.saturating_sub(1));
    }

    /// Does this with an object, and with all that goes with it.
    fn mark(&mut self, id: Id, mut how: impl FnMut(&mut Object)) {
        let mut ahead = vec![id];
        while let Some(object) = ahead.pop().map(|id| self.by_id.get_mut(&id)) {
            if let Some(object) = object {
                how(object);
                ahead.extend(&object.children);
            }
        }
    }

    /// Forgets an object and all that went with it. Gives all of them, itself included.
    pub fn remove(&mut self, id: Id) -> Vec<Id> {
        let mut gone = Vec::new();
        let mut ahead = vec![id];
        while let Some(id) = ahead.pop() {
            let Some(object) = self.by_id.remove(&id) else {
                continue;
            };
            self.modules -= usize::from(holds_images(id.kind()));
            if self.by_real.get(&(id.kind(), object.real)) == Some(&id) {
                self.by_real.remove(&(id.kind(), object.real));
            }
            if let Some(parent) = object.parent.and_then(|parent| self.by_id.get_mut(&parent)) {
                parent.children.remove(&id);
            }
            ahead.extend(object.children);
            gone.push(id);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(kind: Kind, serial: u64) -> Id {
        Id::new(kind, Origin::Client, serial)
    }

    fn handle(objects: &Objects, kind: Kind, bits: u64) -> Result<u64, CUresult> {
        objects.real(kind, bits).map(|(real, _)| real)
    }

    #[test]
    fn an_object_is_destroyed_by_one_call_at_a_time() {
        let mut objects = Objects::new(10);
        let id = client(Kind::Stream, 1);
        objects.insert(id, 0x100, None);
        assert!(objects.begin_end(id).is_some());
        assert!(objects.begin_end(id).is_none(), "by another thread as well");
        objects.real(Kind::Stream, id.bits()).expect_err("it goes");
        objects.keep(id);
        assert_eq!(handle(&objects, Kind::Stream, id.bits()), Ok(0x100));
        assert!(objects.begin_end(id).is_some());
        objects.remove(id);
        assert!(objects.begin_end(id).is_none());
    }

    #[test]
    fn a_call_that_destroys_waits_for_those_that_use_it_or_what_goes_with_it() {
        let mut objects = Objects::new(10);
        let (context, stream) = (client(Kind::Context, 1), client(Kind::Stream, 2));
        objects.insert(context, 0x100, None);
        objects.insert(stream, 0x200, Some(context));
        let (_, own) = objects.real(Kind::Context, context.bits()).expect("there");
        let (_, used) = objects.real(Kind::Stream, stream.bits()).expect("there");
        let uses = objects.begin_end(context).expect("its first end");
        assert!(!uses.are_over(1), "the stream is in use");
        objects
            .real(Kind::Stream, stream.bits())
            .expect_err("no other call begins");
        assert!(objects.begin_end(stream).is_none(), "nor ends it");
        drop(used);
        assert!(uses.are_over(1));
        assert!(!uses.are_over(0), "one more than its own");
        drop(own);
        assert!(uses.are_over(0));
        objects.keep(context);
        assert_eq!(handle(&objects, Kind::Stream, stream.bits()), Ok(0x200));
        // The end of a part goes on while that of the whole begins: neither waits for the other for ever.
        let (_, own) = objects.real(Kind::Stream, stream.bits()).expect("there");
        let of_stream = objects.begin_end(stream).expect("its end");
        let of_context = objects.begin_end(context).expect("its end");
        assert!(of_stream.are_over(1) && !of_context.are_over(0));
        objects.remove(stream);
        drop(own);
        assert!(of_context.are_over(0));
    }

    #[test]
    fn only_what_was_entered_is_an_object_and_only_of_its_kind() {
        let mut objects = Objects::new(10);
        let stream = client(Kind::Stream, 1);
        objects.insert(stream, 0xabc, None);
        assert_eq!(handle(&objects, Kind::Stream, stream.bits()), Ok(0xabc));
        assert_eq!(
            handle(&objects, Kind::Event, stream.bits()),
            Err(CUDA_ERROR_INVALID_HANDLE)
        );
        assert_eq!(
            handle(&objects, Kind::Stream, 0xabc),
            Err(CUDA_ERROR_INVALID_HANDLE),
            "no address"
        );
        assert_eq!(
            handle(&objects, Kind::Context, 0xabc),
            Err(CUDA_ERROR_INVALID_CONTEXT)
        );
        assert_eq!(handle(&objects, Kind::Stream, 2), Ok(2));
        assert_eq!(handle(&objects, Kind::Context, 0), Ok(0));
        assert_eq!(
            handle(&objects, Kind::Context, 1),
            Err(CUDA_ERROR_INVALID_CONTEXT)
        );
        let kernel = client(Kind::Kernel, 2);
        objects.insert(kernel, 0xdef, None);
        assert_eq!(handle(&objects, Kind::Function, kernel.bits()), Ok(0xdef));
    }

    #[test]
    fn a_name_is_given_once_and_by_its_side() {
        let mut objects = Objects::new(10);
        let event = client(Kind::Event, 1);
        assert!(objects.is_free(Kind::Event, event));
        assert!(!objects.is_free(Kind::Stream, event));
        assert!(!objects.is_free(Kind::Event, Id::new(Kind::Event, Origin::Server, 1)));
        objects.insert(event, 7, None);
        assert!(!objects.is_free(Kind::Event, event));
    }

    #[test]
    fn what_goes_with_an_object_goes() {
        let mut objects = Objects::new(10);
        let (context, module) = (client(Kind::Context, 1), client(Kind::Module, 2));
        objects.insert(context, 1 << 20, None);
        objects.insert(module, 2 << 20, Some(context));
        let function = objects
            .found(Kind::Function, 3 << 20, Some(module))
            .expect("room");
        assert_eq!(
            objects.found(Kind::Function, 3 << 20, Some(module)),
            Some(function)
        );
        assert_eq!(objects.remove(context).len(), 3);
        assert_eq!(objects.len(), 0);
        assert_eq!(
            handle(&objects, Kind::Function, function),
            Err(CUDA_ERROR_INVALID_HANDLE)
        );
    }

    #[test]
    fn a_handle_that_comes_again_is_a_new_object() {
        let mut objects = Objects::new(2);
        let (first, second) = (client(Kind::Event, 1), client(Kind::Event, 2));
        objects.insert(first, 7, None);
        objects.insert(second, 7, None);
        assert_eq!(
            handle(&objects, Kind::Event, first.bits()),
            Err(CUDA_ERROR_INVALID_HANDLE)
        );
        assert_eq!(handle(&objects, Kind::Event, second.bits()), Ok(7));
        assert!(objects.found(Kind::Event, 8, None).is_some());
        assert_eq!(objects.found(Kind::Event, 9, None), None, "no room");
    }

    #[test]
    fn nodes_that_nodes_lead_to_go_with_the_graph() {
        let mut objects = Objects::new(10);
        let (graph, node) = (client(Kind::Graph, 1), client(Kind::GraphNode, 2));
        objects.insert(graph, 100, None);
        objects.insert(node, 200, Some(graph));
        let other = objects.found(Kind::GraphNode, 300, Some(node)).expect("room");
        objects.remove(node);
        assert_eq!(handle(&objects, Kind::GraphNode, other), Ok(300));
        objects.remove(graph);
        assert!(objects.real(Kind::GraphNode, other).is_err());
    }
}
