//! Graphs: how much memory an instantiated graph will take and whether it may, and what the gate knows it by.
#![allow(non_snake_case)]

use divvy_abi::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
    CU_GRAPH_NODE_TYPE_MEM_FREE, CU_MEM_LOCATION_TYPE_DEVICE,
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD,
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUdevice,
    CUdeviceptr, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream, c_char, guard,
};
use divvy_charges::Needs;

use crate::account;
use crate::below::{ask, forward};
use crate::charges::CHARGES;
use crate::gate::{self, Contents, Launch, Stream};

/// The depth to which graphs within graphs are inspected; a driver allows less.
const DEPTH: u32 = 16;

/// What was found in a graph.
struct Found {
    allocated: Vec<(CUdeviceptr, CUdevice, u64)>,
    freed: Vec<CUdeviceptr>,
    contents: Contents,
}

impl Found {
    fn of(graph: CUgraph) -> Self {
        let mut found = Self {
            allocated: Vec::new(),
            freed: Vec::new(),
            contents: Contents::new(),
        };
        let _quiet = ask::Quiet::begin();
        walk(graph, DEPTH, &mut found);
        found
    }

    /// The needs of the graph's allocation nodes.
    fn needs(&self) -> Needs {
        let mut needs = Needs::new();
        for &(pointer, device, bytes) in &self.allocated {
            let need = needs.entry(device).or_default();
            let sum = if self.freed.contains(&pointer) {
                &mut need.inside
            } else {
                &mut need.outside
            };
            *sum = sum.saturating_add(CHARGES.node_bytes(device, bytes));
        }
        needs
    }
}

fn nodes(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    // SAFETY: asked for the number only.
    let result = unsafe { forward::cuGraphGetNodes(graph, core::ptr::null_mut(), &raw mut count) };
    if !result.is_success() || count == 0 {
        return Vec::new();
    }
    let mut nodes = vec![core::ptr::null_mut(); count];
    // SAFETY: the list has space for as many as the number says.
    let result = unsafe { forward::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) };
    if !result.is_success() {
        return Vec::new();
    }
    nodes.truncate(count);
    nodes
}

fn walk(graph: CUgraph, depth: u32, all: &mut Found) {
    for node in nodes(graph) {
        let mut kind = Default::default();
        // SAFETY: the program's own node, and a valid out-parameter; so below.
        if !unsafe { forward::cuGraphNodeGetType(node, &raw mut kind) }.is_success() {
            continue;
        }
        if kind != CU_GRAPH_NODE_TYPE_KERNEL {
            all.contents.node(kind.0 as i32);
        }
        match kind {
            CU_GRAPH_NODE_TYPE_KERNEL => {
                let mut found = CUDA_KERNEL_NODE_PARAMS::default();
                // SAFETY: as above. Without an answer the fields are zeros, and the node counts all the same.
                let _known = unsafe { forward::cuGraphKernelNodeGetParams_v2(node, &raw mut found) };
                let function = found.func as usize ^ found.kern as usize;
                let grid = [found.gridDimX, found.gridDimY, found.gridDimZ];
                let block = [found.blockDimX, found.blockDimY, found.blockDimZ];
                all.contents.kernel(function, grid, block);
            }
            CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                let mut found = CUDA_MEM_ALLOC_NODE_PARAMS::default();
                // SAFETY: as above.
                let result = unsafe { forward::cuGraphMemAllocNodeGetParams(node, &raw mut found) };
                if result.is_success() && found.poolProps.location.type_ == CU_MEM_LOCATION_TYPE_DEVICE {
                    // SAFETY: every bit pattern is an i32.
                    let device = unsafe { found.poolProps.location.anonymous1.id };
                    all.allocated.push((found.dptr, device, found.bytesize as u64));
                }
            }
            CU_GRAPH_NODE_TYPE_MEM_FREE => {
                let mut pointer: CUdeviceptr = 0;
                // SAFETY: as above.
                let result = unsafe { forward::cuGraphMemFreeNodeGetParams(node, &raw mut pointer) };
                if result.is_success() {
                    all.freed.push(pointer);
                }
            }
            CU_GRAPH_NODE_TYPE_GRAPH if depth > 0 => {
                let mut child = core::ptr::null_mut();
                // SAFETY: as above.
                if unsafe { forward::cuGraphChildGraphNodeGetGraph(node, &raw mut child) }.is_success() {
                    walk(child, depth - 1, all);
                }
            }
            _ => {}
        }
    }
}

