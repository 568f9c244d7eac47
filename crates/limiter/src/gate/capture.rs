//! Which streams are being captured, and what the gate does not touch meanwhile.
//!
//! Captured work runs when its graph is launched, and is charged then. During a capture, a query about the state of a
//! stream or a context may spoil the capture, whatever the querying thread's mode is. So no such query is made.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use divvy_abi::{
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CUresult,
};
use divvy_charges::locked;

use super::stream::Stream;
use crate::below::ask;
use crate::leave;

/// Streams in which a capture was begun, with their contexts.
static BEGUN: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether any capture goes on in the process.
#[inline]
pub(super) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Whether a launch into this stream is captured rather than run. Queries the driver only while some capture goes on.
pub(super) fn takes(stream: Stream) -> bool {
    any() && ask::is_capturing(stream.handle, stream.per_thread)
}

/// Begins a capture by `call`.
pub(super) fn begin(stream: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    let entry = (stream.handle as usize, stream.context());
    {
        let _not_asked = leave::asking();
        change(|begun| begun.push(entry));
    }
    let result = call();
    if !result.is_success() {
        forget_one(entry.0);
    }
    result
}

/// Ends a capture by `call`.
pub(super) fn end(stream: Stream, call: impl FnOnce() -> CUresult) -> CUresult {
    let result = call();
    let ended = [
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
    ];
    if result.is_success() || ended.contains(&result) {
        forget_one(stream.handle as usize);
    }
    result
}

fn forget_one(stream: usize) {
    change(|begun| {
        if let Some(at) = begun.iter().rposition(|(of, _)| *of == stream) {
            begun.swap_remove(at);
        }
    });
}

/// A stream ends, and so does a capture in it.
pub(super) fn stream_ends(stream: usize) {
    if any() {
        change(|begun| begun.retain(|(of, _)| *of != stream));
    }
}

/// A context has ended.
pub(super) fn context_ended(context: usize) {
    if any() {
        change(|begun| begun.retain(|(_, of)| *of != context));
    }
}

fn change(by: impl FnOnce(&mut Vec<(usize, usize)>)) {
    let mut begun = locked(&BEGUN);
    by(&mut begun);
    COUNT.store(begun.len(), Ordering::SeqCst);
}
