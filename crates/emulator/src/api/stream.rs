//! Streams: making and ending them, waiting, callbacks, and what they are.

use super::args::{Callback, Handle, Out};
use super::context::GREATEST_PRIORITY;
use super::current;
use super::stream_name::{PER_THREAD_STREAM, StreamName};
use crate::check;
use crate::driver::driver;
use crate::graph::capture::Target;
use crate::graph::work::{self as graph, HostWork};
use crate::stream::Stream;
use crate::{Result, handle};
use divvy_abi::*;
use divvy_device::exec::task::Work;

type HostFunction = unsafe extern "C" fn(*mut c_void);
type StreamFunction = unsafe extern "C" fn(CUstream, CUresult, *mut c_void);

entry! {
    fn cuStreamCreate(stream: Out<CUstream>, flags: u32) {
        create(&stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: u32, priority: i32) {
        create(&stream, flags, priority)
    }

    fn cuStreamDestroy | cuStreamDestroy_v2(stream: Handle<CUstream>) {
        destroy(stream.0)
    }

    fn cuStreamSynchronize | cuStreamSynchronize_ptsz( ; stream) {
        let queue = stream.queue_even_failed()?;
        driver()?.graphs.captures.refuse(&queue)?;
        queue.synchronize()
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
        let queue = stream.queue_even_failed()?;
        queue.context.check()?;
        let event = driver()?.event(event.0)?;
        let external = flags == CU_EVENT_WAIT_EXTERNAL.0;
        if !driver()?.graphs.captures.wait(&queue, &event, external)?
            && let Some(mark) = event.mark()
        {
            queue.wait_for_room();
            queue.mark(&[mark]);
        }
        Ok(())
    }

    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(
        stream ; function: Callback<HostFunction>, data: Handle<*mut c_void>
    ) {
        host_function(stream, &function, data.0, 0)
    }

    fn cuLaunchHostFunc_v2 | cuLaunchHostFunc_v2_ptsz(
        stream ; function: Callback<HostFunction>, data: Handle<*mut c_void>, mode: u32
    ) {
        host_function(stream, &function, data.0, mode)
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
        queue.wait_for_room();
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
        id.set(if stream.0 <= PER_THREAD_STREAM { queue.context.id + queue.id } else { stream.0 })
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
        device.set(stream.queue_even_failed()?.context.device.ordinal as CUdevice)
    }
}

fn create(out: &Out<CUstream>, flags: u32, priority: i32) -> Result {
    out.required()?;
    if flags & !CU_STREAM_NON_BLOCKING.0 != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let context = current::usable()?;
    let stream = Stream::new(
        handle::fresh(),
        context,
        flags,
        priority.clamp(GREATEST_PRIORITY, 0),
    );
    driver()?.streams.insert(stream.handle, stream.clone());
    out.set(stream.handle as CUstream)
}

/// Forgets the stream. The work it holds is still done. A capture that began in it is over.
fn destroy(stream: u64) -> Result {
    let driver = driver()?;
    if stream > PER_THREAD_STREAM {
        let queue = StreamName(stream).queue_even_failed()?;
        driver.graphs.captures.forget_stream(&queue);
    }
    driver
        .streams
        .remove(stream)
        .map(drop)
        .ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn host_function(stream: StreamName, function: &Callback<HostFunction>, data: u64, mode: u32) -> Result {
    let function = function.0.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    match stream.target()? {
        Target::Queue(queue) => {
            let checked = check::on().map(|checker| (checker, checker.strands.function()));
            queue.run_later(move || {
                if let Some((checker, number)) = checked {
                    checker.strands.runs(number);
                }
                // SAFETY: the program gave a function of this type, and vouches for its data until it has run.
                unsafe { function(data as *mut c_void) };
            });
        }
        Target::Capture(recorder) => {
            recorder.add(graph::Work::Host(HostWork { function, data, mode }))?;
        }
    }
    Ok(())
}

/// A stream as the program knows it: the legacy default stream goes by 0.
fn public(stream: StreamName) -> u64 {
    if stream.0 < PER_THREAD_STREAM { 0 } else { stream.0 }
}
