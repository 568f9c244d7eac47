//! The driver below, as the charges crate uses it.

use core::mem::MaybeUninit;

use divvy_abi::{
    CU_DEVICE_CPU, CU_EVENT_DISABLE_TIMING, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
    CU_MEM_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_MEM_ALLOC_GRANULARITY_MINIMUM,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
    CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_DEINITIALIZED,
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUevent,
    CUmemAllocationProp, CUmemoryPool, CUpointer_attribute, CUresult, CUstream, Symbol,
};
use divvy_charges::UNIT;
use divvy_charges::environment::{Driver, Progress, Stream, StreamId};

use crate::below::ask::{self, Quiet};
use crate::below::{self, forward};

/// The driver below and the accounts of this process. Its whole state is process-wide.
pub(crate) struct Native;

/// A stream as a call names it.
pub(crate) fn stream(handle: CUstream, per_thread: bool) -> Stream {
    let handle = handle as usize;
    Stream { handle, per_thread }
}

fn this_thread() -> usize {
    // SAFETY: always callable.
    unsafe { libc::pthread_self() as usize }
}

/// An attribute that the driver reports for a pointer; a `T` is as wide as the attribute.
fn attribute<T: Copy>(which: CUpointer_attribute, pointer: CUdeviceptr, mut value: T) -> Result<T, CUresult> {
    // SAFETY: `value` is as wide as the attribute, by the callers below; the driver checks the pointer.
    unsafe { forward::cuPointerGetAttribute((&raw mut value).cast(), which, pointer) }.ok()?;
    Ok(value)
}

impl Driver for Native {
    fn granularity(&self) -> Option<u64> {
        if !below::has(Symbol::cuMemGetAllocationGranularity) {
            return Some(UNIT);
        }
        let mut properties = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            ..Default::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.anonymous1.id = ask::current_device()?;
        let mut page = 0;
        // SAFETY: valid in- and out-parameters.
        let result = unsafe {
            forward::cuMemGetAllocationGranularity(
                &raw mut page,
                &raw const properties,
                CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        };
        // A failure may mean that the query came too early.
        result.is_success().then_some(page as u64)
    }

    fn pool_reserved(&self, pool: usize) -> Option<u64> {
        let mut held: u64 = 0;
        // SAFETY: a live pool: a pool is forgotten before it is destroyed; the attribute is 8 bytes wide.
        let result = unsafe {
            forward::cuMemPoolGetAttribute(
                pool as CUmemoryPool,
                CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                (&raw mut held).cast(),
            )
        };
        result.is_success().then_some(held)
    }

    fn trim_pool(&self, pool: usize, keep: u64) {
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        // SAFETY: a live pool: a pool is forgotten before it is destroyed.
        let _trimmed = unsafe { forward::cuMemPoolTrimTo(pool as CUmemoryPool, keep) };
    }

    fn graphs_reserved(&self, device: CUdevice) -> Option<u64> {
        let _quiet = Quiet::begin();
        let mut value: u64 = 0;
        // SAFETY: this attribute is 8 bytes wide.
        let result = unsafe {
            forward::cuDeviceGetGraphMemAttribute(
                device,
                CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                (&raw mut value).cast(),
            )
        };
        result.is_success().then_some(value)
    }

    fn trim_graphs(&self, device: CUdevice) -> CUresult {
        let _quiet = Quiet::begin();
        // SAFETY: any ordinal may be given.
        unsafe { forward::cuDeviceGraphMemTrim(device) }
    }

    fn current_context(&self) -> usize {
        ask::current_context()
    }

    fn stream_id(&self, stream: Stream) -> StreamId {
        let name = stream.handle;
        let own = name == CU_STREAM_PER_THREAD as usize || (name == 0 && stream.per_thread);
        let default = name <= CU_STREAM_PER_THREAD as usize;
        StreamId {
            context: if default {
                ask::current_context()
            } else {
                ask::context_of(name as CUstream)
            },
            handle: if default && !own {
                CU_STREAM_LEGACY as usize
            } else {
                name
            },
            thread: if own { this_thread() } else { 0 },
        }
    }

    fn new_event(&self, context: usize) -> Result<usize, CUresult> {
        ask::in_context(context, || {
            let mut event: CUevent = core::ptr::null_mut();
            // SAFETY: a valid out-parameter.
            unsafe { forward::cuEventCreate(&raw mut event, CU_EVENT_DISABLE_TIMING.0) }.ok()?;
            Ok(event as usize)
        })
    }

    fn record(&self, event: usize, stream: Stream) -> bool {
        let (event, handle) = (event as CUevent, stream.handle as CUstream);
        // SAFETY: our own event, in a stream that the program has just used with success.
        let result = unsafe {
            if stream.per_thread {
                forward::cuEventRecord_ptsz(event, handle)
            } else {
                forward::cuEventRecord(event, handle)
            }
        };
        result == CUDA_SUCCESS
    }

    fn query(&self, event: usize) -> Progress {
        // SAFETY: our own event; the driver reports its state.
        match unsafe { forward::cuEventQuery(event as CUevent) } {
            CUDA_SUCCESS => Progress::Reached,
            CUDA_ERROR_INVALID_HANDLE | CUDA_ERROR_CONTEXT_IS_DESTROYED | CUDA_ERROR_DEINITIALIZED => {
                Progress::Gone
            }
            _ => Progress::Pending,
        }
    }

    fn destroy_event(&self, event: usize) {
        // SAFETY: our own event, and nothing waits for it.
        let _destroyed = unsafe { forward::cuEventDestroy_v2(event as CUevent) };
    }

    fn quiet(&self) -> impl Sized {
        Quiet::begin()
    }

    fn device_of(&self, pointer: CUdeviceptr) -> Option<CUdevice> {
        let device: CUdevice = attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer, -1).ok()?;
        (device >= 0).then_some(device)
    }

