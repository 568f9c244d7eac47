//! The limiter's own queries to the driver below. They disturb neither a stream capture nor the thread's current
//! context.

use divvy_abi::{
    CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS, CUcontext, CUdevice,
    CUresult, CUstream,
};

use super::forward;

/// While it lives, calls of this thread break no stream capture.
pub(crate) struct Quiet {
    before: Option<divvy_abi::CUstreamCaptureMode>,
}

impl Quiet {
    pub fn begin() -> Self {
        Self {
            before: exchange(CU_STREAM_CAPTURE_MODE_RELAXED),
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            exchange(before);
        }
    }
}

fn exchange(mut mode: divvy_abi::CUstreamCaptureMode) -> Option<divvy_abi::CUstreamCaptureMode> {
    // SAFETY: a valid in- and out-parameter.
    let result = unsafe { forward::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    result.is_success().then_some(mode)
}

/// The thread's current context; 0 if there is none.
pub(crate) fn current_context() -> usize {
    let mut context: CUcontext = core::ptr::null_mut();
    // SAFETY: a valid out-parameter.
    let result = unsafe { forward::cuCtxGetCurrent(&raw mut context) };
    if result.is_success() { context as usize } else { 0 }
}

/// The ordinal of the current context's device.
pub(crate) fn current_device() -> Option<CUdevice> {
    let mut device = 0;
    // SAFETY: a valid out-parameter.
    let result = unsafe { forward::cuCtxGetDevice(&raw mut device) };
    result.is_success().then_some(device)
}

/// The total memory of the current context's device, in bytes; `None` if the driver does not report it.
pub(crate) fn device_bytes() -> Option<u64> {
    let mut bytes = 0;
    // SAFETY: a valid out-parameter.
    let result = unsafe { forward::cuDeviceTotalMem_v2(&raw mut bytes, current_device()?) };
    result.is_success().then_some(bytes as u64)
}

/// The context of a stream that the program created; 0 if the driver does not report it.
pub(crate) fn context_of(stream: CUstream) -> usize {
    let mut context: CUcontext = core::ptr::null_mut();
    // SAFETY: a valid out-parameter; the stream is the program's.
    let result = unsafe { forward::cuStreamGetCtx(stream, &raw mut context) };
    if result.is_success() { context as usize } else { 0 }
}

/// A stream's priority: a lower number is a higher one. 0 for a default stream, and where the driver does not say.
pub(crate) fn priority_of(stream: CUstream) -> i32 {
    let mut priority = 0;
    // SAFETY: a valid out-parameter; the stream is the program's.
    let result = unsafe { forward::cuStreamGetPriority(stream, &raw mut priority) };
    if result.is_success() { priority } else { 0 }
}

/// Whether calls into this stream are being captured, or may be.
pub(crate) fn is_capturing(stream: CUstream, per_thread: bool) -> bool {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a valid out-parameter; the stream is the program's.
    let result = unsafe {
        if per_thread {
            forward::cuStreamIsCapturing_ptsz(stream, &raw mut status)
        } else {
            forward::cuStreamIsCapturing(stream, &raw mut status)
        }
    };
    result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE
}

/// Runs `call` with `context` as the thread's current one, if it is not.
pub(crate) fn in_context<T>(
    context: usize,
    call: impl FnOnce() -> Result<T, CUresult>,
) -> Result<T, CUresult> {
    if context == 0 || context == current_context() {
        return call();
    }
    // SAFETY: the program's own context, in which it has a live stream.
    unsafe { forward::cuCtxPushCurrent_v2(context as CUcontext) }.ok()?;
    let answer = call();
    let mut popped: CUcontext = core::ptr::null_mut();
    // SAFETY: undoes the push; a valid out-parameter.
    let _popped = unsafe { forward::cuCtxPopCurrent_v2(&raw mut popped) };
    answer
}