/// Instantiates a graph by `call`; `out` is read after a success.
fn instantiated(
    graph: CUgraph,
    flags: impl FnOnce() -> u64,
    call: impl FnOnce() -> CUresult,
    out: impl Fn() -> CUgraphExec,
) -> CUresult {
    match account::current() {
        Ok(Some(_)) if account::keeps_charges() => {}
        Ok(_) => return call(),
        Err(code) => return code,
    }
    let found = Found::of(graph);
    let needs = found.needs();
    let contents = found.contents;
    let known = |result: CUresult| {
        if result.is_success() {
            contents.of(out() as usize);
        }
        result
    };
    if needs.is_empty() {
        return known(call());
    }
    let flags = flags();
    let has = |flag: u32| flags & u64::from(flag) != 0;
    let how = (
        has(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0),
        has(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0),
    );
    known(CHARGES.instantiate_graph(needs, how, call, || out() as usize))
}

macro_rules! instantiates {
    ($($name:ident($($argument:ident: $of:ty),*) with $flags:expr;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(
            out: *mut CUgraphExec,
            graph: CUgraph,
            $($argument: $of),*
        ) -> CUresult {
            guard(|| {
                instantiated(
                    graph,
                    || $flags,
                    // SAFETY: the arguments are handed on as they came.
                    || unsafe { forward::$name(out, graph, $($argument),*) },
                    // SAFETY: read only after the driver said that it filled it in.
                    || unsafe { out.read() },
                )
            })
        })*
    };
}

instantiates! {
    cuGraphInstantiate(node: *mut CUgraphNode, log: *mut c_char, bytes: usize) with 0;
    cuGraphInstantiate_v2(node: *mut CUgraphNode, log: *mut c_char, bytes: usize) with 0;
    cuGraphInstantiateWithFlags(flags: u64) with flags;
    cuGraphInstantiateWithParams(parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) with flags_of(parameters);
    cuGraphInstantiateWithParams_ptsz(parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) with flags_of(parameters);
}

fn flags_of(parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) -> u64 {
    // SAFETY: null, or the program's own parameters, which the driver reads as well.
    unsafe { parameters.as_ref() }.map_or(0, |parameters| parameters.flags)
}

/// To the gate, a graph is one launch, whatever its contents.
fn gated(exec: CUgraphExec, stream: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    gate::launching(|| Some(Launch::graph(exec as usize, stream)), call)
}

fn at_once(_: CUgraphExec, _: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    call()
}

macro_rules! launches {
    ($($name:ident, $per_thread:literal, $run:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(exec: CUgraphExec, stream: CUstream) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came.
                let call = || unsafe { forward::$name(exec, stream) };
                let call = || $run(exec, Stream { handle: stream, per_thread: $per_thread }, call);
                if !CHARGES.any_graphs() || ask::is_capturing(stream, $per_thread) {
                    return call();
                }
                CHARGES.launch_graph(exec as usize, stream as usize, call)
            })
        })*
    };
}

launches! {
    cuGraphLaunch, false, gated;
    cuGraphLaunch_ptsz, true, gated;
    cuGraphUpload, false, at_once;
    cuGraphUpload_ptsz, true, at_once;
}

pub(super) unsafe extern "C-unwind" fn cuGraphExecDestroy(exec: CUgraphExec) -> CUresult {
    guard(|| {
        CHARGES.graph_ends(exec as usize);
        gate::graph_ended(exec as usize);
        // SAFETY: the argument is handed on as it came.
        unsafe { forward::cuGraphExecDestroy(exec) }
    })
}

pub(super) unsafe extern "C-unwind" fn cuDeviceGraphMemTrim(device: CUdevice) -> CUresult {
    guard(|| {
        // SAFETY: the argument is handed on as it came.
        CHARGES.trim_graphs(|| unsafe { forward::cuDeviceGraphMemTrim(device) })
    })
}
