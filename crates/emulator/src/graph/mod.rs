//! Graphs: work described once and launched many times.

use crate::memory::registry::Registry;

/// The graphs of this process, and what belongs to them.
#[derive(Default)]
pub struct Graphs {
    /// Memory of allocation nodes: it has its address from the node's creation on, and bytes from a launch on.
    pub reserved: Registry,
}
