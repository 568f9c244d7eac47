//! Adding nodes to graphs.

use super::args::{Handle, In, InMut, Out};
use super::find;
use super::graph::before;
use super::graph_params::NodeParams;
use crate::Result;
use crate::driver::driver;
use crate::graph::edge::Before;
use crate::graph::topology::Graph;
use crate::graph::work::Work;
use divvy_abi::*;
use std::sync::Arc;

entry! {
    fn cuGraphAddEmptyNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || Ok(Work::Empty))
    }

    fn cuGraphAddKernelNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize,
        params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || params.get()?.work())
    }

    fn cuGraphAddKernelNode_v2(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize,
        params: In<CUDA_KERNEL_NODE_PARAMS>,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || params.get()?.work())
    }

    fn cuGraphAddMemcpyNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize,
        params: In<CUDA_MEMCPY3D>, context: Handle<CUcontext>,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || (params.get()?, context.0).work())
    }

    fn cuGraphAddMemsetNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize,
        params: In<CUDA_MEMSET_NODE_PARAMS>, context: Handle<CUcontext>,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || (params.get()?, context.0).work())
    }

    fn cuGraphAddHostNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize,
        params: In<CUDA_HOST_NODE_PARAMS>,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || params.get()?.work())
    }

    fn cuGraphAddChildGraphNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize, child: Handle<CUgraph>,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || copied(child.0))
    }

    fn cuGraphAddEventRecordNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize, event: Handle<CUevent>,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || Ok(Work::Record(driver()?.event(event.0)?)))
    }

    fn cuGraphAddEventWaitNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize, event: Handle<CUevent>,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || Ok(Work::Wait(driver()?.event(event.0)?)))
    }

    fn cuGraphAddBatchMemOpNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize,
        params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>,
    ) {
        add(&node, graph.0, &before(&nodes, None, count)?, || params.get()?.work())
    }

    fn cuGraphAddMemAllocNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize,
        params: InMut<CUDA_MEM_ALLOC_NODE_PARAMS>,
    ) {
        node.required()?;
        let mut given = params.read().get()?;
        let before = before(&nodes, None, count)?;
        let (made, address) = add_alloc(&find::graph(graph.0)?, &before, &given)?;
        given.dptr = address;
        params.write(given);
        node.set(made as CUgraphNode)
    }

    fn cuGraphAddMemFreeNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize, pointer: u64,
    ) {
        node.required()?;
        let before = before(&nodes, None, count)?;
        node.set(add_free(&find::graph(graph.0)?, &before, pointer)? as CUgraphNode)
    }

    fn cuGraphAddNode(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, count: usize,
        params: InMut<CUgraphNodeParams>,
    ) {
        any(&node, graph.0, &before(&nodes, None, count)?, &params)
    }

    fn cuGraphAddNode_v2 | cuGraphAddNode_v3(
        node: Out<CUgraphNode>, graph: Handle<CUgraph>, nodes: In<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize,
        params: InMut<CUgraphNodeParams>,
    ) {
        any(&node, graph.0, &before(&nodes, Some(&data), count)?, &params)
    }
}

fn add(out: &Out<CUgraphNode>, graph: u64, before: &[Before], work: impl FnOnce() -> Result<Work>) -> Result {
    out.required()?;
    let graph = find::graph(graph)?;
    let work = work()?;
    let node = graph.add(work.clone(), before).inspect_err(|_| {
        // A child graph was made for this node alone.
        let _ = work.end();
    })?;
    out.set(node as CUgraphNode)
}

/// A child graph node's work: a copy of the graph, which may not allocate.
fn copied(child: u64) -> Result<Work> {
    let child = find::graph(child)?;
    if child.has_memory() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok(Work::Child(child.copy_embedded()?))
}

/// A child graph node's work: the graph itself, which is the node's from here on.
fn moved(child: u64, parent: &Graph) -> Result<Work> {
    let child = find::graph(child)?;
    if child.is_embedded() || child.handle == parent.handle {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    child.embed();
    Ok(Work::Child(child))
}

/// Adds an allocation node; it and its address.
pub fn add_alloc(
    graph: &Arc<Graph>,
    before: &[Before],
    params: &CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Result<(u64, u64)> {
    // SAFETY: the program's list has as many entries as it says.
    let access = unsafe { crate::params::list(params.accessDescs, params.accessDescCount) }?;
    let reserved = driver()?
        .graphs
        .memory
        .reserve(params.poolProps, access.to_vec(), params.bytesize)?;
    reserved.own(graph.handle);
    let address = reserved.base();
    Ok((graph.add(Work::Alloc(reserved), before)?, address))
}

fn add_free(graph: &Arc<Graph>, before: &[Before], pointer: u64) -> Result<u64> {
    let reserved = driver()?.graphs.memory.find(pointer)?;
    reserved.free_in(graph.handle)?;
    let work = Work::Free(Arc::clone(&reserved));
    graph
        .add(work, before)
        .inspect_err(|_| reserved.not_free_in(graph.handle))
}

fn any(out: &Out<CUgraphNode>, graph: u64, before: &[Before], params: &InMut<CUgraphNodeParams>) -> Result {
    out.required()?;
    let mut given = params.read().get()?;
    let of = find::graph(graph)?;
    match given.type_ {
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            // SAFETY: the type says which member it is.
            let alloc = unsafe { given.anonymous1.alloc };
            let v1 = CUDA_MEM_ALLOC_NODE_PARAMS {
                poolProps: alloc.poolProps,
                accessDescs: alloc.accessDescs,
                accessDescCount: alloc.accessDescCount,
                bytesize: alloc.bytesize,
                dptr: 0,
            };
            let (node, address) = add_alloc(&of, before, &v1)?;
            given.anonymous1.alloc.dptr = address;
            params.write(given);
            out.set(node as CUgraphNode)
        }
        CU_GRAPH_NODE_TYPE_MEM_FREE => {
            // SAFETY: as above; any bits are an address.
            let pointer = unsafe { given.anonymous1.free.dptr };
            out.set(add_free(&of, before, pointer)? as CUgraphNode)
        }
        CU_GRAPH_NODE_TYPE_GRAPH => {
            // SAFETY: as above; any bits are a handle and a number.
            let child = unsafe { given.anonymous1.graph };
            let child_handle = child.graph as u64;
            match child.ownership {
                CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => add(out, graph, before, || copied(child_handle)),
                CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => {
                    let work = moved(child_handle, &of)?;
                    out.set(of.add(work, before)? as CUgraphNode)
                }
                _ => Err(CUDA_ERROR_INVALID_VALUE),
            }
        }
        _ => add(out, graph, before, || given.work()),
    }
}
