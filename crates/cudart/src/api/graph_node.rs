//! Nodes of graphs: the runtime's descriptions as the driver's, and adding them.

use core::ffi::c_void;
use core::ptr::{null, null_mut};

use super::copy::{Cuboid, End, cuboid, ends};
use super::symbol::part;
use crate::prelude::*;
use crate::registry;

/// The thread's context, in which a node's memory is.
pub fn current() -> Result<CUcontext> {
    context()?;
    let mut current = null_mut();
    // SAFETY: the pointer is that of a handle.
    unsafe {
        cu!(cuCtxGetCurrent(&mut current));
    }
    Ok(current)
}

/// # Safety
/// `parameters` is null or points to such.
pub unsafe fn kernel(parameters: *const cudaKernelNodeParams) -> Result<CUDA_KERNEL_NODE_PARAMS> {
    refuse(parameters.is_null(), cudaErrorInvalidValue)?;
    // SAFETY: it is not null, and the caller vouches for it.
    let given = unsafe { &*parameters };
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: null_mut(),
        gridDimX: given.gridDim.x,
        gridDimY: given.gridDim.y,
        gridDimZ: given.gridDim.z,
        blockDimX: given.blockDim.x,
        blockDimY: given.blockDim.y,
        blockDimZ: given.blockDim.z,
        sharedMemBytes: given.sharedMemBytes,
        kernelParams: given.kernelParams,
        extra: given.extra,
        ctx: current()?,
        kern: registry::kernel(given.func)?,
    })
}

/// # Safety
/// `parameters` is null or points to such.
pub unsafe fn copied(parameters: *const cudaMemcpy3DParms) -> Result<CUDA_MEMCPY3D> {
    context()?;
    // SAFETY: the caller vouches for it.
    Ok(unsafe { cuboid(parameters)? }.described())
}

/// A copy of bytes as the driver describes it.
pub fn bytes(
    dst: *mut c_void,
    src: *const c_void,
    count: usize,
    kind: cudaMemcpyKind,
) -> Result<CUDA_MEMCPY3D> {
    let row = Cuboid {
        from: End::Memory(src.cast_mut()),
        to: End::Memory(dst),
        kinds: ends(kind)?,
        from_pitch: count,
        from_height: 1,
        to_pitch: count,
        to_height: 1,
        from_at: [0; 3],
        to_at: [0; 3],
        extent: [count, 1, 1],
    };
    Ok(row.described())
}

/// # Safety
/// `parameters` is null or points to such.
pub unsafe fn memset(parameters: *const cudaMemsetParams) -> Result<CUDA_MEMSET_NODE_PARAMS> {
    refuse(parameters.is_null(), cudaErrorInvalidValue)?;
    // SAFETY: it is not null, and the caller vouches for it.
    let given = unsafe { &*parameters };
    Ok(CUDA_MEMSET_NODE_PARAMS {
        dst: given.dst as CUdeviceptr,
        pitch: given.pitch,
        value: given.value,
        elementSize: given.elementSize,
        width: given.width,
        height: given.height,
    })
}

