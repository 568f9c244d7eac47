//! Graphs that are ready to launch.

use core::ffi::c_void;

use super::graph_node::{bytes, copied, current, kernel, memset};
use super::symbol::part;
use crate::prelude::*;

entry! {
    cudaGraphInstantiate(pGraphExec: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: u64) {
        context()?;
        cu!(cuGraphInstantiateWithFlags(pGraphExec, graph, flags));
        Ok(())
    }

    cudaGraphInstantiateWithFlags(pGraphExec: *mut cudaGraphExec_t, graph: cudaGraph_t, flags: u64) {
        context()?;
        cu!(cuGraphInstantiateWithFlags(pGraphExec, graph, flags));
        Ok(())
    }

    cudaGraphInstantiateWithParams(
        pGraphExec: *mut cudaGraphExec_t, graph: cudaGraph_t, instantiateParams: *mut cudaGraphInstantiateParams,
    ) {
        context()?;
        // Laid out alike in both interfaces, and so are results of an update.
        cu!(cuGraphInstantiateWithParams(pGraphExec, graph, instantiateParams.cast()));
        Ok(())
    }

    cudaGraphInstantiateWithParams_ptsz(
        pGraphExec: *mut cudaGraphExec_t, graph: cudaGraph_t, instantiateParams: *mut cudaGraphInstantiateParams,
    ) {
        context()?;
        cu!(cuGraphInstantiateWithParams_ptsz(pGraphExec, graph, instantiateParams.cast()));
        Ok(())
    }

    cudaGraphExecUpdate(
        hGraphExec: cudaGraphExec_t, hGraph: cudaGraph_t, resultInfo: *mut cudaGraphExecUpdateResultInfo,
    ) {
        context()?;
        cu!(cuGraphExecUpdate_v2(hGraphExec, hGraph, resultInfo.cast()));
        Ok(())
    }

    cudaGraphUpload | cudaGraphUpload_ptsz by stream (graphExec: cudaGraphExec_t, stream: cudaStream_t) {
        context()?;
        cu!(cuGraphUpload(graphExec, stream));
        Ok(())
    }

    cudaGraphLaunch | cudaGraphLaunch_ptsz by stream (graphExec: cudaGraphExec_t, stream: cudaStream_t) {
        context()?;
        cu!(cuGraphLaunch(graphExec, stream));
        Ok(())
    }

    cudaGraphExecDestroy(graphExec: cudaGraphExec_t) {
        cu!(cuGraphExecDestroy(graphExec));
        Ok(())
    }

    cudaGraphExecGetFlags(graphExec: cudaGraphExec_t, flags: *mut u64) {
        cu!(cuGraphExecGetFlags(graphExec, flags));
        Ok(())
    }

    cudaGraphExecGetId(hGraphExec: cudaGraphExec_t, graphID: *mut u32) {
        cu!(cuGraphExecGetId(hGraphExec, graphID));
        Ok(())
    }

    cudaGraphNodeSetEnabled(hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, isEnabled: u32) {
        cu!(cuGraphNodeSetEnabled(hGraphExec, hNode, isEnabled));
        Ok(())
    }

    cudaGraphNodeGetEnabled(hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, isEnabled: *mut u32) {
        cu!(cuGraphNodeGetEnabled(hGraphExec, hNode, isEnabled));
        Ok(())
    }

    cudaGraphExecKernelNodeSetParams(
        hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, pNodeParams: *const cudaKernelNodeParams,
    ) {
        let described = kernel(pNodeParams)?;
        cu!(cuGraphExecKernelNodeSetParams_v2(hGraphExec, node, &described));
        Ok(())
    }

    cudaGraphExecMemcpyNodeSetParams(
        hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, pNodeParams: *const cudaMemcpy3DParms,
    ) {
        let context = current()?;
        let described = copied(pNodeParams)?;
        cu!(cuGraphExecMemcpyNodeSetParams(hGraphExec, node, &described, context));
        Ok(())
    }

    cudaGraphExecMemcpyNodeSetParams1D(
        hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, dst: *mut c_void, src: *const c_void, count: usize,
        kind: cudaMemcpyKind,
    ) {
        let context = current()?;
        let described = bytes(dst, src, count, kind)?;
        cu!(cuGraphExecMemcpyNodeSetParams(hGraphExec, node, &described, context));
        Ok(())
    }

    cudaGraphExecMemcpyNodeSetParamsToSymbol(
        hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, symbol: *const c_void, src: *const c_void, count: usize,
        offset: usize, kind: cudaMemcpyKind,
    ) {
        let context = current()?;
        let described = bytes(part(symbol, offset, count)?, src, count, kind)?;
        cu!(cuGraphExecMemcpyNodeSetParams(hGraphExec, node, &described, context));
        Ok(())
    }

    cudaGraphExecMemcpyNodeSetParamsFromSymbol(
        hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, dst: *mut c_void, symbol: *const c_void, count: usize,
        offset: usize, kind: cudaMemcpyKind,
    ) {
        let context = current()?;
        let described = bytes(dst, part(symbol, offset, count)?, count, kind)?;
        cu!(cuGraphExecMemcpyNodeSetParams(hGraphExec, node, &described, context));
        Ok(())
    }

    cudaGraphExecMemsetNodeSetParams(
        hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, pNodeParams: *const cudaMemsetParams,
    ) {
        let context = current()?;
        let described = memset(pNodeParams)?;
        cu!(cuGraphExecMemsetNodeSetParams(hGraphExec, node, &described, context));
        Ok(())
    }

    cudaGraphExecHostNodeSetParams(
        hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, pNodeParams: *const cudaHostNodeParams,
    ) {
        cu!(cuGraphExecHostNodeSetParams(hGraphExec, node, pNodeParams.cast()));
        Ok(())
    }

    cudaGraphExecChildGraphNodeSetParams(
        hGraphExec: cudaGraphExec_t, node: cudaGraphNode_t, childGraph: cudaGraph_t,
    ) {
        cu!(cuGraphExecChildGraphNodeSetParams(hGraphExec, node, childGraph));
        Ok(())
    }

    cudaGraphExecEventRecordNodeSetEvent(
        hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, event: cudaEvent_t,
    ) {
        cu!(cuGraphExecEventRecordNodeSetEvent(hGraphExec, hNode, event));
        Ok(())
    }

    cudaGraphExecEventWaitNodeSetEvent(hGraphExec: cudaGraphExec_t, hNode: cudaGraphNode_t, event: cudaEvent_t) {
        cu!(cuGraphExecEventWaitNodeSetEvent(hGraphExec, hNode, event));
        Ok(())
    }

    cudaGraphExecNodeSetParams(
        graphExec: cudaGraphExec_t, node: cudaGraphNode_t, nodeParams: *mut cudaGraphNodeParams,
    ) {
        let mut described = super::graph_node::any(nodeParams)?;
        cu!(cuGraphExecNodeSetParams(graphExec, node, &mut described));
        Ok(())
    }
}