    fn context_of(&self, pointer: CUdeviceptr) -> Option<usize> {
        attribute(CU_POINTER_ATTRIBUTE_CONTEXT, pointer, 0_usize).ok()
    }

    fn range_of(&self, pointer: CUdeviceptr) -> Option<(CUdeviceptr, u64)> {
        let (mut base, mut bytes) = (pointer, MaybeUninit::zeroed());
        // SAFETY: valid out-parameters; the driver checks the pointer.
        unsafe {
            forward::cuMemGetAddressRange_v2(&raw mut base, bytes.as_mut_ptr(), pointer)
                .ok()
                .ok()?;
            Some((base, bytes.assume_init() as u64))
        }
    }

    fn is_gone(&self, pointer: CUdeviceptr) -> bool {
        // The attribute is 4 bytes wide, and so is the buffer.
        attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer, 0_u64) == Err(CUDA_ERROR_INVALID_VALUE)
    }

    fn free(&self, pointer: CUdeviceptr) -> CUresult {
        // SAFETY: an allocation that the program has not seen, or frees with this call.
        unsafe { forward::cuMemFree_v2(pointer) }
    }

    fn free_in(&self, pointer: CUdeviceptr, stream: Stream) {
        let handle = stream.handle as CUstream;
        // SAFETY: the driver has just returned this pointer in this stream, and the program does not have it yet.
        let _freed = unsafe {
            if stream.per_thread {
                forward::cuMemFreeAsync_ptsz(pointer, handle)
            } else {
                forward::cuMemFreeAsync(pointer, handle)
            }
        };
    }

    /// These are hints. A device or a system without support moves the pages to and fro instead, and the memory stays
    /// usable.
    fn prefer_host(&self, pointer: CUdeviceptr, bytes: u64) {
        let bytes = bytes as usize;
        // SAFETY: the pointer is the driver's own, of so many bytes at least.
        unsafe {
            let _hint = forward::cuMemAdvise(
                pointer,
                bytes,
                CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                CU_DEVICE_CPU,
            );
            if let Some(device) = ask::current_device() {
                let _hint = forward::cuMemAdvise(pointer, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
            }
        }
    }
}
