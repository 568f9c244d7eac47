//! Markers in the program's queues, and when the driver passed them.
//!
//! The driver calls back when a marker is complete, and the moment is noted then: queues need no profiling, which programs
//! could see. A look before that asks the driver: it may call back in one thread only, and a callback of the program's that
//! launches can wait at the gate there.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use divvy_ledger::monotonic_ns;

use crate::below;
use crate::cl::*;
use crate::driver::locked;

/// What the driver says of an event: whether its command is over, or has failed.
///
/// # Safety
/// The caller holds a reference of the event.
pub(crate) unsafe fn is_complete(event: cl_event) -> bool {
    let mut status: cl_int = CL_COMPLETE + 1;
    // SAFETY: the caller's promise, and a valid out-parameter.
    let result = unsafe {
        below::clGetEventInfo(
            event,
            CL_EVENT_COMMAND_EXECUTION_STATUS,
            size_of::<cl_int>(),
            (&raw mut status).cast(),
            core::ptr::null_mut(),
        )
    };
    // A command that failed has a negative status.
    result == CL_SUCCESS && status <= CL_COMPLETE
}

/// When a marker was passed, in nanoseconds of the monotonic clock; 0 before.
#[derive(Debug, Default)]
struct Moment(AtomicU64);

impl Moment {
    /// Notes that it was passed now, if that was not known yet. Returns when it was passed.
    fn pass(&self) -> u64 {
        let now = monotonic_ns();
        match self
            .0
            .compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => now,
            Err(before) => before,
        }
    }
}

/// A marker, and the driver's event for it.
#[derive(Debug)]
pub(crate) struct Marker {
    moment: Arc<Moment>,
    /// The driver's event, until the marker was passed. An event keeps its queue and its context alive.
    event: Mutex<usize>,
}

unsafe extern "C" fn passed(_event: cl_event, _status: cl_int, data: *mut c_void) {
    // SAFETY: `Marker::put` made it for this one call.
    let moment = unsafe { Arc::from_raw(data.cast::<Moment>().cast_const()) };
    // A command that failed is over as well.
    moment.pass();
}

impl Marker {
    /// Puts a marker behind all that was enqueued. `None` if the driver refuses.
    ///
    /// # Safety
    /// `queue` is a live queue.
    pub unsafe fn put(queue: cl_command_queue) -> Option<Self> {
        let mut event: cl_event = core::ptr::null_mut();
        // SAFETY: the caller's promise; a valid out-parameter. OpenCL 1.1 has only the second of the two.
        unsafe {
            if below::clEnqueueMarkerWithWaitList(queue, 0, core::ptr::null(), &raw mut event) != CL_SUCCESS
                && below::clEnqueueMarker(queue, &raw mut event) != CL_SUCCESS
            {
                return None;
            }
        }
        let moment = Arc::new(Moment::default());
        let data = Arc::into_raw(Arc::clone(&moment));
        // SAFETY: the driver's own event, and a callback that takes the data once.
        unsafe {
            let result = below::clSetEventCallback(event, CL_COMPLETE, Some(passed), data.cast_mut().cast());
            if result != CL_SUCCESS {
                drop(Arc::from_raw(data));
                below::clReleaseEvent(event);
                return None;
            }
            // A driver may hold commands back until it is told to begin.
            below::clFlush(queue);
        }
        Some(Self {
            moment,
            event: Mutex::new(event as usize),
        })
    }

    /// When it was passed, if it was.
    pub fn done_ns(&self) -> Option<u64> {
        match self.moment.0.load(Ordering::Acquire) {
            0 if self.is_complete() => {
                let ns = self.moment.pass();
                self.let_go();
                Some(ns)
            }
            0 => None,
            ns => {
                self.let_go();
                Some(ns)
            }
        }
    }

    /// What the driver says of it.
    fn is_complete(&self) -> bool {
        // Locked, so that no other thread gives the event back meanwhile.
        let event = locked(&self.event);
        if *event == 0 {
            return false;
        }
        // SAFETY: the reference that the driver gave us.
        unsafe { is_complete(*event as cl_event) }
    }

    fn let_go(&self) {
        let event = core::mem::take(&mut *locked(&self.event));
        if event != 0 {
            // SAFETY: the reference that the driver gave us.
            unsafe { below::clReleaseEvent(event as cl_event) };
        }
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// An event of the limiter: the newest marker that was recorded with it.
#[derive(Debug)]
pub(crate) struct Event(Mutex<Option<Arc<Marker>>>);

impl Event {
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Records it behind all that was enqueued.
    ///
    /// # Safety
    /// `queue` is a live queue.
    pub unsafe fn record(&self, queue: cl_command_queue) -> bool {
        // SAFETY: the caller's promise.
        let marker = unsafe { Marker::put(queue) }.map(Arc::new);
        let is_recorded = marker.is_some();
        let before = core::mem::replace(&mut *locked(&self.0), marker);
        drop(before);
        is_recorded
    }

    /// When the driver passed it, if it did.
    pub fn done_ns(&self) -> Option<u64> {
        let marker = locked(&self.0).clone();
        marker?.done_ns()
    }
}
