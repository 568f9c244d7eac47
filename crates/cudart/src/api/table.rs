//! The two runtimes: which function answers each symbol.

use divvy_abi::runtime::{v12, v13};

use super::*;

/// What CUDA 12 calls by these names has other arguments than in CUDA 13.
mod twelve {
    pub use super::copy::{
        cudaMemcpyBatchAsync_12 as cudaMemcpyBatchAsync,
        cudaMemcpyBatchAsync_12_ptsz as cudaMemcpyBatchAsync_ptsz,
    };
    pub use super::entry_point::{
        cudaGetDriverEntryPoint_12 as cudaGetDriverEntryPoint,
        cudaGetDriverEntryPoint_12_ptsz as cudaGetDriverEntryPoint_ptsz,
        cudaRuntimeGetVersion_12 as cudaRuntimeGetVersion,
    };
    pub use super::external::{
        cudaExternalMemoryGetMappedBuffer_12 as cudaExternalMemoryGetMappedBuffer,
        cudaExternalMemoryGetMappedMipmappedArray_12 as cudaExternalMemoryGetMappedMipmappedArray,
        cudaImportExternalMemory_12 as cudaImportExternalMemory,
    };
    pub use super::graph::{
        cudaGraphAddDependencies as cudaGraphAddDependencies_v2,
        cudaGraphAddDependencies_12 as cudaGraphAddDependencies, cudaGraphGetEdges as cudaGraphGetEdges_v2,
        cudaGraphGetEdges_12 as cudaGraphGetEdges,
        cudaGraphNodeGetDependencies as cudaGraphNodeGetDependencies_v2,
        cudaGraphNodeGetDependencies_12 as cudaGraphNodeGetDependencies,
        cudaGraphNodeGetDependentNodes as cudaGraphNodeGetDependentNodes_v2,
        cudaGraphNodeGetDependentNodes_12 as cudaGraphNodeGetDependentNodes,
        cudaGraphRemoveDependencies as cudaGraphRemoveDependencies_v2,
        cudaGraphRemoveDependencies_12 as cudaGraphRemoveDependencies,
    };
    pub use super::graph_node::{
        cudaGraphAddNode as cudaGraphAddNode_v2, cudaGraphAddNode_12 as cudaGraphAddNode,
    };
    pub use super::graph_params::cudaGraphKernelNodeCopyAttributes_12 as cudaGraphKernelNodeCopyAttributes;
    pub use super::managed::{
        cudaMemAdvise as cudaMemAdvise_v2, cudaMemAdvise_12 as cudaMemAdvise,
        cudaMemPrefetchAsync as cudaMemPrefetchAsync_v2, cudaMemPrefetchAsync_12 as cudaMemPrefetchAsync,
        cudaMemPrefetchAsync_12_ptsz as cudaMemPrefetchAsync_ptsz,
        cudaMemPrefetchAsync_ptsz as cudaMemPrefetchAsync_v2_ptsz,
    };
    pub use super::memory::cudaPointerGetAttributes_12 as cudaPointerGetAttributes;
    pub use super::properties::{
        cudaChooseDevice_12 as cudaChooseDevice, cudaGetDeviceProperties_12 as cudaGetDeviceProperties,
    };
    pub use super::stream::{
        cudaStreamGetCaptureInfo as cudaStreamGetCaptureInfo_v3,
        cudaStreamGetCaptureInfo_12 as cudaStreamGetCaptureInfo,
        cudaStreamGetCaptureInfo_12_ptsz as cudaStreamGetCaptureInfo_ptsz,
        cudaStreamGetCaptureInfo_ptsz as cudaStreamGetCaptureInfo_v3_ptsz,
        cudaStreamUpdateCaptureDependencies as cudaStreamUpdateCaptureDependencies_v2,
        cudaStreamUpdateCaptureDependencies_12 as cudaStreamUpdateCaptureDependencies,
        cudaStreamUpdateCaptureDependencies_12_ptsz as cudaStreamUpdateCaptureDependencies_ptsz,
        cudaStreamUpdateCaptureDependencies_ptsz as cudaStreamUpdateCaptureDependencies_v2_ptsz,
    };
    pub use super::texture::{
        cudaCreateSurfaceObject_12 as cudaCreateSurfaceObject,
        cudaCreateTextureObject_12 as cudaCreateTextureObject,
        cudaGetSurfaceObjectResourceDesc_12 as cudaGetSurfaceObjectResourceDesc,
        cudaGetTextureObjectResourceDesc_12 as cudaGetTextureObjectResourceDesc,
        cudaGetTextureObjectResourceViewDesc_12 as cudaGetTextureObjectResourceViewDesc,
    };
}

