//! OpenCL as the limiter sees it: a CUDA driver below.
//!
//! The limiter charges physical memory and gates launches through a table of CUDA's functions. Those that it needs are
//! here, and every other one answers "not supported". A call that the limiter makes on the program's behalf carries
//! what OpenCL is to do as a pointer to a [`Call`], in an argument that the limiter hands on as it came.
//!
//! A context is an ordinal's primary one, which lives as long as the process. A stream is a command queue, an event is a
//! `marks::Event`.
#![allow(non_snake_case, reason = "the driver's names")]

use core::cell::Cell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use divvy_abi::{
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CU_MEM_ALLOCATION_TYPE_PINNED,
    CU_MEM_LOCATION_TYPE_DEVICE, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUDA_SUCCESS, CUcontext, CUdevice, CUevent, CUfunction,
    CUlaunchAttribute, CUlaunchConfig, CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult, CUstream,
    CUuuid, Table, c_char,
};

use crate::below;
use crate::cl::*;
use crate::devices;
use crate::marks::Event;
use crate::queues;

/// What OpenCL is to do for the limiter's call.
pub(crate) type Call<'a> = &'a mut dyn FnMut() -> CUresult;

/// The driver below the limiter.
pub(crate) static TABLE: Table = Table {
    cuInit,
    cuDeviceGetUuid,
    cuDeviceGetUuid_v2: cuDeviceGetUuid,
    cuDeviceTotalMem_v2,
    cuMemGetInfo_v2,
    cuCtxGetCurrent,
    cuCtxSetCurrent,
    cuCtxGetDevice,
    cuCtxSynchronize,
    cuDevicePrimaryCtxRetain,
    cuMemCreate,
    cuMemRelease,
    cuLaunchKernel,
    cuLaunchKernelEx,
    cuStreamGetCtx,
    cuStreamQuery,
    cuStreamDestroy_v2: cuStreamDestroy,
    cuEventCreate,
    cuEventRecord,
    cuEventQuery,
    cuEventElapsedTime,
    cuEventDestroy_v2: cuEventDestroy,
    ..Table::UNSUPPORTED
};

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code of ours panics halfway through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The thread's current device, as an ordinal.
    static CURRENT: Cell<i32> = const { Cell::new(-1) };
}

/// Calls of this thread concern the device with this ordinal.
pub(crate) fn stand_in(ordinal: i32) {
    CURRENT.set(ordinal);
}

/// Whether this process is in a slice and counted there. A forked child is not: its tables are copies of its parent's, and
/// their locks may be held for ever.
pub(crate) fn is_counted() -> bool {
    divvy_limiter::account::keeps_charges()
}

/// The primary context of an ordinal. Never null.
fn context(ordinal: i32) -> CUcontext {
    (ordinal as usize).wrapping_add(1) as CUcontext
}

/// Takes `bytes` of an ordinal's account while `call` makes the object. Returns the handle by which [`release`] gives them
/// back.
///
/// # Errors
/// The limiter's code, or that of `call`.
pub(crate) fn take(ordinal: i32, bytes: usize, mut call: Call<'_>) -> Result<u64, CUresult> {
    stand_in(ordinal);
    let mut properties = CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        ..Default::default()
    };
    properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.anonymous1.id = ordinal;
    let mut handle = 0;
    const LIMITER: unsafe extern "C-unwind" fn(
        *mut CUmemGenericAllocationHandle,
        usize,
        *const CUmemAllocationProp,
        u64,
    ) -> CUresult = divvy_limiter::TABLE.cuMemCreate;
    // SAFETY: valid in- and out-parameters; the flags reach our own function below, within this call.
    let result = unsafe {
        LIMITER(
            &raw mut handle,
            bytes,
            &raw const properties,
            (&raw mut call).expose_provenance() as u64,
        )
    };
    result.ok()?;
    Ok(handle)
}

