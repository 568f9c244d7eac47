//! Ends that must not surprise threads of ours: ends of contexts, and of the process.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard};

use divvy_charges::locked;

use crate::account;

/// Held while a thread of ours makes short queries to the driver. Meanwhile no capture begins, and no stream or context
/// ends, between a check for that and the query.
static ASKING: Mutex<()> = Mutex::new(());
static EXITING: AtomicBool = AtomicBool::new(false);
/// Contexts that may be ending at this moment.
static LEAVING: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// The context that a gate thread waits for; 0 for none.
static WAITED_FOR: AtomicUsize = AtomicUsize::new(0);

const PAUSE: Duration = Duration::from_micros(100);
/// How many pauses a context's end waits for our thread to leave it: some 2 s, if its work does not end.
const MAX_PAUSES: u32 = 20_000;
/// The same for the process's end: some 20 ms.
const MAX_PAUSES_AT_EXIT: u32 = 200;

/// Waits until no thread of ours queries the driver, and blocks new queries.
pub(crate) fn asking() -> MutexGuard<'static, ()> {
    locked(&ASKING)
}

/// While it lives, the context is not queried.
pub(crate) struct Leaving(usize);

impl Leaving {
    pub fn begin(context: usize) -> Self {
        {
            let _none_asks = asking();
            locked(&LEAVING).push(context);
        }
        for _ in 0..MAX_PAUSES {
            if WAITED_FOR.load(SeqCst) != context {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        Self(context)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let mut leaving = locked(&LEAVING);
        if let Some(at) = leaving.iter().position(|context| *context == self.0) {
            leaving.swap_remove(at);
        }
    }
}

pub(crate) fn is_leaving(context: usize) -> bool {
    locked(&LEAVING).contains(&context)
}

/// A wait for a context.
pub(crate) struct Inside;

/// Begins a wait for a context, unless the context may be ending, or another thread waits for one.
pub(crate) fn enter(context: usize) -> Option<Inside> {
    WAITED_FOR.compare_exchange(0, context, SeqCst, SeqCst).ok()?;
    let inside = Inside;
    let may = !is_leaving(context) && !is_exiting();
    may.then_some(inside)
}

impl Drop for Inside {
    fn drop(&mut self) {
        WAITED_FOR.store(0, SeqCst);
    }
}

/// Whether the process ends: no more queries are made.
pub(crate) fn is_exiting() -> bool {
    EXITING.load(SeqCst)
}

/// Runs `work`, which may query the driver, in a thread of ours. If the process ends, it returns false without running
/// it.
pub(crate) fn unless_exiting(work: impl FnOnce()) -> bool {
    at_exit();
    let _asking = asking();
    let goes_on = !is_exiting();
    if goes_on {
        work();
    }
    goes_on
}

/// Makes sure that no thread of ours is inside the driver when the driver ends.
pub(crate) fn at_exit() {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if REGISTERED.swap(true, SeqCst) {
        return;
    }
    // SAFETY: a function that may be called at any time, in a library that is never unloaded.
    let _registered = unsafe { libc::atexit(exiting) };
}

extern "C" fn exiting() {
    // A forked child has no such thread, and a lock of its parent's may be held for ever.
    if !account::keeps_charges() {
        return;
    }
    EXITING.store(true, SeqCst);
    for _ in 0..MAX_PAUSES_AT_EXIT {
        if WAITED_FOR.load(SeqCst) == 0 && ASKING.try_lock().ok().is_some() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
}
