//! The command queues of this process on devices of the slice.
//!
//! A queue is noticed at its first launch, by whichever call the program made it. It is forgotten when the program's last
//! reference goes. The driver's own count would not do: two threads that release at once both read the same number of
//! it, and drivers count references of events as well. The gate's thread puts markers into queues that live, and into no
//! other: the lock of a queue is held meanwhile.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::below;
use crate::cl::*;
use crate::devices::{self, Charged};
use crate::driver::locked;
use crate::marks::{self, Marker};

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Its device.
    pub ordinal: i32,
    /// Its commands run one after the other.
    pub in_order: bool,
    handle: usize,
    /// Launches that have begun, and those that the driver has taken.
    begun: AtomicU64,
    launches: AtomicU64,
    tail: Mutex<Tail>,
}

/// The end of a queue, as far as the layer knows it.
#[derive(Debug, Default)]
struct Tail {
    /// The newest marker of the layer's own, with the number of launches before it.
    marker: Option<(Marker, u64)>,
    /// The event of the newest launch into a queue that keeps the order, with its number. A driver says that a kernel is
    /// over before it calls the program back, and passes a marker only after that. The program's callback may launch.
    newest: Option<(Launched, u64)>,
    is_gone: bool,
}

/// The event of a launch, of which the layer holds a reference.
#[derive(Debug)]
struct Launched(usize);

impl Drop for Launched {
    fn drop(&mut self) {
        // SAFETY: the reference that the layer holds.
        unsafe { below::clReleaseEvent(self.0 as cl_event) };
    }
}

impl Queue {
    /// Launches by `call`, which has a place for the launch's event, and counts that.
    ///
    /// # Safety
    /// `event` is the program's place for the event, or null.
    pub unsafe fn launch(&self, event: *mut cl_event, call: impl FnOnce(*mut cl_event) -> cl_int) -> cl_int {
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let mut own: cl_event = core::ptr::null_mut();
        let is_own = self.in_order && event.is_null();
        let result = call(if is_own { &raw mut own } else { event });
        if result != CL_SUCCESS {
            // It is no launch of the queue's: the numbers meet again.
            self.begun.fetch_sub(1, Ordering::AcqRel);
            return result;
        }
        let launched = match (is_own, self.in_order) {
            (true, _) => own,
            // SAFETY: the program's place, which the driver has filled in.
            (false, true) => unsafe { event.read() },
            (false, false) => core::ptr::null_mut(),
        };
        // SAFETY: the program's own event, which it holds until this call has returned.
        let is_kept =
            !launched.is_null() && (is_own || unsafe { below::clRetainEvent(launched) } == CL_SUCCESS);
        let kept = is_kept.then(|| Launched(launched as usize));
        let mut tail = locked(&self.tail);
        let taken = self.launches.fetch_add(1, Ordering::AcqRel) + 1;
        // Another thread launched meanwhile: which of the two came first is not known.
        let is_newest = taken == number && self.begun.load(Ordering::Acquire) == number;
        let before = core::mem::replace(
            &mut tail.newest,
            kept.filter(|_| is_newest).map(|event| (event, taken)),
        );
        drop(tail);
        drop(before);
        CL_SUCCESS
    }

    /// Whether launches are not known to be over. It waits for nothing.
    pub fn is_running(&self) -> bool {
        let mut tail = locked(&self.tail);
        let launches = self.launches.load(Ordering::Acquire);
        if tail.is_gone {
            return false;
        }
        if let Some((event, upto)) = &tail.newest
            && *upto == launches
        {
            // SAFETY: the layer holds a reference.
            return !unsafe { marks::is_complete(event.0 as cl_event) };
        }
        if let Some((marker, upto)) = &tail.marker
            && *upto == launches
        {
            return marker.done_ns().is_none();
        }
        // SAFETY: the queue lives: its end takes this lock first.
        match unsafe { Marker::put(self.handle as cl_command_queue) } {
            Some(marker) => {
                let is_running = marker.done_ns().is_none();
                tail.marker = Some((marker, launches));
                is_running
            }
            // A queue without markers tells nothing, and is not waited for.
            None => false,
        }
    }
}

