//! Graphs: work described once and launched many times.
//!
//! A [`topology::Graph`] is nodes and edges, and an [`exec::Exec`] is a copy of one, ready to launch. A launch makes
//! each node a task behind those it depends on, between two marks in the stream. A stream that is captured puts its
//! work into a graph instead of running it ([`capture`]).

pub mod capture;
pub mod dot;
pub mod edge;
pub mod exec;
mod footprint;
mod foreign;
pub mod kernel;
pub mod launch;
pub mod memory;
pub mod object;
pub mod physical;
pub mod topology;
pub mod update;
pub mod work;

pub use foreign::Foreign;

use crate::Result;
use crate::handle::Handles;
use crate::memory::registry::Addresses;
use crate::pool::MemoryPool;
use capture::Captures;
use divvy_abi::CUDA_ERROR_INVALID_VALUE;
use divvy_device::Device;
use exec::{Exec, Refusal};
use memory::GraphMemory;
use object::UserObject;
use std::sync::Arc;
use topology::{Graph, GraphHandles};

/// The graphs of this process, and what belongs to them.
pub struct Graphs {
    /// Live graphs and nodes.
    pub handles: Arc<GraphHandles>,
    /// Live executable graphs.
    pub execs: Handles<Exec>,
    /// Live user objects.
    pub objects: Arc<Handles<UserObject>>,
    /// Streams that are captured.
    pub captures: Captures,
    /// Memory of allocation nodes.
    pub memory: Arc<GraphMemory>,
}

impl Graphs {
    /// No graphs. Later ones take memory of these devices.
    pub fn new(
        devices: Vec<Arc<Device>>,
        addresses: Arc<Addresses>,
        pools: Arc<Handles<MemoryPool>>,
    ) -> Graphs {
        let handles: Arc<GraphHandles> = Arc::default();
        Graphs {
            execs: Handles::default(),
            objects: Arc::default(),
            captures: Captures::new(Arc::clone(&handles)),
            memory: Arc::new(GraphMemory::new(devices, addresses, pools)),
            handles,
        }
    }

    /// Instantiates a graph, with CUDA_GRAPH_INSTANTIATE_FLAG_*.
    pub fn instantiate(&self, graph: &Graph, flags: u64) -> std::result::Result<Arc<Exec>, Refusal> {
        let exec = Exec::create(graph, flags)?;
        self.execs.insert(exec.handle, Arc::clone(&exec));
        Ok(exec)
    }

    /// The executable graph of a handle.
    pub fn exec(&self, handle: u64) -> Result<Arc<Exec>> {
        self.execs.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// The user object of a handle.
    pub fn object(&self, handle: u64) -> Result<Arc<UserObject>> {
        self.objects.get(handle).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}