/// What both releases have.
macro_rules! areas {
    ($callback:ident) => {
        $callback! {
            array: cudaArrayGetInfo cudaArrayGetMemoryRequirements cudaArrayGetPlane
                cudaArrayGetSparseProperties cudaCreateChannelDesc cudaFreeArray cudaFreeMipmappedArray
                cudaGetChannelDesc cudaGetMipmappedArrayLevel cudaMalloc3DArray cudaMallocArray
                cudaMallocMipmappedArray cudaMipmappedArrayGetMemoryRequirements
                cudaMipmappedArrayGetSparseProperties;
            array_copy: cudaMemcpy2DArrayToArray cudaMemcpy2DArrayToArray_ptds cudaMemcpy2DFromArray
                cudaMemcpy2DFromArrayAsync cudaMemcpy2DFromArrayAsync_ptsz cudaMemcpy2DFromArray_ptds
                cudaMemcpy2DToArray cudaMemcpy2DToArrayAsync cudaMemcpy2DToArrayAsync_ptsz
                cudaMemcpy2DToArray_ptds cudaMemcpyArrayToArray cudaMemcpyArrayToArray_ptds
                cudaMemcpyFromArray cudaMemcpyFromArrayAsync cudaMemcpyFromArrayAsync_ptsz
                cudaMemcpyFromArray_ptds cudaMemcpyToArray cudaMemcpyToArrayAsync cudaMemcpyToArrayAsync_ptsz
                cudaMemcpyToArray_ptds;
            copy: cudaMemcpy cudaMemcpy2D cudaMemcpy2DAsync cudaMemcpy2DAsync_ptsz cudaMemcpy2D_ptds
                cudaMemcpy3D cudaMemcpy3DAsync cudaMemcpy3DAsync_ptsz cudaMemcpy3DPeer cudaMemcpy3DPeerAsync
                cudaMemcpy3DPeerAsync_ptsz cudaMemcpy3DPeer_ptds cudaMemcpy3D_ptds cudaMemcpyAsync
                cudaMemcpyAsync_ptsz cudaMemcpyPeer cudaMemcpyPeerAsync cudaMemcpy_ptds;
            device: cudaCtxResetPersistingL2Cache cudaDeviceFlushGPUDirectRDMAWrites cudaDeviceGetAttribute
                cudaDeviceGetByPCIBusId cudaDeviceGetCacheConfig cudaDeviceGetLimit cudaDeviceGetPCIBusId
                cudaDeviceGetSharedMemConfig cudaDeviceGetStreamPriorityRange
                cudaDeviceGetTexture1DLinearMaxWidth cudaDeviceReset cudaDeviceSetCacheConfig
                cudaDeviceSetLimit cudaDeviceSetSharedMemConfig cudaDeviceSynchronize cudaGetDevice
                cudaGetDeviceCount cudaGetDeviceFlags cudaInitDevice cudaSetDevice cudaSetDeviceFlags
                cudaSetValidDevices;
            entry_point: cudaDriverGetVersion cudaGetDriverEntryPointByVersion
                cudaGetDriverEntryPointByVersion_ptsz cudaGetExportTable cudaProfilerStart cudaProfilerStop;
            error: cudaGetErrorName cudaGetErrorString cudaGetLastError cudaPeekAtLastError;
            event: cudaEventCreate cudaEventCreateWithFlags cudaEventDestroy cudaEventElapsedTime
                cudaEventQuery cudaEventRecord cudaEventRecordWithFlags cudaEventRecordWithFlags_ptsz
                cudaEventRecord_ptsz cudaEventSynchronize;
            external: cudaDestroyExternalMemory;
            function: cudaFuncGetAttributes cudaFuncGetName cudaFuncGetParamInfo cudaFuncSetAttribute
                cudaFuncSetCacheConfig cudaFuncSetSharedMemConfig cudaKernelSetAttributeForDevice;
            graph: cudaDeviceGetGraphMemAttribute cudaDeviceGraphMemTrim cudaDeviceSetGraphMemAttribute
                cudaGraphClone cudaGraphConditionalHandleCreate cudaGraphCreate cudaGraphDebugDotPrint
                cudaGraphDestroy cudaGraphDestroyNode cudaGraphGetNodes cudaGraphGetRootNodes
                cudaGraphNodeFindInClone cudaGraphNodeGetType cudaGraphReleaseUserObject
                cudaGraphRetainUserObject cudaUserObjectCreate cudaUserObjectRelease cudaUserObjectRetain;
            graph_exec: cudaGraphExecChildGraphNodeSetParams cudaGraphExecDestroy
                cudaGraphExecEventRecordNodeSetEvent cudaGraphExecEventWaitNodeSetEvent cudaGraphExecGetFlags
                cudaGraphExecHostNodeSetParams cudaGraphExecKernelNodeSetParams
                cudaGraphExecMemcpyNodeSetParams cudaGraphExecMemcpyNodeSetParams1D
                cudaGraphExecMemcpyNodeSetParamsFromSymbol cudaGraphExecMemcpyNodeSetParamsToSymbol
                cudaGraphExecMemsetNodeSetParams cudaGraphExecNodeSetParams cudaGraphExecUpdate
                cudaGraphInstantiate cudaGraphInstantiateWithFlags cudaGraphInstantiateWithParams
                cudaGraphInstantiateWithParams_ptsz cudaGraphLaunch cudaGraphLaunch_ptsz
                cudaGraphNodeGetEnabled cudaGraphNodeSetEnabled cudaGraphUpload cudaGraphUpload_ptsz;
            graph_node: cudaGraphAddChildGraphNode cudaGraphAddEmptyNode cudaGraphAddEventRecordNode
                cudaGraphAddEventWaitNode cudaGraphAddHostNode cudaGraphAddKernelNode cudaGraphAddMemAllocNode
                cudaGraphAddMemFreeNode cudaGraphAddMemcpyNode cudaGraphAddMemcpyNode1D
                cudaGraphAddMemcpyNodeFromSymbol cudaGraphAddMemcpyNodeToSymbol cudaGraphAddMemsetNode;
            graph_params: cudaGraphChildGraphNodeGetGraph cudaGraphEventRecordNodeGetEvent
                cudaGraphEventRecordNodeSetEvent cudaGraphEventWaitNodeGetEvent cudaGraphEventWaitNodeSetEvent
                cudaGraphHostNodeGetParams cudaGraphHostNodeSetParams cudaGraphKernelNodeGetAttribute
                cudaGraphKernelNodeGetParams cudaGraphKernelNodeSetAttribute cudaGraphKernelNodeSetParams
                cudaGraphMemAllocNodeGetParams cudaGraphMemFreeNodeGetParams cudaGraphMemcpyNodeGetParams
                cudaGraphMemcpyNodeSetParams cudaGraphMemcpyNodeSetParams1D
                cudaGraphMemcpyNodeSetParamsFromSymbol cudaGraphMemcpyNodeSetParamsToSymbol
                cudaGraphMemsetNodeGetParams cudaGraphMemsetNodeSetParams cudaGraphNodeSetParams;
            ipc: cudaIpcCloseMemHandle cudaIpcGetEventHandle cudaIpcGetMemHandle cudaIpcOpenEventHandle
                cudaIpcOpenMemHandle;
            launch: __cudaGetKernel __cudaLaunchKernel __cudaLaunchKernel_ptsz __cudaPopCallConfiguration
                __cudaPushCallConfiguration cudaGetFuncBySymbol cudaGetKernel cudaLaunchCooperativeKernel
                cudaLaunchCooperativeKernel_ptsz cudaLaunchHostFunc cudaLaunchHostFunc_ptsz cudaLaunchKernel
                cudaLaunchKernelExC cudaLaunchKernelExC_ptsz cudaLaunchKernel_ptsz;
            library: cudaLibraryEnumerateKernels cudaLibraryGetGlobal cudaLibraryGetKernel
                cudaLibraryGetKernelCount cudaLibraryGetManaged cudaLibraryGetUnifiedFunction
                cudaLibraryLoadData cudaLibraryLoadFromFile cudaLibraryUnload;
            managed: cudaMallocManaged cudaMemRangeGetAttribute cudaMemRangeGetAttributes;
            memory: cudaFree cudaFreeHost cudaHostAlloc cudaHostGetDevicePointer cudaHostGetFlags
                cudaHostRegister cudaHostUnregister cudaMalloc cudaMalloc3D cudaMallocHost cudaMallocPitch
                cudaMemGetInfo;
            memset: cudaMemset cudaMemset2D cudaMemset2DAsync cudaMemset2DAsync_ptsz cudaMemset2D_ptds
                cudaMemset3D cudaMemset3DAsync cudaMemset3DAsync_ptsz cudaMemset3D_ptds cudaMemsetAsync
                cudaMemsetAsync_ptsz cudaMemset_ptds;
            occupancy: cudaOccupancyAvailableDynamicSMemPerBlock cudaOccupancyMaxActiveBlocksPerMultiprocessor
                cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cudaOccupancyMaxActiveClusters
                cudaOccupancyMaxPotentialClusterSize;
            peer: cudaDeviceCanAccessPeer cudaDeviceDisablePeerAccess cudaDeviceEnablePeerAccess
                cudaDeviceGetP2PAttribute;
            pool: cudaDeviceGetDefaultMemPool cudaDeviceGetMemPool cudaDeviceSetMemPool cudaFreeAsync
                cudaFreeAsync_ptsz cudaMallocAsync cudaMallocAsync_ptsz cudaMallocFromPoolAsync
                cudaMallocFromPoolAsync_ptsz cudaMemPoolCreate cudaMemPoolDestroy cudaMemPoolExportPointer
                cudaMemPoolExportToShareableHandle cudaMemPoolGetAccess cudaMemPoolGetAttribute
                cudaMemPoolImportFromShareableHandle cudaMemPoolImportPointer cudaMemPoolSetAccess
                cudaMemPoolSetAttribute cudaMemPoolTrimTo;
            register: __cudaInitModule __cudaRegisterFatBinary __cudaRegisterFatBinaryEnd
                __cudaRegisterFunction __cudaRegisterManagedVar __cudaRegisterVar __cudaUnregisterFatBinary;
            stream: cudaStreamAddCallback cudaStreamAddCallback_ptsz cudaStreamAttachMemAsync
                cudaStreamAttachMemAsync_ptsz cudaStreamBeginCapture cudaStreamBeginCaptureToGraph
                cudaStreamBeginCaptureToGraph_ptsz cudaStreamBeginCapture_ptsz cudaStreamCopyAttributes
                cudaStreamCopyAttributes_ptsz cudaStreamCreate cudaStreamCreateWithFlags
                cudaStreamCreateWithPriority cudaStreamDestroy cudaStreamEndCapture cudaStreamEndCapture_ptsz
                cudaStreamGetAttribute cudaStreamGetAttribute_ptsz cudaStreamGetDevice
                cudaStreamGetDevice_ptsz cudaStreamGetFlags cudaStreamGetFlags_ptsz cudaStreamGetId
                cudaStreamGetId_ptsz cudaStreamGetPriority cudaStreamGetPriority_ptsz cudaStreamIsCapturing
                cudaStreamIsCapturing_ptsz cudaStreamQuery cudaStreamQuery_ptsz cudaStreamSetAttribute
                cudaStreamSetAttribute_ptsz cudaStreamSynchronize cudaStreamSynchronize_ptsz
                cudaStreamWaitEvent cudaStreamWaitEvent_ptsz cudaThreadExchangeStreamCaptureMode;
            symbol: cudaGetSymbolAddress cudaGetSymbolSize cudaMemcpyFromSymbol cudaMemcpyFromSymbolAsync
                cudaMemcpyFromSymbolAsync_ptsz cudaMemcpyFromSymbol_ptds cudaMemcpyToSymbol
                cudaMemcpyToSymbolAsync cudaMemcpyToSymbolAsync_ptsz cudaMemcpyToSymbol_ptds;
            texture: cudaDestroySurfaceObject cudaDestroyTextureObject cudaGetTextureObjectTextureDesc;
        }
    };
}