fn all() -> &'static RwLock<HashMap<usize, Arc<Queue>>> {
    static ALL: OnceLock<RwLock<HashMap<usize, Arc<Queue>>>> = OnceLock::new();
    ALL.get_or_init(RwLock::default)
}

/// A queue that was noticed.
pub(crate) fn known(queue: cl_command_queue) -> Option<Arc<Queue>> {
    let all = all().read().unwrap_or_else(PoisonError::into_inner);
    all.get(&(queue as usize)).cloned()
}

/// The queues of a device.
pub(crate) fn of_ordinal(ordinal: i32) -> Vec<Arc<Queue>> {
    let all = all().read().unwrap_or_else(PoisonError::into_inner);
    all.values()
        .filter(|queue| queue.ordinal == ordinal)
        .cloned()
        .collect()
}

/// What a launch into a queue is to do.
pub(crate) enum Found {
    /// Its launches are gated.
    Gated(Arc<Queue>),
    /// Its device is not limited, or the driver does not know the queue and says so.
    Free,
    /// Its device may not be used.
    Refused,
}

/// Finds a queue, and notices it.
///
/// # Safety
/// `queue` is a queue of the driver's, or one that the driver refuses.
pub(crate) unsafe fn find(queue: cl_command_queue) -> Found {
    if let Some(known) = known(queue) {
        return Found::Gated(known);
    }
    // SAFETY: the caller's promise; the values are as wide as OpenCL says.
    let (device, properties) = unsafe {
        (
            below::of_queue::<usize>(queue, CL_QUEUE_DEVICE),
            below::of_queue::<cl_bitfield>(queue, CL_QUEUE_PROPERTIES),
        )
    };
    let Some(device) = device else { return Found::Free };
    // SAFETY: the driver named the device.
    let ordinal = match unsafe { devices::charged(device as cl_device_id) } {
        Charged::Account(ordinal) => ordinal,
        Charged::Free => return Found::Free,
        Charged::Refused => return Found::Refused,
    };
    let new = Arc::new(Queue {
        ordinal,
        in_order: properties.unwrap_or(0) & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE == 0,
        handle: queue as usize,
        begun: AtomicU64::new(0),
        launches: AtomicU64::new(0),
        tail: Mutex::default(),
    });
    let mut all = all().write().unwrap_or_else(PoisonError::into_inner);
    Found::Gated(Arc::clone(all.entry(queue as usize).or_insert(new)))
}

/// How many references the program holds of each queue.
fn references() -> &'static Mutex<HashMap<usize, usize>> {
    static REFERENCES: OnceLock<Mutex<HashMap<usize, usize>>> = OnceLock::new();
    REFERENCES.get_or_init(Mutex::default)
}

/// The program was given a queue: a new one, or the device's own once more.
pub(crate) fn created(queue: cl_command_queue) {
    *locked(references()).entry(queue as usize).or_default() += 1;
}

/// The program has one more reference of a queue.
pub(crate) fn retained(queue: cl_command_queue) {
    if let Some(count) = locked(references()).get_mut(&(queue as usize)) {
        *count += 1;
    }
}

/// The program is about to release a reference. Returns whether it is the last one.
pub(crate) fn released(queue: cl_command_queue) -> bool {
    let mut all = locked(references());
    match all.get_mut(&(queue as usize)) {
        Some(count @ 2..) => {
            *count -= 1;
            false
        }
        Some(_) => {
            all.remove(&(queue as usize));
            true
        }
        // A call that the layer does not know has made it: the driver's count is the best there is.
        None => {
            drop(all);
            // SAFETY: the program's own queue, or one that the driver refuses.
            let count = unsafe { below::of_queue::<cl_uint>(queue, CL_QUEUE_REFERENCE_COUNT) };
            count.is_none_or(|count| count <= 1)
        }
    }
}

/// Forgets a queue whose last reference goes next. Returns it if it was noticed.
pub(crate) fn forget(queue: cl_command_queue) -> Option<Arc<Queue>> {
    let gone = all()
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&(queue as usize))?;
    let mut tail = locked(&gone.tail);
    tail.is_gone = true;
    let ended = (tail.marker.take(), tail.newest.take());
    drop(tail);
    drop(ended);
    Some(gone)
}