/// A node of any kind, as the driver describes it.
///
/// # Safety
/// `parameters` is null or points to such, of the kind that it says.
pub unsafe fn any(parameters: *const cudaGraphNodeParams) -> Result<CUgraphNodeParams> {
    refuse(parameters.is_null(), cudaErrorInvalidValue)?;
    let mut out = CUgraphNodeParams::default();
    // SAFETY: it is not null, and the caller vouches for it: the kind says which member was written.
    unsafe {
        let given = &*parameters;
        out.type_ = CUgraphNodeType(given.type_.0 as _);
        let of = &given.anonymous1;
        let to = &mut out.anonymous1;
        match given.type_ {
            cudaGraphNodeTypeKernel => {
                let plain = cudaKernelNodeParams {
                    func: of.kernel.anonymous1.func,
                    gridDim: of.kernel.gridDim,
                    blockDim: of.kernel.blockDim,
                    sharedMemBytes: of.kernel.sharedMemBytes,
                    kernelParams: of.kernel.kernelParams,
                    extra: of.kernel.extra,
                };
                let made = kernel(&plain)?;
                to.kernel.kern = made.kern;
                to.kernel.ctx = made.ctx;
                to.kernel.gridDimX = made.gridDimX;
                to.kernel.gridDimY = made.gridDimY;
                to.kernel.gridDimZ = made.gridDimZ;
                to.kernel.blockDimX = made.blockDimX;
                to.kernel.blockDimY = made.blockDimY;
                to.kernel.blockDimZ = made.blockDimZ;
                to.kernel.sharedMemBytes = made.sharedMemBytes;
                to.kernel.kernelParams = made.kernelParams;
                to.kernel.extra = made.extra;
            }
            cudaGraphNodeTypeMemcpy => {
                to.memcpy.copyCtx = current()?;
                to.memcpy.copyParams = copied(&of.memcpy.copyParams)?;
            }
            cudaGraphNodeTypeMemset => {
                to.memset.dst = of.memset.dst as CUdeviceptr;
                to.memset.pitch = of.memset.pitch;
                to.memset.value = of.memset.value;
                to.memset.elementSize = of.memset.elementSize;
                to.memset.width = of.memset.width;
                to.memset.height = of.memset.height;
                to.memset.ctx = current()?;
            }
            cudaGraphNodeTypeHost => {
                to.host.fn_ = of.host.fn_;
                to.host.userData = of.host.userData;
            }
            cudaGraphNodeTypeGraph => to.graph.graph = of.graph.graph,
            cudaGraphNodeTypeEmpty => {}
            cudaGraphNodeTypeWaitEvent => to.eventWait.event = of.eventWait.event,
            cudaGraphNodeTypeEventRecord => to.eventRecord.event = of.eventRecord.event,
            cudaGraphNodeTypeMemAlloc => {
                context()?;
                to.alloc.poolProps = pool_properties(&of.alloc.poolProps);
                to.alloc.accessDescs = of.alloc.accessDescs.cast();
                to.alloc.accessDescCount = of.alloc.accessDescCount;
                to.alloc.bytesize = of.alloc.bytesize;
            }
            cudaGraphNodeTypeMemFree => to.free.dptr = of.free.dptr as CUdeviceptr,
            cudaGraphNodeTypeConditional => {
                to.conditional.handle = of.conditional.handle;
                to.conditional.type_ = CUgraphConditionalNodeType(of.conditional.type_.0);
                to.conditional.size = of.conditional.size;
                to.conditional.ctx = current()?;
            }
            _ => return Err(cudaErrorNotSupported),
        }
    }
    Ok(out)
}

/// A pool's properties as the driver's: they are laid out alike.
pub fn pool_properties(given: &cudaMemPoolProps) -> CUmemPoolProps {
    const { assert!(size_of::<cudaMemPoolProps>() == size_of::<CUmemPoolProps>()) };
    // SAFETY: both are plain numbers and pointers at the same places.
    unsafe { core::ptr::from_ref(given).cast::<CUmemPoolProps>().read() }
}

/// Adds a node of any kind.
///
/// # Safety
/// As cudaGraphAddNode asks.
unsafe fn add(
    node: *mut cudaGraphNode_t,
    graph: cudaGraph_t,
    dependencies: *const cudaGraphNode_t,
    edges: *const cudaGraphEdgeData,
    count: usize,
    parameters: *mut cudaGraphNodeParams,
) -> Result<()> {
    // SAFETY: the caller vouches for it all.
    unsafe {
        let mut described = any(parameters)?;
        cu!(cuGraphAddNode_v2(
            node,
            graph,
            dependencies,
            edges.cast(),
            count,
            &mut described
        ));
        // What the driver answers by the description.
        match (*parameters).type_ {
            cudaGraphNodeTypeMemAlloc => {
                (*parameters).anonymous1.alloc.dptr = described.anonymous1.alloc.dptr as *mut c_void;
            }
            cudaGraphNodeTypeConditional => {
                (*parameters).anonymous1.conditional.phGraph_out =
                    described.anonymous1.conditional.phGraph_out;
            }
            _ => {}
        }
    }
    Ok(())
}