macro_rules! table_12 {
    ($($areas:tt)*) => {
        divvy_abi::implemented! { Table {
            $($areas)*
            device: cudaSetDoubleForDevice cudaSetDoubleForHost cudaThreadExit cudaThreadGetCacheConfig
                cudaThreadGetLimit cudaThreadSetCacheConfig cudaThreadSetLimit cudaThreadSynchronize;
            event: cudaEventElapsedTime_v2;
            properties: cudaGetDeviceProperties_v2;
            stream: cudaStreamGetCaptureInfo_v2 cudaStreamGetCaptureInfo_v2_ptsz;
            twelve: cudaChooseDevice cudaCreateSurfaceObject cudaCreateTextureObject
                cudaExternalMemoryGetMappedBuffer cudaExternalMemoryGetMappedMipmappedArray
                cudaGetDeviceProperties cudaGetDriverEntryPoint cudaGetDriverEntryPoint_ptsz
                cudaGetSurfaceObjectResourceDesc cudaGetTextureObjectResourceDesc
                cudaGetTextureObjectResourceViewDesc cudaGraphAddDependencies cudaGraphAddDependencies_v2
                cudaGraphAddNode cudaGraphAddNode_v2 cudaGraphGetEdges cudaGraphGetEdges_v2
                cudaGraphKernelNodeCopyAttributes cudaGraphNodeGetDependencies cudaGraphNodeGetDependencies_v2
                cudaGraphNodeGetDependentNodes cudaGraphNodeGetDependentNodes_v2 cudaGraphRemoveDependencies
                cudaGraphRemoveDependencies_v2 cudaImportExternalMemory cudaMemAdvise cudaMemAdvise_v2
                cudaMemPrefetchAsync cudaMemPrefetchAsync_ptsz cudaMemPrefetchAsync_v2
                cudaMemPrefetchAsync_v2_ptsz cudaMemcpyBatchAsync cudaMemcpyBatchAsync_ptsz
                cudaPointerGetAttributes cudaRuntimeGetVersion cudaStreamGetCaptureInfo
                cudaStreamGetCaptureInfo_ptsz cudaStreamGetCaptureInfo_v3 cudaStreamGetCaptureInfo_v3_ptsz
                cudaStreamUpdateCaptureDependencies cudaStreamUpdateCaptureDependencies_ptsz
                cudaStreamUpdateCaptureDependencies_v2 cudaStreamUpdateCaptureDependencies_v2_ptsz;
        } }
    };
}

