//! The limiter's own functions, one file per area, and the table they stand in.
//!
//! Each catches its own panics ([`divvy_abi::guard`]); every other symbol is a jump into the driver below.

mod allocate;
mod array;
mod capture;
mod context;
mod descriptor;
mod free;
mod graph;
mod heap;
mod information;
mod launch;
mod module;
mod pool;
mod proc_address;
mod share;
mod synchronize;
mod vmm;

use divvy_abi::{CUresult, Symbol, Table, guard};

use crate::below::{FORWARD, forward};
use crate::tenant;

pub use proc_address::unknown_addresses;

/// The limiter as a driver.
pub const TABLE: Table = Table {
    cuInit: init,

    cuMemAlloc: allocate::cuMemAlloc,
    cuMemAlloc_v2: allocate::cuMemAlloc_v2,
    cuMemAllocPitch: allocate::cuMemAllocPitch,
    cuMemAllocPitch_v2: allocate::cuMemAllocPitch_v2,
    cuMemAllocManaged: allocate::cuMemAllocManaged,

    cuMemAllocAsync: pool::cuMemAllocAsync,
    cuMemAllocAsync_ptsz: pool::cuMemAllocAsync_ptsz,
    cuMemAllocFromPoolAsync: pool::cuMemAllocFromPoolAsync,
    cuMemAllocFromPoolAsync_ptsz: pool::cuMemAllocFromPoolAsync_ptsz,
    cuMemPoolCreate: pool::cuMemPoolCreate,
    cuMemPoolDestroy: pool::cuMemPoolDestroy,
    cuMemPoolTrimTo: pool::cuMemPoolTrimTo,
    cuMemPoolSetAttribute: pool::cuMemPoolSetAttribute,
    cuDeviceGetDefaultMemPool: pool::cuDeviceGetDefaultMemPool,
    cuDeviceGetMemPool: pool::cuDeviceGetMemPool,
    cuMemGetDefaultMemPool: pool::cuMemGetDefaultMemPool,
    cuMemGetMemPool: pool::cuMemGetMemPool,

    cuLaunchKernel: launch::cuLaunchKernel,
    cuLaunchKernel_ptsz: launch::cuLaunchKernel_ptsz,
    cuLaunchKernelEx: launch::cuLaunchKernelEx,
    cuLaunchKernelEx_ptsz: launch::cuLaunchKernelEx_ptsz,
    cuLaunchCooperativeKernel: launch::cuLaunchCooperativeKernel,
    cuLaunchCooperativeKernel_ptsz: launch::cuLaunchCooperativeKernel_ptsz,
    cuLaunchCooperativeKernelMultiDevice: launch::cuLaunchCooperativeKernelMultiDevice,
    cuLaunch: launch::cuLaunch,
    cuLaunchGrid: launch::cuLaunchGrid,
    cuLaunchGridAsync: launch::cuLaunchGridAsync,

    cuStreamBeginCapture: capture::cuStreamBeginCapture,
    cuStreamBeginCapture_ptsz: capture::cuStreamBeginCapture_ptsz,
    cuStreamBeginCapture_v2: capture::cuStreamBeginCapture_v2,
    cuStreamBeginCapture_v2_ptsz: capture::cuStreamBeginCapture_v2_ptsz,
    cuStreamBeginCaptureToGraph: capture::cuStreamBeginCaptureToGraph,
    cuStreamBeginCaptureToGraph_ptsz: capture::cuStreamBeginCaptureToGraph_ptsz,
    cuStreamEndCapture: capture::cuStreamEndCapture,
    cuStreamEndCapture_ptsz: capture::cuStreamEndCapture_ptsz,

    cuStreamSynchronize: synchronize::cuStreamSynchronize,
    cuStreamSynchronize_ptsz: synchronize::cuStreamSynchronize_ptsz,
    cuEventSynchronize: synchronize::cuEventSynchronize,
    cuCtxSynchronize: synchronize::cuCtxSynchronize,
    cuCtxSynchronize_v2: synchronize::cuCtxSynchronize_v2,
    cuStreamDestroy: synchronize::cuStreamDestroy,
    cuStreamDestroy_v2: synchronize::cuStreamDestroy_v2,

    cuMemCreate: vmm::cuMemCreate,
    cuMemRelease: vmm::cuMemRelease,
    cuMemRetainAllocationHandle: vmm::cuMemRetainAllocationHandle,
    cuMemMap: vmm::cuMemMap,
    cuMemUnmap: vmm::cuMemUnmap,
    cuMemMapArrayAsync: vmm::cuMemMapArrayAsync,
    cuMemMapArrayAsync_ptsz: vmm::cuMemMapArrayAsync_ptsz,
    cuMemExportToShareableHandle: vmm::cuMemExportToShareableHandle,
    cuMemImportFromShareableHandle: vmm::cuMemImportFromShareableHandle,
    cuMulticastBindMem: vmm::cuMulticastBindMem,
    cuMulticastBindMem_v2: vmm::cuMulticastBindMem_v2,
    cuMulticastBindAddr: vmm::cuMulticastBindAddr,
    cuMulticastBindAddr_v2: vmm::cuMulticastBindAddr_v2,

    cuArrayCreate: array::cuArrayCreate,
    cuArrayCreate_v2: array::cuArrayCreate_v2,
    cuArray3DCreate: array::cuArray3DCreate,
    cuArray3DCreate_v2: array::cuArray3DCreate_v2,
    cuMipmappedArrayCreate: array::cuMipmappedArrayCreate,
    cuArrayDestroy: array::cuArrayDestroy,
    cuMipmappedArrayDestroy: array::cuMipmappedArrayDestroy,

    cuIpcGetMemHandle: share::cuIpcGetMemHandle,
    cuIpcOpenMemHandle: share::cuIpcOpenMemHandle,
    cuIpcOpenMemHandle_v2: share::cuIpcOpenMemHandle_v2,
    cuIpcCloseMemHandle: share::cuIpcCloseMemHandle,
    cuMemPoolExportPointer: share::cuMemPoolExportPointer,
    cuMemPoolImportPointer: share::cuMemPoolImportPointer,
    cuImportExternalMemory: share::cuImportExternalMemory,
    cuDestroyExternalMemory: share::cuDestroyExternalMemory,
    cuExternalMemoryGetMappedBuffer: share::cuExternalMemoryGetMappedBuffer,
    cuExternalMemoryGetMappedMipmappedArray: share::cuExternalMemoryGetMappedMipmappedArray,

    cuGraphInstantiate: graph::cuGraphInstantiate,
    cuGraphInstantiate_v2: graph::cuGraphInstantiate_v2,
    cuGraphInstantiateWithFlags: graph::cuGraphInstantiateWithFlags,
    cuGraphInstantiateWithParams: graph::cuGraphInstantiateWithParams,
    cuGraphInstantiateWithParams_ptsz: graph::cuGraphInstantiateWithParams_ptsz,
    cuGraphLaunch: graph::cuGraphLaunch,
    cuGraphLaunch_ptsz: graph::cuGraphLaunch_ptsz,
    cuGraphUpload: graph::cuGraphUpload,
    cuGraphUpload_ptsz: graph::cuGraphUpload_ptsz,
    cuGraphExecDestroy: graph::cuGraphExecDestroy,
    cuDeviceGraphMemTrim: graph::cuDeviceGraphMemTrim,

    cuModuleLoad: module::cuModuleLoad,
    cuModuleLoadData: module::cuModuleLoadData,
    cuModuleLoadDataEx: module::cuModuleLoadDataEx,
    cuModuleLoadFatBinary: module::cuModuleLoadFatBinary,
    cuLibraryLoadData: module::cuLibraryLoadData,
    cuLibraryLoadFromFile: module::cuLibraryLoadFromFile,
    cuModuleUnload: module::cuModuleUnload,
    cuLibraryUnload: module::cuLibraryUnload,

    cuMemFree: free::cuMemFree,
    cuMemFree_v2: free::cuMemFree_v2,
    cuMemFreeAsync: free::cuMemFreeAsync,
    cuMemFreeAsync_ptsz: free::cuMemFreeAsync_ptsz,

    cuMemGetInfo: information::cuMemGetInfo,
    cuMemGetInfo_v2: information::cuMemGetInfo_v2,
    cuDeviceTotalMem: information::cuDeviceTotalMem,
    cuDeviceTotalMem_v2: information::cuDeviceTotalMem_v2,

    cuCtxCreate: context::cuCtxCreate,
    cuCtxCreate_v2: context::cuCtxCreate_v2,
    cuCtxCreate_v3: context::cuCtxCreate_v3,
    cuCtxCreate_v4: context::cuCtxCreate_v4,
    cuGreenCtxCreate: context::cuGreenCtxCreate,
    cuGreenCtxDestroy: context::cuGreenCtxDestroy,
    cuCtxAttach: context::cuCtxAttach,
    cuCtxDetach: context::cuCtxDetach,
    cuCtxDestroy: context::cuCtxDestroy,
    cuCtxDestroy_v2: context::cuCtxDestroy_v2,
    cuDevicePrimaryCtxRetain: context::cuDevicePrimaryCtxRetain,
    cuDevicePrimaryCtxRelease: context::cuDevicePrimaryCtxRelease,
    cuDevicePrimaryCtxRelease_v2: context::cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxReset: context::cuDevicePrimaryCtxReset,
    cuDevicePrimaryCtxReset_v2: context::cuDevicePrimaryCtxReset_v2,
    cuCtxSetLimit: heap::cuCtxSetLimit,

    cuGetProcAddress: proc_address::cuGetProcAddress,
    cuGetProcAddress_v2: proc_address::cuGetProcAddress_v2,

    ..FORWARD
};

/// Whether the limiter has a function of its own for a symbol.
pub fn is_hooked(symbol: Symbol) -> bool {
    !core::ptr::eq(TABLE.address(symbol), FORWARD.address(symbol))
}

/// Joins the slice, then initialises the driver below. The order ensures that a process that cannot be limited never
/// reaches a device.
unsafe extern "C-unwind" fn init(flags: u32) -> CUresult {
    guard(|| match tenant::join() {
        // SAFETY: the argument is handed on as it came.
        Ok(_) => unsafe { forward::cuInit(flags) },
        Err(code) => code,
    })
}
