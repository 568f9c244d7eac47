//! Streams: making and ending them, waiting, callbacks, and what they are.

use super::args::{Callback, Handle, Out};
use super::context::GREATEST_PRIORITY;
use crate::driver::driver;
use crate::exec::task::Work;
use crate::stream::{PER_THREAD_STREAM, Stream, StreamName};
use crate::{Result, context, handle};
use divvy_abi::*;

type HostFunction = unsafe extern "C" fn(*mut c_void);
type StreamFunction = unsafe extern "C" fn(CUstream, CUresult, *mut c_void);

entry! {
    fn cuStreamCreate(stream: Out<CUstream>, flags: u32) {
        create(&stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: u32, priority: i32) {
        create(&stream, flags, priority)
    }

    fn cuStreamDestroy(stream: Handle<CUstream>) {
        destroy(stream.0)
    }

    fn cuStreamDestroy_v2(stream: Handle<CUstream>) {
        destroy(stream.0)
    }

    fn cuStreamSynchronize | cuStreamSynchronize_ptsz( ; stream) {
        stream.queue_even_failed()?.synchronize()
    }

    fn cuStreamQuery | cuStreamQuery_ptsz( ; stream) {
        let queue = stream.queue()?;
        let idle = queue.is_idle();
        queue.context.check()?;
        if idle { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    }

    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz(stream ; event: Handle<CUevent>, flags: u32) {
        if flags & !CU_EVENT_WAIT_EXTERNAL.0 != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let queue = stream.queue()?;
        let event = driver()?.events.get(event.0).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(mark) = event.mark() {
            queue.mark(&[mark]);
        }
        Ok(())
    }

    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(
        stream ; function: Callback<HostFunction>, data: Handle<*mut c_void>
    ) {
        host_function(stream, &function, data.0)
    }

    fn cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz(
        stream ; function: Callback<HostFunction>, data: Handle<*mut c_void>, _mode: u32
    ) {
        host_function(stream, &function, data.0)
    }

    fn cuStreamAddCallback | cuStreamAddCallback_ptsz(
        stream ; function: Callback<StreamFunction>, data: Handle<*mut c_void>, flags: u32
    ) {
        let function = function.0.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let queue = stream.queue()?;
        let context = std::sync::Arc::clone(&queue.context);
        // Unlike a host function, a callback runs after a failure too, and is told of it.
        queue.submit(Work::Pool(Box::new(move || {
            let status = context.check().err().unwrap_or(CUDA_SUCCESS);
            // SAFETY: the program gave a function of this type, and vouches for its data.
            unsafe { function(public(stream) as CUstream, status, data.0 as *mut c_void) };
        })));
        Ok(())
    }

    fn cuStreamGetPriority | cuStreamGetPriority_ptsz(stream ; priority: Out<i32>) {
        priority.set(stream.queue_even_failed()?.priority)
    }

    fn cuStreamGetFlags | cuStreamGetFlags_ptsz(stream ; flags: Out<u32>) {
        flags.set(stream.queue_even_failed()?.flags)
    }

    fn cuStreamGetId | cuStreamGetId_ptsz(stream ; id: Out<u64>) {
        let queue = stream.queue_even_failed()?;
        // Unique in the process: handles, context ids included, are never used twice.
        id.set(if stream.0 <= PER_THREAD_STREAM { queue.context.id + queue.lane } else { stream.0 })
    }

    fn cuStreamGetCtx | cuStreamGetCtx_ptsz(stream ; context: Out<CUcontext>) {
        context.set(stream.queue_even_failed()?.context.handle as CUcontext)
    }

    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(stream ; context: Out<CUcontext>, green: Out<CUgreenCtx>) {
        context.set(stream.queue_even_failed()?.context.handle as CUcontext)?;
        green.set_if_wanted(std::ptr::null_mut());
        Ok(())
    }

    fn cuStreamGetDevice | cuStreamGetDevice_ptsz(stream ; device: Out<CUdevice>) {
        device.set(stream.queue_even_failed()?.context.device.number())
    }

    // Nothing is ever captured: graphs are not emulated yet.
    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(stream ; status: Out<CUstreamCaptureStatus>) {
        stream.queue()?;
        status.set(CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(
        stream ; status: Out<CUstreamCaptureStatus>, _id: Out<u64>
    ) {
        stream.queue()?;
        status.set(CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(
        stream ; status: Out<CUstreamCaptureStatus>, _id: Out<u64>, _graph: Out<CUgraph>,
        _nodes: Out<*const CUgraphNode>, _count: Out<usize>
    ) {
        stream.queue()?;
        status.set(CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(
        stream ; status: Out<CUstreamCaptureStatus>, _id: Out<u64>, _graph: Out<CUgraph>,
        _nodes: Out<*const CUgraphNode>, _edges: Out<*const CUgraphEdgeData>, _count: Out<usize>
    ) {
        stream.queue()?;
        status.set(CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

fn create(out: &Out<CUstream>, flags: u32, priority: i32) -> Result {
    out.required()?;
    if flags & !CU_STREAM_NON_BLOCKING.0 != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let context = context::usable()?;
    let stream = Stream::new(
        handle::fresh(),
        context,
        flags,
        priority.clamp(GREATEST_PRIORITY, 0),
    );
    driver()?.streams.insert(stream.handle, stream.clone());
    out.set(stream.handle as CUstream)
}

/// Forgets the stream; what it holds is still done.
fn destroy(stream: u64) -> Result {
    driver()?
        .streams
        .remove(stream)
        .map(drop)
        .ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn host_function(stream: StreamName, function: &Callback<HostFunction>, data: u64) -> Result {
    let function = function.0.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    stream.queue()?.run_later(move || {
        // SAFETY: the program gave a function of this type, and vouches for its data until it has run.
        unsafe { function(data as *mut c_void) };
    });
    Ok(())
}

/// A stream as the program knows it: the legacy default stream goes by 0.
fn public(stream: StreamName) -> u64 {
    if stream.0 < PER_THREAD_STREAM { 0 } else { stream.0 }
}
