//! The command queues of this process on devices of the slice.
//!
//! A queue is noticed at its first launch, by whichever call the program made it. It is forgotten when its last reference
//! goes. The gate's thread puts markers into queues that live, and into no other: the lock of a queue is held meanwhile.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::below;
use crate::cl::*;
use crate::devices::{self, Charged};
use crate::driver::locked;
use crate::marks::Marker;

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Its device.
    pub ordinal: i32,
    /// Its commands run one after the other.
    pub in_order: bool,
    handle: usize,
    launches: AtomicU64,
    tail: Mutex<Tail>,
}

/// The newest marker of the layer's own in a queue.
#[derive(Debug, Default)]
struct Tail {
    /// With the number of launches before it.
    marker: Option<(Marker, u64)>,
    is_gone: bool,
}

impl Queue {
    /// Counts a launch.
    pub fn launched(&self) {
        self.launches.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether launches are not known to be over. It waits for nothing.
    pub fn is_running(&self) -> bool {
        let launches = self.launches.load(Ordering::Acquire);
        let mut tail = locked(&self.tail);
        if tail.is_gone {
            return false;
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
        launches: AtomicU64::new(0),
        tail: Mutex::default(),
    });
    let mut all = all().write().unwrap_or_else(PoisonError::into_inner);
    Found::Gated(Arc::clone(all.entry(queue as usize).or_insert(new)))
}

/// Forgets a queue whose last reference goes next. Returns it if it was noticed.
pub(crate) fn forget(queue: cl_command_queue) -> Option<Arc<Queue>> {
    let gone = all()
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&(queue as usize))?;
    let mut tail = locked(&gone.tail);
    tail.is_gone = true;
    tail.marker = None;
    drop(tail);
    Some(gone)
}
