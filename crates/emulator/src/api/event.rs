//! Events: recording, waiting, and time between them.

use super::args::{Handle, Out};
use super::capture::unsafe_call;
use super::current;
use super::stream_name::StreamName;
use crate::driver::driver;
use crate::event::Event;
use crate::{Result, handle};
use divvy_abi::*;
use std::sync::Arc;

entry! {
    fn cuEventCreate(event: Out<CUevent>, flags: u32) {
        event.required()?;
        let known = CU_EVENT_BLOCKING_SYNC.0 | CU_EVENT_DISABLE_TIMING.0 | CU_EVENT_INTERPROCESS.0;
        if flags & !known != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = current::usable()?;
        let made = if flags & CU_EVENT_INTERPROCESS.0 == 0 {
            Event::new(handle::fresh(), context, flags)
        } else if flags & CU_EVENT_DISABLE_TIMING.0 == 0 {
            // An event of several processes has no time.
            return Err(CUDA_ERROR_INVALID_VALUE);
        } else {
            let shared = super::ipc_event::create(&context)?;
            Event::interprocess(handle::fresh(), context, flags, shared)
        };
        driver()?.events.insert(made.handle, Arc::clone(&made));
        event.set(made.handle as CUevent)
    }

    fn cuEventDestroy | cuEventDestroy_v2(event: Handle<CUevent>) {
        driver()?.events.remove(event.0).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }

    fn cuEventRecord | cuEventRecord_ptsz(event: Handle<CUevent> ; stream) {
        record(event.0, stream, false)
    }

    fn cuEventQuery(event: Handle<CUevent>) {
        let event = uncaptured(event.0)?;
        unsafe_call()?;
        let done = event.is_done();
        event.context.check()?;
        if done { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    }

    fn cuEventSynchronize(event: Handle<CUevent>) {
        let event = uncaptured(event.0)?;
        unsafe_call()?;
        event.synchronize()
    }

    fn cuEventElapsedTime
        | cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle<CUevent>, end: Handle<CUevent>) {
        elapsed(&milliseconds, start.0, end.0)
    }
}

/// Records with flags, which only matter to captures.
///
/// # Safety
/// As CUDA says; the handles are checked.
#[allow(non_snake_case)]
pub unsafe extern "C-unwind" fn cuEventRecordWithFlags(
    event: CUevent,
    stream: CUstream,
    flags: u32,
) -> CUresult {
    super::answer(|| record_with_flags(event as u64, super::args::stream_name(stream, false), flags))
}

/// As [`cuEventRecordWithFlags`], with the thread's own default stream.
///
/// # Safety
/// As CUDA says; the handles are checked.
#[allow(non_snake_case)]
pub unsafe extern "C-unwind" fn cuEventRecordWithFlags_ptsz(
    event: CUevent,
    stream: CUstream,
    flags: u32,
) -> CUresult {
    super::answer(|| record_with_flags(event as u64, super::args::stream_name(stream, true), flags))
}

fn record_with_flags(event: u64, stream: StreamName, flags: u32) -> Result {
    if flags & !CU_EVENT_RECORD_EXTERNAL.0 != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    record(event, stream, flags == CU_EVENT_RECORD_EXTERNAL.0)
}

/// The event of a handle, for calls that are about work that runs.
fn uncaptured(event: u64) -> Result<Arc<Event>> {
    let event = driver()?.event(event)?;
    driver()?.graphs.captures.refuse_event(&event)?;
    Ok(event)
}

fn record(event: u64, stream: StreamName, external: bool) -> Result {
    let event = driver()?.event(event)?;
    let queue = stream.queue_even_failed()?;
    queue.context.check()?;
    if queue.context.id != event.context.id {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    if !driver()?.graphs.captures.record(&queue, &event, external)? {
        queue.wait_for_room();
        event.record(queue.mark(&[]));
    }
    Ok(())
}

fn elapsed(milliseconds: &Out<f32>, start: u64, end: u64) -> Result {
    let (start, end) = (uncaptured(start)?, uncaptured(end)?);
    start.context.check()?;
    milliseconds.set(start.elapsed_ns(&end)? as f32 / 1e6)
}
