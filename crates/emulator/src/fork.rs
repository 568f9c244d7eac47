//! CUDA does not survive fork: in the child every call fails until it execs, as with NVIDIA's driver.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static IN_CHILD: AtomicBool = AtomicBool::new(false);

/// From now on, children of this process are without a device.
pub fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed in a child of a threaded process. The
        // library is never unloaded (linked with -z nodelete), so the handler stays valid.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

extern "C" fn in_child() {
    IN_CHILD.store(true, Ordering::Relaxed);
}

/// Whether this process was forked from one that had initialised the driver.
#[inline]
pub fn is_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed)
}