entry! {
    cudaGraphAddNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        dependencyData: *const cudaGraphEdgeData, numDependencies: usize, nodeParams: *mut cudaGraphNodeParams,
    ) {
        add(pGraphNode, graph, pDependencies, dependencyData, numDependencies, nodeParams)
    }

    cudaGraphAddNode_12(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, nodeParams: *mut cudaGraphNodeParams,
    ) {
        add(pGraphNode, graph, pDependencies, null(), numDependencies, nodeParams)
    }

    cudaGraphAddKernelNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, pNodeParams: *const cudaKernelNodeParams,
    ) {
        let described = kernel(pNodeParams)?;
        cu!(cuGraphAddKernelNode_v2(pGraphNode, graph, pDependencies, numDependencies, &described));
        Ok(())
    }

    cudaGraphAddMemcpyNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, pCopyParams: *const cudaMemcpy3DParms,
    ) {
        let context = current()?;
        let described = copied(pCopyParams)?;
        cu!(cuGraphAddMemcpyNode(pGraphNode, graph, pDependencies, numDependencies, &described, context));
        Ok(())
    }

    cudaGraphAddMemcpyNode1D(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind,
    ) {
        let context = current()?;
        let described = bytes(dst, src, count, kind)?;
        cu!(cuGraphAddMemcpyNode(pGraphNode, graph, pDependencies, numDependencies, &described, context));
        Ok(())
    }

    cudaGraphAddMemcpyNodeToSymbol(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, symbol: *const c_void, src: *const c_void, count: usize, offset: usize,
        kind: cudaMemcpyKind,
    ) {
        let context = current()?;
        let described = bytes(part(symbol, offset, count)?, src, count, kind)?;
        cu!(cuGraphAddMemcpyNode(pGraphNode, graph, pDependencies, numDependencies, &described, context));
        Ok(())
    }

    cudaGraphAddMemcpyNodeFromSymbol(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize,
        kind: cudaMemcpyKind,
    ) {
        let context = current()?;
        let described = bytes(dst, part(symbol, offset, count)?, count, kind)?;
        cu!(cuGraphAddMemcpyNode(pGraphNode, graph, pDependencies, numDependencies, &described, context));
        Ok(())
    }

    cudaGraphAddMemsetNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, pMemsetParams: *const cudaMemsetParams,
    ) {
        let context = current()?;
        let described = memset(pMemsetParams)?;
        cu!(cuGraphAddMemsetNode(pGraphNode, graph, pDependencies, numDependencies, &described, context));
        Ok(())
    }

    cudaGraphAddHostNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, pNodeParams: *const cudaHostNodeParams,
    ) {
        cu!(cuGraphAddHostNode(pGraphNode, graph, pDependencies, numDependencies, pNodeParams.cast()));
        Ok(())
    }

    cudaGraphAddChildGraphNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, childGraph: cudaGraph_t,
    ) {
        cu!(cuGraphAddChildGraphNode(pGraphNode, graph, pDependencies, numDependencies, childGraph));
        Ok(())
    }

    cudaGraphAddEmptyNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize,
    ) {
        cu!(cuGraphAddEmptyNode(pGraphNode, graph, pDependencies, numDependencies));
        Ok(())
    }

    cudaGraphAddEventRecordNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, event: cudaEvent_t,
    ) {
        cu!(cuGraphAddEventRecordNode(pGraphNode, graph, pDependencies, numDependencies, event));
        Ok(())
    }

    cudaGraphAddEventWaitNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, event: cudaEvent_t,
    ) {
        cu!(cuGraphAddEventWaitNode(pGraphNode, graph, pDependencies, numDependencies, event));
        Ok(())
    }

    cudaGraphAddMemAllocNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, nodeParams: *mut cudaMemAllocNodeParams,
    ) {
        refuse(nodeParams.is_null(), cudaErrorInvalidValue)?;
        context()?;
        let given = &mut *nodeParams;
        let mut described = CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: pool_properties(&given.poolProps),
            accessDescs: given.accessDescs.cast(),
            accessDescCount: given.accessDescCount,
            bytesize: given.bytesize,
            dptr: 0,
        };
        cu!(cuGraphAddMemAllocNode(pGraphNode, graph, pDependencies, numDependencies, &mut described));
        given.dptr = described.dptr as *mut c_void;
        Ok(())
    }

    cudaGraphAddMemFreeNode(
        pGraphNode: *mut cudaGraphNode_t, graph: cudaGraph_t, pDependencies: *const cudaGraphNode_t,
        numDependencies: usize, dptr: *mut c_void,
    ) {
        cu!(cuGraphAddMemFreeNode(pGraphNode, graph, pDependencies, numDependencies, dptr as CUdeviceptr));
        Ok(())
    }
}