/// Gives back what [`take`] took.
pub(crate) fn release(handle: u64) {
    const LIMITER: unsafe extern "C-unwind" fn(CUmemGenericAllocationHandle) -> CUresult =
        divvy_limiter::TABLE.cuMemRelease;
    // SAFETY: a handle of ours.
    let _released = unsafe { LIMITER(handle) };
}

/// Charges a context of the device, once for the process.
///
/// # Errors
/// The limiter's code.
pub(crate) fn begin_context(ordinal: i32) -> Result<(), CUresult> {
    stand_in(ordinal);
    let mut context = core::ptr::null_mut();
    const LIMITER: unsafe extern "C-unwind" fn(*mut CUcontext, CUdevice) -> CUresult =
        divvy_limiter::TABLE.cuDevicePrimaryCtxRetain;
    // SAFETY: a valid out-parameter.
    unsafe { LIMITER(&raw mut context, ordinal) }.ok()
}

/// Bytes of the device as the slice sees it: free, and all.
pub(crate) fn memory(ordinal: i32) -> Option<(u64, u64)> {
    stand_in(ordinal);
    let (mut free, mut all) = (0_usize, 0_usize);
    const INFO: unsafe extern "C-unwind" fn(*mut usize, *mut usize) -> CUresult =
        divvy_limiter::TABLE.cuMemGetInfo_v2;
    const TOTAL: unsafe extern "C-unwind" fn(*mut usize, CUdevice) -> CUresult =
        divvy_limiter::TABLE.cuDeviceTotalMem_v2;
    let mut ignored = 0_usize;
    // SAFETY: valid out-parameters.
    unsafe {
        INFO(&raw mut free, &raw mut ignored).ok().ok()?;
        TOTAL(&raw mut all, ordinal).ok().ok()?;
    }
    Some((free as u64, all as u64))
}

/// A launch as the gate tells it apart from others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    /// The kernel, or what else runs.
    pub what: usize,
    /// Work-groups, or work-items where the driver chooses the groups.
    pub grid: [u32; 3],
    /// Work-items of a group; 0 where the driver chooses.
    pub block: [u32; 3],
}

