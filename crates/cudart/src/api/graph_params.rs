//! What nodes of graphs do: reading it, and changing it.

use core::ffi::c_void;
use core::ptr::null_mut;

use super::array::bytes_of;
use super::graph_node::{bytes, copied, kernel, memset};
use super::symbol::part;
use crate::prelude::*;
use crate::registry;

/// The driver's description of a copy as the runtime's. Extent and offsets count elements where an array takes part.
fn as_parameters(of: &CUDA_MEMCPY3D) -> Result<cudaMemcpy3DParms> {
    let array = if of.srcMemoryType == CU_MEMORYTYPE_ARRAY {
        Some(of.srcArray)
    } else if of.dstMemoryType == CU_MEMORYTYPE_ARRAY {
        Some(of.dstArray)
    } else {
        None
    };
    let element = match array {
        Some(array) => {
            let found = super::array::described(array.cast_const().cast())?;
            bytes_of(found.Format) * found.NumChannels as usize
        }
        None => 1,
    };
    let end = |kind, host: *mut c_void, device: CUdeviceptr, pitch, height| match kind {
        CU_MEMORYTYPE_ARRAY => cudaPitchedPtr::default(),
        CU_MEMORYTYPE_HOST => cudaPitchedPtr {
            ptr: host,
            pitch,
            xsize: of.WidthInBytes,
            ysize: height,
        },
        _ => cudaPitchedPtr {
            ptr: device as *mut c_void,
            pitch,
            xsize: of.WidthInBytes,
            ysize: height,
        },
    };
    let unit = |kind| if kind == CU_MEMORYTYPE_ARRAY { element } else { 1 };
    let of_array = |kind, array: CUarray| {
        if kind == CU_MEMORYTYPE_ARRAY {
            array.cast()
        } else {
            null_mut()
        }
    };
    Ok(cudaMemcpy3DParms {
        srcArray: of_array(of.srcMemoryType, of.srcArray),
        srcPos: cudaPos {
            x: of.srcXInBytes / unit(of.srcMemoryType),
            y: of.srcY,
            z: of.srcZ,
        },
        srcPtr: end(
            of.srcMemoryType,
            of.srcHost.cast_mut(),
            of.srcDevice,
            of.srcPitch,
            of.srcHeight,
        ),
        dstArray: of_array(of.dstMemoryType, of.dstArray),
        dstPos: cudaPos {
            x: of.dstXInBytes / unit(of.dstMemoryType),
            y: of.dstY,
            z: of.dstZ,
        },
        dstPtr: end(
            of.dstMemoryType,
            of.dstHost,
            of.dstDevice,
            of.dstPitch,
            of.dstHeight,
        ),
        extent: cudaExtent {
            width: of.WidthInBytes / element,
            height: of.Height,
            depth: of.Depth,
        },
        kind: match (of.srcMemoryType, of.dstMemoryType) {
            (CU_MEMORYTYPE_UNIFIED, _) | (_, CU_MEMORYTYPE_UNIFIED) => cudaMemcpyDefault,
            (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST) => cudaMemcpyHostToHost,
            (CU_MEMORYTYPE_HOST, _) => cudaMemcpyHostToDevice,
            (_, CU_MEMORYTYPE_HOST) => cudaMemcpyDeviceToHost,
            _ => cudaMemcpyDeviceToDevice,
        },
    })
}

/// # Safety
/// As cudaGraphMemcpyNodeSetParams asks.
unsafe fn set_copy(node: cudaGraphNode_t, described: CUDA_MEMCPY3D) -> Result<()> {
    // SAFETY: the caller vouches for it.
    unsafe {
        cu!(cuGraphMemcpyNodeSetParams(node, &described));
    }
    Ok(())
}

