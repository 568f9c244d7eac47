//! The driver as one table: what is implemented, and `NOT_SUPPORTED` for the rest.

use super::*;
use divvy_abi::Table;

/// The emulated driver.
pub const TABLE: Table = divvy_abi::implemented! { Table {
    array: cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayDestroy cuArrayGetDescriptor_v2
        cuArrayGetMemoryRequirements cuArrayGetSparseProperties cuMipmappedArrayCreate cuMipmappedArrayDestroy
        cuMipmappedArrayGetLevel cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties;
    array_copy: cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds cuMemcpyAtoHAsync_v2
        cuMemcpyAtoHAsync_v2_ptsz cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds
        cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds;
    capture: cuStreamBeginCapture cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz cuStreamBeginCapture_ptsz
        cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz cuStreamEndCapture cuStreamEndCapture_ptsz
        cuStreamGetCaptureInfo cuStreamGetCaptureInfo_ptsz cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v2_ptsz
        cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz cuStreamIsCapturing cuStreamIsCapturing_ptsz
        cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_ptsz cuStreamUpdateCaptureDependencies_v2
        cuStreamUpdateCaptureDependencies_v2_ptsz cuThreadExchangeStreamCaptureMode;
    context: cuCtxAttach cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy cuCtxDestroy_v2 cuCtxDetach
        cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice cuCtxGetDevice_v2 cuCtxGetFlags cuCtxGetId
        cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange cuCtxPopCurrent_v2 cuCtxPushCurrent_v2
        cuCtxResetPersistingL2Cache cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags cuCtxSetLimit
        cuCtxSetSharedMemConfig cuCtxSynchronize cuCtxSynchronize_v2;
    device: cuDeviceComputeCapability cuDeviceGet cuDeviceGetAttribute cuDeviceGetByPCIBusId cuDeviceGetCount
        cuDeviceGetExecAffinitySupport cuDeviceGetLuid cuDeviceGetName cuDeviceGetPCIBusId cuDeviceGetProperties
        cuDeviceGetUuid cuDeviceGetUuid_v2 cuDeviceTotalMem_v2;
    event: cuEventCreate cuEventDestroy cuEventDestroy_v2 cuEventElapsedTime cuEventElapsedTime_v2 cuEventQuery
        cuEventRecord cuEventRecordWithFlags cuEventRecordWithFlags_ptsz cuEventRecord_ptsz cuEventSynchronize;
    external: cuDestroyExternalMemory cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray
        cuImportExternalMemory;
    function: cuFuncGetAttribute cuFuncGetModule cuFuncGetName cuFuncGetParamCount cuFuncGetParamInfo cuFuncIsLoaded
        cuFuncLoad cuFuncSetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig;
    graph: cuGraphAddDependencies cuGraphAddDependencies_v2 cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphCreate
        cuGraphDebugDotPrint cuGraphDestroy cuGraphDestroyNode cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetId
        cuGraphGetNodes cuGraphGetRootNodes cuGraphNodeFindInClone cuGraphNodeGetContainingGraph
        cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes
        cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetLocalId cuGraphNodeGetToolsId cuGraphNodeGetType
        cuGraphRemoveDependencies cuGraphRemoveDependencies_v2;
    graph_exec: cuGraphExecBatchMemOpNodeSetParams cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy
        cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent cuGraphExecGetFlags cuGraphExecGetId
        cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
        cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate
        cuGraphExecUpdate_v2 cuGraphInstantiate cuGraphInstantiateWithFlags cuGraphInstantiateWithParams
        cuGraphInstantiateWithParams_ptsz cuGraphInstantiate_v2 cuGraphLaunch cuGraphLaunch_ptsz cuGraphNodeGetEnabled
        cuGraphNodeSetEnabled cuGraphUpload cuGraphUpload_ptsz;
    graph_memory: cuDeviceGetGraphMemAttribute cuDeviceGraphMemTrim cuDeviceSetGraphMemAttribute
        cuGraphReleaseUserObject cuGraphRetainUserObject cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain;
    graph_nodes: cuGraphAddBatchMemOpNode cuGraphAddChildGraphNode cuGraphAddEmptyNode cuGraphAddEventRecordNode
        cuGraphAddEventWaitNode cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddKernelNode_v2 cuGraphAddMemAllocNode
        cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddNode cuGraphAddNode_v2
        cuGraphAddNode_v3;
    graph_params: cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams cuGraphEventRecordNodeGetEvent
        cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent
        cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute
        cuGraphKernelNodeGetParams cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetAttribute
        cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2 cuGraphMemAllocNodeGetParams
        cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams
        cuGraphMemsetNodeSetParams cuGraphNodeGetParams cuGraphNodeSetParams cuGraphNodeSetParams_v2;
    host_memory: cuMemAllocHost_v2 cuMemFreeHost cuMemHostAlloc cuMemHostGetDevicePointer_v2 cuMemHostGetFlags
        cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister;
    init: cuDriverGetVersion cuGetErrorName cuGetErrorString cuGetExportTable cuInit cuProfilerStart cuProfilerStop;
    ipc: cuIpcCloseMemHandle cuIpcGetMemHandle cuIpcOpenMemHandle cuIpcOpenMemHandle_v2;
    ipc_event: cuIpcGetEventHandle cuIpcOpenEventHandle;
    launch: cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz cuLaunchKernel cuLaunchKernelEx
        cuLaunchKernelEx_ptsz cuLaunchKernel_ptsz;
    library: cuKernelGetAttribute cuKernelGetFunction cuKernelGetLibrary cuKernelGetName cuKernelGetParamCount
        cuKernelGetParamInfo cuKernelSetAttribute cuKernelSetCacheConfig cuLibraryEnumerateKernels cuLibraryGetGlobal
        cuLibraryGetKernel cuLibraryGetKernelCount cuLibraryGetManaged cuLibraryGetModule cuLibraryGetUnifiedFunction
        cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload;
    link: cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy;
    managed: cuMemAdvise cuMemAdvise_v2 cuMemAllocManaged cuMemPrefetchAsync cuMemPrefetchAsync_ptsz
        cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz cuMemRangeGetAttribute cuMemRangeGetAttributes
        cuStreamAttachMemAsync cuStreamAttachMemAsync_ptsz;
    memcpy: cuMemcpy cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds
        cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz cuMemcpy3DPeer cuMemcpy3DPeerAsync
        cuMemcpy3DPeerAsync_ptsz cuMemcpy3DPeer_ptds cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpyAsync cuMemcpyAsync_ptsz
        cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds cuMemcpyDtoHAsync_v2
        cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz
        cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds cuMemcpyPeer cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz cuMemcpyPeer_ptds
        cuMemcpy_ptds;
    memop: cuStreamBatchMemOp cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz
        cuStreamWaitValue32 cuStreamWaitValue32_ptsz cuStreamWaitValue32_v2 cuStreamWaitValue32_v2_ptsz
        cuStreamWaitValue64 cuStreamWaitValue64_ptsz cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz
        cuStreamWriteValue32 cuStreamWriteValue32_ptsz cuStreamWriteValue32_v2 cuStreamWriteValue32_v2_ptsz
        cuStreamWriteValue64 cuStreamWriteValue64_ptsz cuStreamWriteValue64_v2 cuStreamWriteValue64_v2_ptsz;
    memory: cuMemAllocPitch_v2 cuMemAlloc_v2 cuMemFree_v2 cuMemGetAddressRange_v2 cuMemGetInfo_v2;
    memset: cuMemsetD16Async cuMemsetD16Async_ptsz cuMemsetD16_v2 cuMemsetD16_v2_ptds cuMemsetD2D16Async
        cuMemsetD2D16Async_ptsz cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds cuMemsetD2D32Async cuMemsetD2D32Async_ptsz
        cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds cuMemsetD2D8Async cuMemsetD2D8Async_ptsz cuMemsetD2D8_v2
        cuMemsetD2D8_v2_ptds cuMemsetD32Async cuMemsetD32Async_ptsz cuMemsetD32_v2 cuMemsetD32_v2_ptds cuMemsetD8Async
        cuMemsetD8Async_ptsz cuMemsetD8_v2 cuMemsetD8_v2_ptds;
    module: cuModuleEnumerateFunctions cuModuleGetFunction cuModuleGetFunctionCount cuModuleGetGlobal_v2
        cuModuleGetLoadingMode cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuModuleUnload;
    occupancy: cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxPotentialBlockSize
        cuOccupancyMaxPotentialBlockSizeWithFlags;
    peer: cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuDeviceCanAccessPeer cuDeviceGetP2PAttribute;
    pointer: cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute;
    pool: cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceSetMemPool cuMemAllocAsync cuMemAllocAsync_ptsz
        cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz cuMemFreeAsync cuMemFreeAsync_ptsz cuMemGetDefaultMemPool
        cuMemGetMemPool cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAccess cuMemPoolGetAttribute cuMemPoolSetAccess
        cuMemPoolSetAttribute cuMemPoolTrimTo cuMemSetMemPool;
    pool_share: cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle
        cuMemPoolImportPointer;
    primary: cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset
        cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxSetFlags_v2;
    procaddress: cuGetProcAddress cuGetProcAddress_v2;
    shareable: cuMemExportToShareableHandle cuMemImportFromShareableHandle;
    stream: cuLaunchHostFunc cuLaunchHostFunc_ptsz cuLaunchHostFunc_v2 cuLaunchHostFunc_v2_ptsz cuStreamAddCallback
        cuStreamAddCallback_ptsz cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy cuStreamDestroy_v2
        cuStreamGetCtx cuStreamGetCtx_ptsz cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz cuStreamGetDevice
        cuStreamGetDevice_ptsz cuStreamGetFlags cuStreamGetFlags_ptsz cuStreamGetId cuStreamGetId_ptsz
        cuStreamGetPriority cuStreamGetPriority_ptsz cuStreamQuery cuStreamQuery_ptsz cuStreamSynchronize
        cuStreamSynchronize_ptsz cuStreamWaitEvent cuStreamWaitEvent_ptsz;
    texture: cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc cuTexObjectCreate cuTexObjectDestroy
        cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc;
    vmm: cuMemAddressFree cuMemAddressReserve cuMemCreate cuMemGetAccess cuMemGetAllocationGranularity
        cuMemGetAllocationPropertiesFromHandle cuMemMap cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess
        cuMemUnmap;
} };
