//! Which context is current on each thread, and each thread's own default streams.

use crate::Result;
use crate::context::Context;
use crate::driver::driver;
use crate::order::StreamId;
use divvy_abi::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;

thread_local! {
    /// Handles of the contexts pushed on this thread, the current one last.
    /// Never dropped by the thread's end, and so still there when functions that run at exit call the driver: the main
    /// thread's other variables are gone by then. [`Ending`] empties those of other threads.
    static STACK: RefCell<ManuallyDrop<Vec<u64>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    /// This thread's default stream in each context, by context id. Kept as the stack is.
    static OWN_STREAMS: RefCell<ManuallyDrop<BTreeMap<u64, StreamId>>> =
        const { RefCell::new(ManuallyDrop::new(BTreeMap::new())) };
    static ENDING: Ending = const { Ending };
}

/// The end of a thread.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        if rustix::thread::gettid() != rustix::process::getpid() {
            STACK.with(|stack| **stack.borrow_mut() = Vec::new());
            OWN_STREAMS.with(|streams| streams.borrow_mut().clear());
        }
    }
}

fn with_stack<T>(body: impl FnOnce(&mut Vec<u64>) -> T) -> Result<T> {
    STACK
        .try_with(|stack| body(&mut stack.borrow_mut()))
        .map_err(|_| CUDA_ERROR_DEINITIALIZED)
}

/// Prepares for a value that is about to be kept for the calling thread: the thread's end clears it away.
fn keep_for_thread() {
    // A thread that is ending keeps it already.
    let _ended = ENDING.try_with(|_| ());
}

/// Handle of the current context, 0 if there is none.
pub fn handle() -> Result<u64> {
    with_stack(|stack| stack.last().copied().unwrap_or(0))
}

/// The current context, failed or not.
pub fn context() -> Result<Arc<Context>> {
    let driver = driver()?;
    match handle()? {
        0 => Err(CUDA_ERROR_INVALID_CONTEXT),
        handle => driver.contexts.get(handle).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED),
    }
}

/// The current context, unless it has failed.
pub fn usable() -> Result<Arc<Context>> {
    let context = context()?;
    context.check()?;
    Ok(context)
}

/// The context a program names; 0 means the current one.
pub fn named(handle: u64) -> Result<Arc<Context>> {
    if handle == 0 {
        context()
    } else {
        driver()?.contexts.get(handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }
}

/// Replaces the current context; 0 pops it and leaves what was below.
pub fn set(handle: u64) -> Result {
    keep_for_thread();
    with_stack(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    })
}

/// Puts a context on top.
pub fn push(handle: u64) -> Result {
    keep_for_thread();
    with_stack(|stack| stack.push(handle))
}

/// Takes the current context off; its handle.
pub fn pop() -> Result<u64> {
    with_stack(Vec::pop)?.ok_or(CUDA_ERROR_INVALID_CONTEXT)
}

/// The calling thread's default stream in a context.
pub fn own_stream(context: &Context) -> Result<StreamId> {
    keep_for_thread();
    OWN_STREAMS
        .try_with(|streams| {
            *streams
                .borrow_mut()
                .entry(context.id)
                .or_insert_with(|| context.new_stream_id())
        })
        .map_err(|_| CUDA_ERROR_DEINITIALIZED)
}
