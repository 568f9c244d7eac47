//! What the tests of graphs share: small graphs and the nodes they are made of.

use super::{code, cu, get};
use divvy_abi::*;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// An empty graph.
pub fn graph() -> CUgraph {
    get!(cuGraphCreate(0))
}

/// A stream of its own.
pub fn stream() -> CUstream {
    get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0))
}

/// A memset of bytes.
pub fn fill(pointer: CUdeviceptr, value: u8, bytes: usize) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS {
        dst: pointer,
        pitch: 0,
        value: u32::from(value),
        elementSize: 1,
        width: bytes,
        height: 1,
    }
}

/// Adds a memset of bytes.
pub fn add_fill(
    graph: CUgraph,
    after: &[CUgraphNode],
    pointer: CUdeviceptr,
    value: u8,
    bytes: usize,
) -> CUgraphNode {
    let params = fill(pointer, value, bytes);
    get!(cuGraphAddMemsetNode(
        graph,
        after.as_ptr(),
        after.len(),
        &raw const params,
        null_mut()
    ))
}

/// A copy of a run of bytes on the device.
pub fn copy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcMemoryType: CU_MEMORYTYPE_DEVICE,
        srcDevice: from,
        dstMemoryType: CU_MEMORYTYPE_DEVICE,
        dstDevice: to,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    }
}

/// Adds a copy of a run of bytes.
pub fn add_copy(
    graph: CUgraph,
    after: &[CUgraphNode],
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
) -> CUgraphNode {
    let params = copy(to, from, bytes);
    get!(cuGraphAddMemcpyNode(
        graph,
        after.as_ptr(),
        after.len(),
        &raw const params,
        null_mut()
    ))
}

/// Adds a node that does nothing.
pub fn add_empty(graph: CUgraph, after: &[CUgraphNode]) -> CUgraphNode {
    get!(cuGraphAddEmptyNode(graph, after.as_ptr(), after.len()))
}

/// One block of 32 threads.
pub fn kernel(function: CUfunction, params: &mut [*mut c_void]) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: params.as_mut_ptr(),
        ..CUDA_KERNEL_NODE_PARAMS::default()
    }
}

/// Makes a graph executable.
pub fn instantiate(graph: CUgraph) -> CUgraphExec {
    get!(cuGraphInstantiateWithFlags(graph, 0))
}

/// Launches and waits.
pub fn run(exec: CUgraphExec, stream: CUstream) {
    cu!(cuGraphLaunch(exec, stream));
    cu!(cuStreamSynchronize(stream));
}

/// All nodes of a graph.
pub fn nodes(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    cu!(cuGraphGetNodes(graph, null_mut(), &raw mut count));
    let mut nodes = vec![null_mut(); count];
    cu!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count));
    nodes
}

/// Work that blocks until the other end is dropped.
unsafe extern "C" fn wait_for_gate(data: *mut c_void) {
    // SAFETY: each test passes a leaked receiver.
    let gate = unsafe { &*data.cast::<Receiver<()>>() };
    let _ = gate.recv_timeout(Duration::from_secs(60));
}

/// A host node that blocks until the sender is dropped.
pub fn gate() -> (Sender<()>, CUDA_HOST_NODE_PARAMS) {
    let (open, gate) = channel();
    let gate: *mut Receiver<()> = Box::leak(Box::new(gate));
    let params = CUDA_HOST_NODE_PARAMS {
        fn_: Some(wait_for_gate),
        userData: gate.cast(),
    };
    (open, params)
}
