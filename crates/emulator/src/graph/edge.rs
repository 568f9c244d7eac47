//! Edges: which part of a node has to be done before another may start.

use crate::Result;
use divvy_abi::*;

/// What an edge says besides its two nodes. The default means full completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdgeData {
    /// CU_GRAPH_KERNEL_NODE_PORT_*: which part of the earlier node triggers the edge.
    pub from_port: u8,
    /// CU_GRAPH_DEPENDENCY_TYPE_*.
    pub kind: u8,
}

/// An edge seen from its later node: the earlier node, and what the edge says.
pub type Before = (u64, EdgeData);

/// The edge between two kernels of which the later was launched with programmatic stream serialisation.
pub const PROGRAMMATIC: EdgeData = EdgeData {
    from_port: CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
    kind: CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.0 as u8,
};

impl EdgeData {
    /// Checks what a program passed. No node type defines a port to arrive at, and reserved bytes are zero (CUDA
    /// driver API, CUgraphEdgeData).
    pub fn read(raw: CUgraphEdgeData) -> Result<EdgeData> {
        let known = u32::from(raw.type_) <= CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.0
            && u32::from(raw.from_port) <= CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER;
        if !known || raw.to_port != 0 || raw.reserved != [0; 5] {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(EdgeData {
            from_port: raw.from_port,
            kind: raw.type_,
        })
    }

    /// As C sees it.
    pub fn write(self) -> CUgraphEdgeData {
        CUgraphEdgeData {
            from_port: self.from_port,
            to_port: 0,
            type_: self.kind,
            reserved: [0; 5],
        }
    }

    /// Only kernels have ports, and only two kernels a programmatic edge.
    pub fn fits(self, from_kernel: bool, to_kernel: bool) -> Result {
        let programmatic = u32::from(self.kind) == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.0;
        let ported = self.from_port != 0;
        if (ported && !from_kernel) || (programmatic && !(from_kernel && to_kernel && ported)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(())
    }
}
