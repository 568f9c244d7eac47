//! The objects of a connection: from the names that its client knows to the driver's handles.
//!
//! A call that uses an object has a [`Use`] of it. A call that destroys an object waits until no other call uses it, or
//! anything that goes with it. So the driver below gets no handle that another thread's call has freed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};

use divvy_abi::{CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUresult};

use super::uses::{Use, UseCount, Uses};
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
    /// Names of objects that calls are making.
    reserved: HashSet<Id>,
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
            reserved: HashSet::new(),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// How many of them are modules, libraries and linkers, with those that calls are making.
    pub fn modules(&self) -> usize {
        self.modules + self.reserved.iter().filter(|id| holds_images(id.kind())).count()
    }

    /// Whether one more may come.
    pub fn has_room(&self) -> bool {
        self.len() + self.reserved.len() < self.most
    }

    /// Whether an object of this name is there.
    pub fn contains(&self, id: Id) -> bool {
        self.by_id.contains_key(&id)
    }

    /// A call makes an object with this free name: no other call may use the name from now on. [`Objects::insert`] or
    /// [`Objects::release`] ends that.
    pub fn reserve(&mut self, id: Id) {
        self.reserved.insert(id);
    }

    /// The call has made no object of this name.
    pub fn release(&mut self, id: Id) {
        self.reserved.remove(&id);
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
        let known = self.by_id.contains_key(&id) || self.reserved.contains(&id);
        id.kind() == kind && id.origin() == Origin::Client && !known
    }

    /// Enters an object. A name that the same handle had before is void, for the driver has made the handle again: gives
    /// that name and those of what went with it.
    pub fn insert(&mut self, id: Id, real: u64, parent: Option<Id>) -> Vec<Id> {
        self.reserved.remove(&id);
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
    ///
    /// A context that is new here is one that the program has destroyed: a thread may have it still as its current one. Its
    /// name is that of no object.
    pub fn found(&mut self, kind: Kind, real: u64, parent: Option<Id>) -> Option<u64> {
        match kind {
            Kind::Context if real != 0 && self.id(kind, real).is_none() => Some(self.new_name(kind).bits()),
            kind => self.found_live(kind, real, parent),
        }
    }

    fn new_name(&mut self, kind: Kind) -> Id {
        self.next += 1;
        Id::new(kind, Origin::Server, self.next - 1)
    }

    /// The same, for an object that is surely there.
    pub fn found_live(&mut self, kind: Kind, real: u64, parent: Option<Id>) -> Option<u64> {
        if kind.is_constant(real) {
            return Some(real);
        }
        if let Some(id) = self.by_real.get(&(kind, real))
            && !self.is_old(*id, parent)
        {
            return Some(id.bits());
        }
        if !self.has_room() {
            return None;
        }
        let id = self.new_name(kind);
        // A name that the handle had before goes with the call that is about to forget it.
        self.by_real.remove(&(kind, real));
        self.insert(id, real, parent);
        Some(id.bits())
    }

    /// Whether a name is that of an object which another call has just destroyed, with what it went with. Then the driver
    /// below has given the same handle to a new object, that goes with another one.
    fn is_old(&self, id: Id, parent: Option<Id>) -> bool {
        let object = self.by_id.get(&id).filter(|object| object.ending != 0);
        object.is_some_and(|object| parent.is_some() && parent != object.parent && parent != Some(id))
    }

    /// The name that a handle of the driver has.
    pub fn id(&self, kind: Kind, real: u64) -> Option<Id> {
        self.by_real.get(&(kind, real)).copied()
    }

    /// How a thread whose current context this handle is finds out whether it is still there.
    pub fn use_count(&self, kind: Kind, real: u64) -> Option<Weak<UseCount>> {
        let object = self.by_id.get(self.by_real.get(&(kind, real))?)?;
        Some(Arc::downgrade(&object.uses))
    }

    /// An object goes with nothing else from now on.
    pub fn orphan(&mut self, id: Id) {
        let parent = self.by_id.get_mut(&id).and_then(|object| object.parent.take());
        if let Some(parent) = parent.and_then(|parent| self.by_id.get_mut(&parent)) {
            parent.children.remove(&id);
        }
    }

    /// A call that destroys this object begins: no other call finds it from now on, nor anything that goes with it. Gives
    /// what the call has to wait for, and the names of all that goes. None where another thread's call destroys it
    /// already, or has done so.
    pub fn begin_end(&mut self, id: Id) -> Option<(Uses, Vec<Id>)> {
        let object = self.by_id.get(&id).filter(|object| object.ending == 0)?;
        let mut uses = Uses::new(&object.uses);
        let all = self.mark(id, |object| {
            object.ending += 1;
            object.uses.close();
            uses.add(&object.uses);
        });
        Some((uses, all))
    }

    /// That call failed: the object is there as before. Gives the names of all that went with it.
    pub fn keep(&mut self, id: Id) -> Vec<Id> {
        self.mark(id, |object| {
            object.ending = object.ending.saturating_sub(1);
            if object.ending == 0 {
                object.uses.open();
            }
        })
    }

    /// Does this with an object, and with all that goes with it. Gives their names.
    fn mark(&mut self, id: Id, mut how: impl FnMut(&mut Object)) -> Vec<Id> {
        let (mut all, mut ahead) = (Vec::new(), vec![id]);
        while let Some(id) = ahead.pop() {
            if let Some(object) = self.by_id.get_mut(&id) {
                how(object);
                ahead.extend(&object.children);
                all.push(id);
            }
        }
        all
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
        let (uses, all) = objects.begin_end(context).expect("its first end");
        assert_eq!(all, [context, stream]);
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
        let (of_stream, _) = objects.begin_end(stream).expect("its end");
        let (of_context, _) = objects.begin_end(context).expect("its end");
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
    fn a_name_that_a_call_gives_to_a_new_object_is_no_other_calls() {
        let mut objects = Objects::new(2);
        let [first, second, module] = [
            client(Kind::Event, 1),
            client(Kind::Event, 2),
            client(Kind::Module, 3),
        ];
        objects.reserve(first);
        assert!(
            !objects.is_free(Kind::Event, first),
            "another thread's call makes it"
        );
        assert!(
            objects.real(Kind::Event, first.bits()).is_err(),
            "it is not there yet"
        );
        objects.release(first);
        assert!(objects.is_free(Kind::Event, first));
        objects.reserve(first);
        objects.reserve(module);
        assert_eq!(objects.modules(), 1);
        assert!(!objects.has_room(), "what is being made counts");
        assert!(objects.is_free(Kind::Event, second));
        objects.insert(first, 7, None);
        objects.release(module);
        assert!(objects.has_room() && objects.contains(first));
    }

    #[test]
    fn a_context_that_was_destroyed_is_found_as_no_object() {
        let mut objects = Objects::new(10);
        let context = objects.found_live(Kind::Context, 0x100, None).expect("room");
        assert_eq!(objects.found(Kind::Context, 0x100, None), Some(context));
        objects.remove(Id::from_bits(context).expect("a name"));
        let gone = objects.found(Kind::Context, 0x100, None).expect("a name");
        assert_ne!(gone, context);
        assert_eq!(
            handle(&objects, Kind::Context, gone),
            Err(CUDA_ERROR_INVALID_CONTEXT)
        );
        assert_eq!(objects.len(), 0);
    }

    #[test]
    fn a_handle_that_the_driver_gives_again_before_its_old_name_is_forgotten_is_a_new_object() {
        let mut objects = Objects::new(10);
        let (old, new) = (client(Kind::Module, 1), client(Kind::Module, 2));
        objects.insert(old, 0x100, None);
        objects.insert(new, 0x200, None);
        let found = |objects: &mut Objects, of| objects.found(Kind::Function, 0x300, Some(of)).expect("room");
        let first = found(&mut objects, old);
        // One thread unloads the old module: the driver has freed the function, and its name is still there.
        objects.begin_end(old).expect("its end");
        assert_eq!(found(&mut objects, old), first, "it may be there still");
        let second = found(&mut objects, new);
        assert_ne!(second, first, "another module's function");
        assert_eq!(handle(&objects, Kind::Function, second), Ok(0x300));
        objects.remove(old);
        assert_eq!(handle(&objects, Kind::Function, second), Ok(0x300));
        assert_eq!(found(&mut objects, new), second);
        assert_eq!(
            handle(&objects, Kind::Function, first),
            Err(CUDA_ERROR_INVALID_HANDLE)
        );
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
