//! Graphs: work described once and launched many times.
//!
//! A [`topology::Graph`] is nodes and edges; an [`exec::Exec`] is a copy of one, ready to launch; a launch makes each
//! node a task behind those it depends on, between two marks in the stream. A stream that is captured puts its work
//! into a graph instead of running it ([`capture`]).

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

use crate::driver::Device;
use crate::handle::Handles;
use crate::memory::registry::Registry;
use capture::Captures;
use exec::Exec;
use memory::Reserved;
use object::UserObject;
use physical::Physical;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use topology::Graph;

/// The graphs of this process, and what belongs to them.
#[derive(Default)]
pub struct Graphs {
    /// Live graphs.
    pub graphs: Handles<Graph>,
    /// The graph of each live node.
    pub nodes: Handles<Weak<Graph>>,
    /// Live executable graphs.
    pub execs: Handles<Exec>,
    /// Live user objects.
    pub objects: Handles<UserObject>,
    /// Streams that are captured.
    pub captures: Captures,
    /// Memory of allocation nodes: it has its address from the node's creation on, and bytes from a launch on.
    pub reserved: Registry,
    addresses: Mutex<HashMap<u64, Weak<Reserved>>>,
    live: Mutex<HashMap<u64, Arc<Reserved>>>,
    physical: Mutex<HashMap<usize, Arc<Physical>>>,
}

impl Graphs {
    /// Memory of allocation nodes, by address.
    pub fn addresses(&self) -> MutexGuard<'_, HashMap<u64, Weak<Reserved>>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That of it which has bytes now, by address.
    pub fn live(&self) -> MutexGuard<'_, HashMap<u64, Arc<Reserved>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device's graph memory.
    pub fn physical(&self, device: &Arc<Device>) -> Arc<Physical> {
        let mut all = self.physical.lock().unwrap_or_else(PoisonError::into_inner);
        let physical = all
            .entry(device.ordinal)
            .or_insert_with(|| Physical::new(Arc::clone(device)));
        Arc::clone(physical)
    }
}