entry! {
    cudaGraphKernelNodeGetParams(node: cudaGraphNode_t, pNodeParams: *mut cudaKernelNodeParams) {
        refuse(pNodeParams.is_null(), cudaErrorInvalidValue)?;
        let mut of = CUDA_KERNEL_NODE_PARAMS::default();
        cu!(cuGraphKernelNodeGetParams_v2(node, &mut of));
        let kernel = if of.kern.is_null() { of.func.cast() } else { of.kern };
        *pNodeParams = cudaKernelNodeParams {
            func: registry::stub(kernel),
            gridDim: dim3 { x: of.gridDimX, y: of.gridDimY, z: of.gridDimZ },
            blockDim: dim3 { x: of.blockDimX, y: of.blockDimY, z: of.blockDimZ },
            sharedMemBytes: of.sharedMemBytes,
            kernelParams: of.kernelParams,
            extra: of.extra,
        };
        Ok(())
    }

    cudaGraphKernelNodeSetParams(node: cudaGraphNode_t, pNodeParams: *const cudaKernelNodeParams) {
        let described = kernel(pNodeParams)?;
        cu!(cuGraphKernelNodeSetParams_v2(node, &described));
        Ok(())
    }

    cudaGraphKernelNodeCopyAttributes(hDst: cudaGraphNode_t, hSrc: cudaGraphNode_t) {
        cu!(cuGraphKernelNodeCopyAttributes(hDst, hSrc));
        Ok(())
    }

    cudaGraphKernelNodeCopyAttributes_12(hSrc: cudaGraphNode_t, hDst: cudaGraphNode_t) {
        cu!(cuGraphKernelNodeCopyAttributes(hDst, hSrc));
        Ok(())
    }

    cudaGraphKernelNodeGetAttribute(
        hNode: cudaGraphNode_t, attr: cudaLaunchAttributeID, value_out: *mut cudaLaunchAttributeValue,
    ) {
        cu!(cuGraphKernelNodeGetAttribute(hNode, CUlaunchAttributeID(attr.0), value_out.cast()));
        Ok(())
    }

    cudaGraphKernelNodeSetAttribute(
        hNode: cudaGraphNode_t, attr: cudaLaunchAttributeID, value: *const cudaLaunchAttributeValue,
    ) {
        cu!(cuGraphKernelNodeSetAttribute(hNode, CUlaunchAttributeID(attr.0), value.cast()));
        Ok(())
    }

    cudaGraphMemcpyNodeGetParams(node: cudaGraphNode_t, pNodeParams: *mut cudaMemcpy3DParms) {
        refuse(pNodeParams.is_null(), cudaErrorInvalidValue)?;
        let mut of = CUDA_MEMCPY3D::default();
        cu!(cuGraphMemcpyNodeGetParams(node, &mut of));
        *pNodeParams = as_parameters(&of)?;
        Ok(())
    }

    cudaGraphMemcpyNodeSetParams(node: cudaGraphNode_t, pNodeParams: *const cudaMemcpy3DParms) {
        set_copy(node, copied(pNodeParams)?)
    }

    cudaGraphMemcpyNodeSetParams1D(
        node: cudaGraphNode_t, dst: *mut c_void, src: *const c_void, count: usize, kind: cudaMemcpyKind,
    ) {
        set_copy(node, bytes(dst, src, count, kind)?)
    }

    cudaGraphMemcpyNodeSetParamsToSymbol(
        node: cudaGraphNode_t, symbol: *const c_void, src: *const c_void, count: usize, offset: usize,
        kind: cudaMemcpyKind,
    ) {
        set_copy(node, bytes(part(symbol, offset, count)?, src, count, kind)?)
    }

    cudaGraphMemcpyNodeSetParamsFromSymbol(
        node: cudaGraphNode_t, dst: *mut c_void, symbol: *const c_void, count: usize, offset: usize,
        kind: cudaMemcpyKind,
    ) {
        set_copy(node, bytes(dst, part(symbol, offset, count)?, count, kind)?)
    }

    cudaGraphMemsetNodeGetParams(node: cudaGraphNode_t, pNodeParams: *mut cudaMemsetParams) {
        refuse(pNodeParams.is_null(), cudaErrorInvalidValue)?;
        let mut of = CUDA_MEMSET_NODE_PARAMS::default();
        cu!(cuGraphMemsetNodeGetParams(node, &mut of));
        *pNodeParams = cudaMemsetParams {
            dst: of.dst as *mut c_void,
            pitch: of.pitch,
            value: of.value,
            elementSize: of.elementSize,
            width: of.width,
            height: of.height,
        };
        Ok(())
    }

    cudaGraphMemsetNodeSetParams(node: cudaGraphNode_t, pNodeParams: *const cudaMemsetParams) {
        let described = memset(pNodeParams)?;
        cu!(cuGraphMemsetNodeSetParams(node, &described));
        Ok(())
    }

    cudaGraphHostNodeGetParams(node: cudaGraphNode_t, pNodeParams: *mut cudaHostNodeParams) {
        cu!(cuGraphHostNodeGetParams(node, pNodeParams.cast()));
        Ok(())
    }

    cudaGraphHostNodeSetParams(node: cudaGraphNode_t, pNodeParams: *const cudaHostNodeParams) {
        cu!(cuGraphHostNodeSetParams(node, pNodeParams.cast()));
        Ok(())
    }

    cudaGraphChildGraphNodeGetGraph(node: cudaGraphNode_t, pGraph: *mut cudaGraph_t) {
        cu!(cuGraphChildGraphNodeGetGraph(node, pGraph));
        Ok(())
    }

    cudaGraphEventRecordNodeGetEvent(node: cudaGraphNode_t, event_out: *mut cudaEvent_t) {
        cu!(cuGraphEventRecordNodeGetEvent(node, event_out));
        Ok(())
    }

    cudaGraphEventRecordNodeSetEvent(node: cudaGraphNode_t, event: cudaEvent_t) {
        cu!(cuGraphEventRecordNodeSetEvent(node, event));
        Ok(())
    }

    cudaGraphEventWaitNodeGetEvent(node: cudaGraphNode_t, event_out: *mut cudaEvent_t) {
        cu!(cuGraphEventWaitNodeGetEvent(node, event_out));
        Ok(())
    }

    cudaGraphEventWaitNodeSetEvent(node: cudaGraphNode_t, event: cudaEvent_t) {
        cu!(cuGraphEventWaitNodeSetEvent(node, event));
        Ok(())
    }

    cudaGraphMemAllocNodeGetParams(node: cudaGraphNode_t, params_out: *mut cudaMemAllocNodeParams) {
        refuse(params_out.is_null(), cudaErrorInvalidValue)?;
        let mut of = CUDA_MEM_ALLOC_NODE_PARAMS::default();
        cu!(cuGraphMemAllocNodeGetParams(node, &mut of));
        // Pools' properties are laid out alike in both interfaces.
        *params_out = cudaMemAllocNodeParams {
            poolProps: (&raw const of.poolProps).cast::<cudaMemPoolProps>().read(),
            accessDescs: of.accessDescs.cast(),
            accessDescCount: of.accessDescCount,
            bytesize: of.bytesize,
            dptr: of.dptr as *mut c_void,
        };
        Ok(())
    }

    cudaGraphMemFreeNodeGetParams(node: cudaGraphNode_t, dptr_out: *mut c_void) {
        refuse(dptr_out.is_null(), cudaErrorInvalidValue)?;
        cu!(cuGraphMemFreeNodeGetParams(node, dptr_out.cast()));
        Ok(())
    }

    cudaGraphNodeSetParams(node: cudaGraphNode_t, nodeParams: *mut cudaGraphNodeParams) {
        let mut described = super::graph_node::any(nodeParams)?;
        cu!(cuGraphNodeSetParams(node, &mut described));
        Ok(())
    }
}
