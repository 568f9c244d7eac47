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
pub const TABLE: Table = divvy_abi::implemented! { Table over FORWARD {
    self: cuInit;
    allocate: cuMemAlloc cuMemAlloc_v2 cuMemAllocPitch cuMemAllocPitch_v2 cuMemAllocManaged;
    pool: cuMemAllocAsync cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz
        cuMemPoolCreate cuMemPoolDestroy cuMemPoolTrimTo cuMemPoolSetAttribute cuDeviceGetDefaultMemPool
        cuDeviceGetMemPool cuMemGetDefaultMemPool cuMemGetMemPool;
    launch: cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx cuLaunchKernelEx_ptsz
        cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz cuLaunchCooperativeKernelMultiDevice
        cuLaunch cuLaunchGrid cuLaunchGridAsync;
    capture: cuStreamBeginCapture cuStreamBeginCapture_ptsz cuStreamBeginCapture_v2
        cuStreamBeginCapture_v2_ptsz cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz
        cuStreamEndCapture cuStreamEndCapture_ptsz;
    synchronize: cuStreamSynchronize cuStreamSynchronize_ptsz cuEventSynchronize cuCtxSynchronize
        cuCtxSynchronize_v2 cuStreamDestroy cuStreamDestroy_v2;
    vmm: cuMemCreate cuMemRelease cuMemRetainAllocationHandle cuMemMap cuMemUnmap cuMemMapArrayAsync
        cuMemMapArrayAsync_ptsz cuMemExportToShareableHandle cuMemImportFromShareableHandle
        cuMulticastBindMem cuMulticastBindMem_v2 cuMulticastBindAddr cuMulticastBindAddr_v2;
    array: cuArrayCreate cuArrayCreate_v2 cuArray3DCreate cuArray3DCreate_v2 cuMipmappedArrayCreate
        cuArrayDestroy cuMipmappedArrayDestroy;
    share: cuIpcGetMemHandle cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 cuIpcCloseMemHandle
        cuMemPoolExportPointer cuMemPoolImportPointer cuImportExternalMemory cuDestroyExternalMemory
        cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray;
    graph: cuGraphInstantiate cuGraphInstantiate_v2 cuGraphInstantiateWithFlags cuGraphInstantiateWithParams
        cuGraphInstantiateWithParams_ptsz cuGraphLaunch cuGraphLaunch_ptsz cuGraphUpload cuGraphUpload_ptsz
        cuGraphExecDestroy cuDeviceGraphMemTrim;
    module: cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuLibraryLoadData
        cuLibraryLoadFromFile cuModuleUnload cuLibraryUnload;
    free: cuMemFree cuMemFree_v2 cuMemFreeAsync cuMemFreeAsync_ptsz;
    information: cuMemGetInfo cuMemGetInfo_v2 cuDeviceTotalMem cuDeviceTotalMem_v2;
    context: cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuGreenCtxCreate cuGreenCtxDestroy
        cuCtxAttach cuCtxDetach cuCtxDestroy cuCtxDestroy_v2 cuDevicePrimaryCtxRetain
        cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset
        cuDevicePrimaryCtxReset_v2;
    heap: cuCtxSetLimit;
    proc_address: cuGetProcAddress cuGetProcAddress_v2;
} };

/// Whether the limiter has a function of its own for a symbol.
pub fn is_hooked(symbol: Symbol) -> bool {
    !core::ptr::eq(TABLE.address(symbol), FORWARD.address(symbol))
}

/// Joins the slice, then initialises the driver below. The order ensures that a process that cannot be limited never
/// reaches a device.
#[allow(non_snake_case, reason = "the driver's name")]
unsafe extern "C-unwind" fn cuInit(flags: u32) -> CUresult {
    guard(|| match tenant::join() {
        // SAFETY: the argument is handed on as it came.
        Ok(_) => unsafe { forward::cuInit(flags) },
        Err(code) => code,
    })
}
