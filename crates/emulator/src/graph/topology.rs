//! A graph: nodes, the edges between them, and an order in which they can run.

use super::edge::{Before, EdgeData};
use super::object::ObjectReference;
use super::work::Work;
use crate::Result;
use crate::handle::{self, Handles};
use divvy_abi::*;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The live graphs of this process.
#[derive(Default)]
pub struct GraphHandles {
    graphs: Handles<Graph>,
    /// The graph of each live node.
    nodes: Handles<Weak<Graph>>,
}

impl GraphHandles {
    /// The graph of a handle.
    pub fn find(&self, handle: u64) -> Result<Arc<Graph>> {
        self.graphs.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// The graph that holds a node.
    pub fn of_node(&self, node: u64) -> Result<Arc<Graph>> {
        let place = self.nodes.get(node).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        place.upgrade().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// A node's handle is dead.
    pub fn forget_node(&self, node: u64) {
        self.nodes.remove(node);
    }
}

/// A graph. CUDA leaves it to the program not to change one from two threads at once; the lock only keeps it whole.
pub struct Graph {
    /// What the program holds.
    pub handle: u64,
    /// cuGraphGetId: unique in the process.
    pub id: u32,
    /// The live graphs, of which it is one.
    handles: Arc<GraphHandles>,
    /// It belongs to a child graph node, which ends it.
    embedded: AtomicBool,
    inner: Mutex<Inner>,
}

/// What a graph holds.
#[derive(Default)]
pub struct Inner {
    /// Its nodes by handle, which is the order of their creation.
    pub nodes: BTreeMap<u64, Node>,
    /// References to user objects, released with the graph.
    pub objects: Vec<ObjectReference>,
    /// Which node of this clone was made for which node of the original.
    pub copies: HashMap<u64, u64>,
    /// Whether the executable graph last made of it lives.
    pub instance: Weak<()>,
    /// Captures that are adding to it: it cannot be instantiated meanwhile.
    pub captures: u32,
    next_local: u32,
}

/// A node of a graph.
pub struct Node {
    /// cuGraphNodeGetLocalId: unique in the graph.
    pub local: u32,
    /// What it does.
    pub work: Work,
    /// The edges that lead to it, in the order they were added.
    pub before: Vec<Before>,
    /// The nodes that edges from it lead to.
    pub after: Vec<u64>,
}

impl Graph {
    /// An empty graph that the program can name.
    pub fn create(handles: &Arc<GraphHandles>) -> Arc<Graph> {
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);
        let graph = Arc::new(Graph {
            handle: handle::fresh(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            handles: Arc::clone(handles),
            embedded: AtomicBool::new(false),
            inner: Mutex::default(),
        });
        handles.graphs.insert(graph.handle, Arc::clone(&graph));
        graph
    }

    /// Its contents.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it belongs to a child graph node.
    pub fn is_embedded(&self) -> bool {
        self.embedded.load(Ordering::Relaxed)
    }

    /// Gives it to a child graph node.
    pub fn embed(&self) {
        self.embedded.store(true, Ordering::Relaxed);
    }

    /// Adds a node after others of the same graph.
    pub fn add(self: &Arc<Graph>, work: Work, before: &[Before]) -> Result<u64> {
        if self.is_embedded() && work.is_memory() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let node = handle::fresh();
        let mut inner = self.lock();
        inner.check_before(&work, before)?;
        for (earlier, _) in before {
            inner.node(*earlier)?.after.push(node);
        }
        inner.next_local += 1;
        let local = inner.next_local;
        let before = before.to_vec();
        inner.nodes.insert(
            node,
            Node {
                local,
                work,
                before,
                after: Vec::new(),
            },
        );
        drop(inner);
        self.handles.nodes.insert(node, Arc::new(Arc::downgrade(self)));
        Ok(node)
    }

    /// Whether it has allocation or free nodes, in child graphs too.
    pub fn has_memory(&self) -> bool {
        self.lock().has_memory()
    }

    /// A copy with nodes of its own. Cycles are copied too: only instantiation refuses them.
    pub fn copy(&self) -> Result<Arc<Graph>> {
        let copy = Graph::create(&self.handles);
        let original = self.lock();
        let mut copies = HashMap::new();
        for (&node, contents) in &original.nodes {
            let work = match &contents.work {
                Work::Child(child) => Work::Child(child.copy_embedded()?),
                other => other.clone(),
            };
            copies.insert(node, copy.add(work, &[])?);
        }
        {
            let mut inner = copy.lock();
            for (node, contents) in &original.nodes {
                let own = copies[node];
                let to_own = |earlier: &u64| copies[earlier];
                let before = contents
                    .before
                    .iter()
                    .map(|(earlier, data)| (to_own(earlier), *data));
                let after = contents.after.iter().map(to_own);
                let entry = inner.node(own)?;
                entry.before = before.collect();
                entry.after = after.collect();
            }
            inner.objects = original.objects.clone();
            inner.copies = copies;
        }
        Ok(copy)
    }

    /// A copy for a child graph node.
    pub fn copy_embedded(&self) -> Result<Arc<Graph>> {
        let copy = self.copy()?;
        copy.embed();
        Ok(copy)
    }

    /// Forgets its handle and those of its nodes. What was instantiated from it goes on.
    pub fn destroy(&self) -> Result {
        self.handles.graphs.remove(self.handle);
        let (nodes, objects) = {
            let mut inner = self.lock();
            (
                std::mem::take(&mut inner.nodes),
                std::mem::take(&mut inner.objects),
            )
        };
        for (node, contents) in nodes {
            self.handles.nodes.remove(node);
            contents.work.end()?;
        }
        // Destructors are the program's: none of our locks is held.
        drop(objects);
        Ok(())
    }
}

impl Inner {
    /// A node of this graph.
    pub fn node(&mut self, node: u64) -> Result<&mut Node> {
        self.nodes.get_mut(&node).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Refuses edges from elsewhere, twice the same, or of a kind the nodes do not have.
    pub fn check_before(&self, work: &Work, before: &[Before]) -> Result {
        let mut seen = HashSet::new();
        for (earlier, data) in before {
            let from = self.nodes.get(earlier).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            data.fits(from.work.is_kernel(), work.is_kernel())?;
            if !seen.insert(earlier) {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
        }
        Ok(())
    }

    /// Adds an edge. One that closes a cycle is accepted, as by NVIDIA's driver: instantiation refuses it.
    pub fn connect(&mut self, from: u64, to: u64, data: EdgeData) -> Result {
        let kernels = (self.node(from)?.work.is_kernel(), self.node(to)?.work.is_kernel());
        data.fits(kernels.0, kernels.1)?;
        let later = self.node(to)?;
        if from == to || later.before.iter().any(|(earlier, _)| *earlier == from) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        later.before.push((from, data));
        self.node(from)?.after.push(to);
        Ok(())
    }

    /// Removes an edge that says exactly this.
    pub fn disconnect(&mut self, from: u64, to: u64, data: EdgeData) -> Result {
        self.node(from)?;
        let later = self.node(to)?;
        let at = later.before.iter().position(|edge| *edge == (from, data));
        later.before.remove(at.ok_or(CUDA_ERROR_INVALID_VALUE)?);
        self.node(from)?.after.retain(|other| *other != to);
        Ok(())
    }

    /// Takes a node out, with all its edges.
    pub fn remove(&mut self, node: u64) -> Result<Node> {
        let removed = self.nodes.remove(&node).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        for other in self.nodes.values_mut() {
            other.before.retain(|(earlier, _)| *earlier != node);
            other.after.retain(|later| *later != node);
        }
        Ok(removed)
    }

    /// Whether there are allocation or free nodes, in child graphs too.
    pub fn has_memory(&self) -> bool {
        self.nodes.values().any(|node| match &node.work {
            Work::Child(child) => child.has_memory(),
            work => work.is_memory(),
        })
    }

    /// All nodes, each after those it depends on and otherwise in order of creation; or a node of a cycle.
    pub fn order(&self) -> std::result::Result<Vec<u64>, u64> {
        let mut missing: HashMap<u64, usize> = HashMap::new();
        let mut ready = BTreeSet::new();
        for (&node, contents) in &self.nodes {
            missing.insert(node, contents.before.len());
            if contents.before.is_empty() {
                ready.insert(node);
            }
        }
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(node) = ready.pop_first() {
            order.push(node);
            for later in &self.nodes[&node].after {
                let count = missing.entry(*later).or_default();
                *count -= 1;
                if *count == 0 {
                    ready.insert(*later);
                }
            }
        }
        if order.len() == self.nodes.len() {
            return Ok(order);
        }
        let done: HashSet<u64> = order.into_iter().collect();
        let stuck = self.nodes.keys().find(|node| !done.contains(node));
        Err(stuck.copied().unwrap_or(0))
    }

    /// The nodes from which any of `ends` can be reached, those themselves included.
    pub fn ancestors(&self, ends: impl IntoIterator<Item = u64>) -> HashSet<u64> {
        let mut found = HashSet::new();
        let mut left: Vec<u64> = ends.into_iter().collect();
        while let Some(node) = left.pop() {
            if found.insert(node)
                && let Some(contents) = self.nodes.get(&node)
            {
                left.extend(contents.before.iter().map(|(earlier, _)| *earlier));
            }
        }
        found
    }
}