macro_rules! table_13 {
    ($($areas:tt)*) => {
        divvy_abi::implemented! { Table {
            $($areas)*
            copy: cudaMemcpyBatchAsync cudaMemcpyBatchAsync_ptsz;
            entry_point: cudaGetDriverEntryPoint cudaGetDriverEntryPoint_ptsz cudaRuntimeGetVersion;
            external: cudaExternalMemoryGetMappedBuffer cudaExternalMemoryGetMappedMipmappedArray
                cudaImportExternalMemory;
            function: cudaFuncGetParamCount;
            graph: cudaGraphAddDependencies cudaGraphGetEdges cudaGraphGetId cudaGraphNodeGetContainingGraph
                cudaGraphNodeGetDependencies cudaGraphNodeGetDependentNodes cudaGraphNodeGetLocalId
                cudaGraphNodeGetToolsId cudaGraphRemoveDependencies;
            graph_exec: cudaGraphExecGetId;
            graph_node: cudaGraphAddNode;
            graph_params: cudaGraphKernelNodeCopyAttributes;
            launch: cudaLaunchHostFunc_v2 cudaLaunchHostFunc_v2_ptsz;
            managed: cudaMemAdvise cudaMemPrefetchAsync cudaMemPrefetchAsync_ptsz;
            memory: cudaPointerGetAttributes;
            pool: cudaMemGetDefaultMemPool cudaMemGetMemPool cudaMemSetMemPool;
            properties: cudaChooseDevice cudaGetDeviceProperties;
            stream: cudaStreamGetCaptureInfo cudaStreamGetCaptureInfo_ptsz cudaStreamUpdateCaptureDependencies
                cudaStreamUpdateCaptureDependencies_ptsz;
            texture: cudaCreateSurfaceObject cudaCreateTextureObject cudaGetSurfaceObjectResourceDesc
                cudaGetTextureObjectResourceDesc cudaGetTextureObjectResourceViewDesc;
        } }
    };
}

/// CUDA 12's runtime.
pub const TABLE_12: v12::Table = {
    use v12::Table;
    areas!(table_12)
};

/// CUDA 13's runtime.
pub const TABLE_13: v13::Table = {
    use v13::Table;
    areas!(table_13)
};