/// Launches by `call` as soon as the gate allows it.
pub(crate) fn launch(
    queue: cl_command_queue,
    in_order: bool,
    launch: Launch,
    mut call: Call<'_>,
) -> CUresult {
    const IN_ORDER: unsafe extern "C-unwind" fn(
        CUfunction,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        CUstream,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> CUresult = divvy_limiter::TABLE.cuLaunchKernel;
    const CONFIGURED: unsafe extern "C-unwind" fn(
        *const CUlaunchConfig,
        CUfunction,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> CUresult = divvy_limiter::TABLE.cuLaunchKernelEx;
    let function = launch.what as CUfunction;
    let ([x, y, z], [width, height, depth]) = (launch.grid, launch.block);
    let parameters = (&raw mut call).cast::<*mut c_void>();
    let none = core::ptr::null_mut();
    if in_order {
        // SAFETY: the parameters reach our own function below, within this call; the limiter looks at none of them.
        return unsafe {
            IN_ORDER(
                function,
                x,
                y,
                z,
                width,
                height,
                depth,
                0,
                queue as CUstream,
                parameters,
                none,
            )
        };
    }
    // Commands of such a queue overlap: no time lies between two markers of it.
    let mut overlaps = CUlaunchAttribute {
        id: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        ..Default::default()
    };
    overlaps.value.programmaticStreamSerializationAllowed = 1;
    let config = CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: width,
        blockDimY: height,
        blockDimZ: depth,
        sharedMemBytes: 0,
        hStream: queue as CUstream,
        attrs: &raw mut overlaps,
        numAttrs: 1,
    };
    // SAFETY: as above; the configuration lives for this call.
    unsafe { CONFIGURED(&raw const config, function, parameters, none) }
}

/// A queue is about to end: what it still runs goes on.
pub(crate) fn queue_ends(queue: cl_command_queue, ordinal: i32) {
    stand_in(ordinal);
    const LIMITER: unsafe extern "C-unwind" fn(CUstream) -> CUresult =
        divvy_limiter::TABLE.cuStreamDestroy_v2;
    // SAFETY: a live queue.
    let _ended = unsafe { LIMITER(queue as CUstream) };
}

/// # Safety
/// `call` is the pointer that [`take`] or [`launch`] made, within its call.
unsafe fn run(call: *mut c_void) -> CUresult {
    if call.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's promise: no other code holds it.
    let call = unsafe { &mut *call.cast::<Call<'_>>() };
    call()
}

/// # Safety
/// `out` is null or valid for writing.
unsafe fn put<T>(out: *mut T, value: T) -> CUresult {
    if out.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn cuInit(_flags: u32) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn cuDeviceGetUuid(out: *mut CUuuid, device: CUdevice) -> CUresult {
    let bytes = devices::uuid(device).map(|byte| byte as c_char);
    // SAFETY: the limiter's own out-parameter.
    unsafe { put(out, CUuuid { bytes }) }
}

/// Bytes of the whole device, as its driver tells.
fn all_bytes(ordinal: i32) -> Option<usize> {
    let device = devices::handle(ordinal)?;
    // SAFETY: a device of the driver's.
    let bytes = unsafe { below::of_device::<u64>(device, CL_DEVICE_GLOBAL_MEM_SIZE) }?;
    usize::try_from(bytes).ok()
}

unsafe extern "C-unwind" fn cuDeviceTotalMem_v2(out: *mut usize, device: CUdevice) -> CUresult {
    match all_bytes(device) {
        // SAFETY: our own out-parameter.
        Some(bytes) => unsafe { put(out, bytes) },
        None => CUDA_ERROR_INVALID_DEVICE,
    }
}

/// OpenCL does not tell how much is free: what the device has bounds it.
unsafe extern "C-unwind" fn cuMemGetInfo_v2(free: *mut usize, all: *mut usize) -> CUresult {
    match all_bytes(CURRENT.get()) {
        // SAFETY: our own out-parameters.
        Some(bytes) => unsafe {
            put(free, bytes);
            put(all, bytes)
        },
        None => CUDA_ERROR_INVALID_DEVICE,
    }
}

unsafe extern "C-unwind" fn cuCtxGetCurrent(out: *mut CUcontext) -> CUresult {
    // SAFETY: the limiter's own out-parameter.
    unsafe { put(out, context(CURRENT.get())) }
}

unsafe extern "C-unwind" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    stand_in((context as usize).wrapping_sub(1) as i32);
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn cuCtxGetDevice(out: *mut CUdevice) -> CUresult {
    match CURRENT.get() {
        ordinal @ 0.. => {
            // SAFETY: the limiter's own out-parameter.
            unsafe { put(out, ordinal) }
        }
        _ => CUDA_ERROR_INVALID_DEVICE,
    }
}

/// Waits for all that this process's queues of the device have in flight. Only threads of the limiter call it.
///
/// A queue may wait for an event of the program's own, and the program for a lease, which it gets from the waiting
/// thread. So the wait ends after a time: work that lasts on is then not waited for.
unsafe extern "C-unwind" fn cuCtxSynchronize() -> CUresult {
    const PAUSE: Duration = Duration::from_micros(100);
    const LONGEST: Duration = Duration::from_secs(2);
    let until = Instant::now() + LONGEST;
    for queue in queues::of_ordinal(CURRENT.get()) {
        while queue.is_running() {
            if Instant::now() >= until {
                return CUDA_ERROR_NOT_READY;
            }
            std::thread::sleep(PAUSE);
        }
    }
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: CUdevice) -> CUresult {
    // SAFETY: our own out-parameter.
    unsafe { put(out, context(device)) }
}

unsafe extern "C-unwind" fn cuMemCreate(
    out: *mut CUmemGenericAllocationHandle,
    _bytes: usize,
    _properties: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // SAFETY: `take` made it, and waits for this call.
    let result = unsafe { run(core::ptr::with_exposed_provenance_mut(flags as usize)) };
    if result != CUDA_SUCCESS {
        return result;
    }
    // SAFETY: the out-parameter of `take`.
    unsafe { put(out, NEXT.fetch_add(1, Ordering::Relaxed)) }
}

unsafe extern "C-unwind" fn cuMemRelease(_handle: CUmemGenericAllocationHandle) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn cuLaunchKernel(
    _function: CUfunction,
    _x: u32,
    _y: u32,
    _z: u32,
    _width: u32,
    _height: u32,
    _depth: u32,
    _shared: u32,
    _stream: CUstream,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: `launch` made it, and waits for this call.
    unsafe { run(parameters.cast()) }
}

unsafe extern "C-unwind" fn cuLaunchKernelEx(
    _config: *const CUlaunchConfig,
    _function: CUfunction,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: as above.
    unsafe { run(parameters.cast()) }
}

unsafe extern "C-unwind" fn cuStreamGetCtx(stream: CUstream, out: *mut CUcontext) -> CUresult {
    match queues::known(stream as cl_command_queue) {
        // SAFETY: the limiter's own out-parameter.
        Some(queue) => unsafe { put(out, context(queue.ordinal)) },
        None => CUDA_ERROR_INVALID_HANDLE,
    }
}

unsafe extern "C-unwind" fn cuStreamQuery(stream: CUstream) -> CUresult {
    match queues::known(stream as cl_command_queue) {
        Some(queue) if queue.is_running() => CUDA_ERROR_NOT_READY,
        _ => CUDA_SUCCESS,
    }
}

unsafe extern "C-unwind" fn cuStreamDestroy(_stream: CUstream) -> CUresult {
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn cuEventCreate(out: *mut CUevent, _flags: u32) -> CUresult {
    let event = Box::into_raw(Box::new(Event::new()));
    // SAFETY: the limiter's own out-parameter.
    unsafe { put(out, event.cast()) }
}

/// # Safety
/// The event is one of ours and not destroyed.
unsafe fn event<'a>(event: CUevent) -> &'a Event {
    // SAFETY: the caller's promise: `cuEventCreate` made it.
    unsafe { &*event.cast::<Event>() }
}

unsafe extern "C-unwind" fn cuEventRecord(of: CUevent, stream: CUstream) -> CUresult {
    // SAFETY: the limiter's own event, and a live queue.
    match unsafe { event(of).record(stream as cl_command_queue) } {
        true => CUDA_SUCCESS,
        false => CUDA_ERROR_INVALID_HANDLE,
    }
}

unsafe extern "C-unwind" fn cuEventQuery(of: CUevent) -> CUresult {
    // SAFETY: the limiter's own event.
    match unsafe { event(of) }.done_ns() {
        Some(_) => CUDA_SUCCESS,
        None => CUDA_ERROR_NOT_READY,
    }
}

unsafe extern "C-unwind" fn cuEventElapsedTime(out: *mut f32, from: CUevent, to: CUevent) -> CUresult {
    // SAFETY: the limiter's own events.
    let (from, to) = unsafe { (event(from).done_ns(), event(to).done_ns()) };
    match (from, to) {
        (Some(from), Some(to)) => {
            // SAFETY: the limiter's own out-parameter.
            unsafe { put(out, (to.saturating_sub(from) as f64 / 1e6) as f32) }
        }
        _ => CUDA_ERROR_NOT_READY,
    }
}

unsafe extern "C-unwind" fn cuEventDestroy(of: CUevent) -> CUresult {
    // SAFETY: the limiter's own event, which it forgets with this call.
    drop(unsafe { Box::from_raw(of.cast::<Event>()) });
    CUDA_SUCCESS
}
