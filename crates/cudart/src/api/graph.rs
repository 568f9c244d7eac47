//! Graphs: what they are made of and how it hangs together.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;

use crate::prelude::*;

entry! {
    cudaGraphCreate(pGraph: *mut cudaGraph_t, flags: u32) {
        context()?;
        cu!(cuGraphCreate(pGraph, flags));
        Ok(())
    }

    cudaGraphDestroy(graph: cudaGraph_t) {
        cu!(cuGraphDestroy(graph));
        Ok(())
    }

    cudaGraphClone(pGraphClone: *mut cudaGraph_t, originalGraph: cudaGraph_t) {
        cu!(cuGraphClone(pGraphClone, originalGraph));
        Ok(())
    }

    cudaGraphNodeFindInClone(pNode: *mut cudaGraphNode_t, originalNode: cudaGraphNode_t, clonedGraph: cudaGraph_t) {
        cu!(cuGraphNodeFindInClone(pNode, originalNode, clonedGraph));
        Ok(())
    }

    cudaGraphNodeGetType(node: cudaGraphNode_t, pType: *mut cudaGraphNodeType) {
        refuse(pType.is_null(), cudaErrorInvalidValue)?;
        let mut found = CUgraphNodeType(0);
        cu!(cuGraphNodeGetType(node, &mut found));
        *pType = cudaGraphNodeType(found.0 as _);
        Ok(())
    }

    cudaGraphGetNodes(graph: cudaGraph_t, nodes: *mut cudaGraphNode_t, numNodes: *mut usize) {
        cu!(cuGraphGetNodes(graph, nodes, numNodes));
        Ok(())
    }

    cudaGraphGetRootNodes(graph: cudaGraph_t, pRootNodes: *mut cudaGraphNode_t, pNumRootNodes: *mut usize) {
        cu!(cuGraphGetRootNodes(graph, pRootNodes, pNumRootNodes));
        Ok(())
    }

    cudaGraphGetEdges(
        graph: cudaGraph_t, from: *mut cudaGraphNode_t, to: *mut cudaGraphNode_t, edgeData: *mut cudaGraphEdgeData,
        numEdges: *mut usize,
    ) {
        cu!(cuGraphGetEdges_v2(graph, from, to, edgeData.cast(), numEdges));
        Ok(())
    }

    cudaGraphGetEdges_12(
        graph: cudaGraph_t, from: *mut cudaGraphNode_t, to: *mut cudaGraphNode_t, numEdges: *mut usize,
    ) {
        cu!(cuGraphGetEdges_v2(graph, from, to, null_mut(), numEdges));
        Ok(())
    }

    cudaGraphNodeGetDependencies(
        node: cudaGraphNode_t, pDependencies: *mut cudaGraphNode_t, edgeData: *mut cudaGraphEdgeData,
        pNumDependencies: *mut usize,
    ) {
        cu!(cuGraphNodeGetDependencies_v2(node, pDependencies, edgeData.cast(), pNumDependencies));
        Ok(())
    }

    cudaGraphNodeGetDependencies_12(
        node: cudaGraphNode_t, pDependencies: *mut cudaGraphNode_t, pNumDependencies: *mut usize,
    ) {
        cu!(cuGraphNodeGetDependencies_v2(node, pDependencies, null_mut(), pNumDependencies));
        Ok(())
    }

    cudaGraphNodeGetDependentNodes(
        node: cudaGraphNode_t, pDependentNodes: *mut cudaGraphNode_t, edgeData: *mut cudaGraphEdgeData,
        pNumDependentNodes: *mut usize,
    ) {
        cu!(cuGraphNodeGetDependentNodes_v2(node, pDependentNodes, edgeData.cast(), pNumDependentNodes));
        Ok(())
    }

    cudaGraphNodeGetDependentNodes_12(
        node: cudaGraphNode_t, pDependentNodes: *mut cudaGraphNode_t, pNumDependentNodes: *mut usize,
    ) {
        cu!(cuGraphNodeGetDependentNodes_v2(node, pDependentNodes, null_mut(), pNumDependentNodes));
        Ok(())
    }

    cudaGraphAddDependencies(
        graph: cudaGraph_t, from: *const cudaGraphNode_t, to: *const cudaGraphNode_t,
        edgeData: *const cudaGraphEdgeData, numDependencies: usize,
    ) {
        cu!(cuGraphAddDependencies_v2(graph, from, to, edgeData.cast(), numDependencies));
        Ok(())
    }

    cudaGraphAddDependencies_12(
        graph: cudaGraph_t, from: *const cudaGraphNode_t, to: *const cudaGraphNode_t, numDependencies: usize,
    ) {
        cu!(cuGraphAddDependencies(graph, from, to, numDependencies));
        Ok(())
    }

    cudaGraphRemoveDependencies(
        graph: cudaGraph_t, from: *const cudaGraphNode_t, to: *const cudaGraphNode_t,
        edgeData: *const cudaGraphEdgeData, numDependencies: usize,
    ) {
        cu!(cuGraphRemoveDependencies_v2(graph, from, to, edgeData.cast(), numDependencies));
        Ok(())
    }

    cudaGraphRemoveDependencies_12(
        graph: cudaGraph_t, from: *const cudaGraphNode_t, to: *const cudaGraphNode_t, numDependencies: usize,
    ) {
        cu!(cuGraphRemoveDependencies(graph, from, to, numDependencies));
        Ok(())
    }

    cudaGraphDestroyNode(node: cudaGraphNode_t) {
        cu!(cuGraphDestroyNode(node));
        Ok(())
    }

    cudaGraphNodeGetContainingGraph(hNode: cudaGraphNode_t, phGraph: *mut cudaGraph_t) {
        cu!(cuGraphNodeGetContainingGraph(hNode, phGraph));
        Ok(())
    }

    cudaGraphNodeGetLocalId(hNode: cudaGraphNode_t, nodeId: *mut u32) {
        cu!(cuGraphNodeGetLocalId(hNode, nodeId));
        Ok(())
    }

    cudaGraphNodeGetToolsId(hNode: cudaGraphNode_t, toolsNodeId: *mut u64) {
        cu!(cuGraphNodeGetToolsId(hNode, toolsNodeId));
        Ok(())
    }

    cudaGraphGetId(hGraph: cudaGraph_t, graphID: *mut u32) {
        cu!(cuGraphGetId(hGraph, graphID));
        Ok(())
    }

    cudaGraphDebugDotPrint(graph: cudaGraph_t, path: *const c_char, flags: u32) {
        cu!(cuGraphDebugDotPrint(graph, path, flags));
        Ok(())
    }

    cudaUserObjectCreate(
        object_out: *mut cudaUserObject_t, ptr: *mut c_void, destroy: cudaHostFn_t, initialRefcount: u32, flags: u32,
    ) {
        cu!(cuUserObjectCreate(object_out, ptr, destroy, initialRefcount, flags));
        Ok(())
    }

    cudaUserObjectRetain(object: cudaUserObject_t, count: u32) {
        cu!(cuUserObjectRetain(object, count));
        Ok(())
    }

    cudaUserObjectRelease(object: cudaUserObject_t, count: u32) {
        cu!(cuUserObjectRelease(object, count));
        Ok(())
    }

    cudaGraphRetainUserObject(graph: cudaGraph_t, object: cudaUserObject_t, count: u32, flags: u32) {
        cu!(cuGraphRetainUserObject(graph, object, count, flags));
        Ok(())
    }

    cudaGraphReleaseUserObject(graph: cudaGraph_t, object: cudaUserObject_t, count: u32) {
        cu!(cuGraphReleaseUserObject(graph, object, count));
        Ok(())
    }

    cudaGraphConditionalHandleCreate(
        pHandle_out: *mut cudaGraphConditionalHandle, graph: cudaGraph_t, defaultLaunchValue: u32, flags: u32,
    ) {
        let context = super::graph_node::current()?;
        cu!(cuGraphConditionalHandleCreate(pHandle_out, graph, context, defaultLaunchValue, flags));
        Ok(())
    }

    cudaDeviceGetGraphMemAttribute(device: i32, attr: cudaGraphMemAttributeType, value: *mut c_void) {
        let device = crate::context::device(device)?;
        cu!(cuDeviceGetGraphMemAttribute(device, CUgraphMem_attribute(attr.0), value));
        Ok(())
    }

    cudaDeviceSetGraphMemAttribute(device: i32, attr: cudaGraphMemAttributeType, value: *mut c_void) {
        let device = crate::context::device(device)?;
        cu!(cuDeviceSetGraphMemAttribute(device, CUgraphMem_attribute(attr.0), value));
        Ok(())
    }

    cudaDeviceGraphMemTrim(device: i32) {
        let device = crate::context::device(device)?;
        cu!(cuDeviceGraphMemTrim(device));
        Ok(())
    }
}
