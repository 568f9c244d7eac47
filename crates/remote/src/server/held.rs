//! What a connection holds beside objects: bytes of images on their way, images that are loaded, and nodes of graphs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use divvy_abi::*;

use super::{Call, Server, Stop};
use crate::handle::{Id, Kind, Word};

/// Counters of all threads of a connection.
#[derive(Default)]
pub struct Held {
    /// Bytes of images that were sent and not loaded yet.
    in_flight: AtomicU64,
}

impl Held {
    /// Bytes of images that were sent and not loaded yet.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// A thread's image had so many bytes, and has so many now.
    pub fn changed(&self, before: u64, after: u64) {
        if before != after {
            self.in_flight
                .fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
    }
}

/// Bytes that a call loads, until an object holds them or the call has failed.
pub struct Loading<'a> {
    server: &'a Server,
    bytes: u64,
}

impl Loading<'_> {
    /// An object holds them from now on, if it is still there.
    pub fn held_by(mut self, id: Id) {
        let mut tables = self.server.tables();
        let bytes = std::mem::take(&mut self.bytes);
        tables.weights.loading -= bytes;
        if tables.objects.contains(id) {
            tables.weights.add(id, bytes);
        }
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        if self.bytes != 0 {
            self.server.tables().weights.loading -= self.bytes;
        }
    }
}

/// What objects take, by their names.
#[derive(Default)]
pub struct Weights {
    /// Bytes of images that are loaded, as they are when they are decompressed.
    pub images: u64,
    /// Bytes of images that calls load at this moment.
    loading: u64,
    /// Nodes of graphs.
    pub nodes: u64,
    of: HashMap<Id, u64>,
}

impl Weights {
    /// An object takes so much more.
    pub fn add(&mut self, id: Id, more: u64) {
        if more != 0 {
            *self.of.entry(id).or_default() += more;
            let sum = self.sum(id);
            *sum = sum.saturating_add(more);
        }
    }

    /// How much an object takes.
    pub fn of(&self, id: Id) -> u64 {
        self.of.get(&id).copied().unwrap_or(0)
    }

    /// It is gone.
    pub fn remove(&mut self, id: Id) {
        if let Some(weight) = self.of.remove(&id) {
            let sum = self.sum(id);
            *sum = sum.saturating_sub(weight);
        }
    }

    fn sum(&mut self, id: Id) -> &mut u64 {
        match is_of_graphs(id.kind()) {
            true => &mut self.nodes,
            false => &mut self.images,
        }
    }
}

/// Whether an object of this kind takes nodes.
pub fn is_of_graphs(kind: Kind) -> bool {
    matches!(kind, Kind::Graph | Kind::GraphNode | Kind::GraphExec)
}

impl<'a> Call<'a> {
    /// There is room for an image of so many bytes when it is decompressed, and it is loaded by this call.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the connection has as many as it may.
    pub fn loading(&self, bytes: u64) -> Result<Loading<'a>, Stop> {
        let server: &'a Server = self.server;
        let weights = &mut server.tables().weights;
        // What an image says of itself may be any number: the sum must not come round.
        let sum = weights
            .images
            .saturating_add(weights.loading)
            .saturating_add(bytes);
        if sum > server.quota.images {
            return Err(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY));
        }
        weights.loading += bytes;
        Ok(Loading { server, bytes })
    }

    /// Nodes that a new object of graphs takes.
    pub fn nodes_of_new(&self, kind: Kind, real: u64) -> u64 {
        match kind {
            Kind::Graph => self.nodes_of(Word::from_bits(real)),
            Kind::GraphNode => {
                1 + self
                    .inner(Word::from_bits(real))
                    .map_or(0, |graph| self.nodes_of(graph))
            }
            Kind::GraphExec => self
                .graph
                .map_or(0, |graph| self.nodes_of(Word::from_bits(graph))),
            _ => 0,
        }
    }

    /// Nodes of a graph, and of the graphs in it; no more than the quota and one, however many there are.
    fn nodes_of(&self, graph: CUgraph) -> u64 {
        let most = self.server.quota.nodes + 1;
        let (mut sum, mut ahead) = (0_u64, vec![graph]);
        while let Some(graph) = ahead.pop().filter(|_| sum < most) {
            let nodes = self.nodes(graph, most as usize);
            sum = sum.saturating_add(nodes.len() as u64);
            ahead.extend(nodes.into_iter().filter_map(|node| self.inner(node)));
        }
        sum.min(most)
    }

    /// The graph that a node is.
    fn inner(&self, node: CUgraphNode) -> Option<CUgraph> {
        let mut sort = CUgraphNodeType(u32::MAX);
        let mut inner: CUgraph = std::ptr::null_mut();
        // SAFETY: the node is the driver's, and it writes a number and a handle to memory of ours.
        let is_graph = unsafe {
            (self.driver.cuGraphNodeGetType)(node, &raw mut sort) == CUDA_SUCCESS
                && sort == CU_GRAPH_NODE_TYPE_GRAPH
                && (self.driver.cuGraphChildGraphNodeGetGraph)(node, &raw mut inner) == CUDA_SUCCESS
        };
        (is_graph && !inner.is_null()).then_some(inner)
    }

    /// As many of a graph's own nodes.
    fn nodes(&self, graph: CUgraph, most: usize) -> Vec<CUgraphNode> {
        let mut count = 0_usize;
        // SAFETY: the graph is the driver's; without a list it writes a count.
        let code = unsafe { (self.driver.cuGraphGetNodes)(graph, std::ptr::null_mut(), &raw mut count) };
        if code != CUDA_SUCCESS {
            return Vec::new();
        }
        let mut nodes: Vec<CUgraphNode> = vec![std::ptr::null_mut(); count.min(most)];
        count = nodes.len();
        // SAFETY: as above, and the list has as many places as is said.
        let code = unsafe { (self.driver.cuGraphGetNodes)(graph, nodes.as_mut_ptr(), &raw mut count) };
        nodes.truncate(if code == CUDA_SUCCESS { count } else { 0 });
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Origin;

    #[test]
    fn what_goes_gives_back_what_it_took() {
        let mut weights = Weights::default();
        let module = Id::new(Kind::Module, Origin::Client, 1);
        let graph = Id::new(Kind::Graph, Origin::Client, 2);
        weights.add(module, 100);
        weights.add(graph, 3);
        weights.add(graph, 4);
        assert_eq!((weights.images, weights.nodes), (100, 7));
        weights.remove(graph);
        weights.remove(graph);
        assert_eq!((weights.images, weights.nodes), (100, 0));
        weights.remove(module);
        assert_eq!((weights.images, weights.nodes), (0, 0));
    }
}
