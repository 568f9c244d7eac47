//! Contexts, and which one is current on each thread.

use crate::Result;
use crate::driver::{Device, driver};
use crate::order::{Lane, Manner, Order};
use crate::print::PrintBuffer;
use crate::{handle, memop};
use divvy_abi::*;
use divvy_device::exec::task::{Task, Work};
use divvy_device::log;
use divvy_device::memory::heap::Charged;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A context: an address space, its streams, and whether it has failed.
pub struct Context {
    /// What the program holds.
    pub handle: u64,
    /// The device it runs on.
    pub device: Arc<Device>,
    /// cuCtxGetId; differs between two lives of a primary context, whose handle does not.
    pub id: u64,
    /// Whether it is the device's primary context.
    pub primary: bool,
    /// cuCtxGetApiVersion.
    pub api_version: u32,
    /// CU_CTX_*.
    pub flags: AtomicU32,
    /// Order of its streams.
    pub order: Order,
    /// What kernels printed and the program has not been shown yet.
    pub printed: PrintBuffer,
    /// Ends the context's running kernels.
    pub cancel: AtomicBool,
    /// Handles of the contexts whose memory it may use.
    pub peers: RwLock<HashSet<u64>>,
    /// cuCtxSetLimit, by limit number.
    pub limits: Mutex<HashMap<u32, usize>>,
    /// cuCtxSetCacheConfig.
    pub cache_config: AtomicU32,
    /// cuCtxSetSharedMemConfig.
    pub shared_config: AtomicU32,
    /// The first failure of asynchronous work, as a CUresult; 0 while there is none.
    fault: AtomicU32,
    /// Calls of cuCtxAttach without their cuCtxDetach, and one for whoever made it.
    uses: AtomicU32,
    next_lane: AtomicU64,
    /// What it costs the device while it lives.
    memory: Mutex<Option<Charged>>,
}

impl Context {
    /// A new context on a device, under the given handle. It takes the memory that the device's specification says a
    /// context takes.
    pub fn new(
        device: Arc<Device>,
        handle: u64,
        primary: bool,
        flags: u32,
        api_version: u32,
    ) -> Result<Arc<Context>> {
        let memory = device.take_for_context()?;
        Ok(Arc::new(Context {
            handle,
            device,
            id: handle::fresh(),
            primary,
            api_version,
            flags: AtomicU32::new(flags),
            order: Order::default(),
            printed: PrintBuffer::default(),
            cancel: AtomicBool::new(false),
            peers: RwLock::default(),
            limits: Mutex::default(),
            cache_config: AtomicU32::new(0),
            shared_config: AtomicU32::new(1),
            fault: AtomicU32::new(0),
            uses: AtomicU32::new(1),
            next_lane: AtomicU64::new(1),
            memory: Mutex::new(memory),
        }))
    }

    /// A lane for a new stream.
    pub fn new_lane(&self) -> Lane {
        self.next_lane.fetch_add(1, Ordering::Relaxed)
    }

    /// The failure that ended this context's work, if there was one. It stays until the context is gone.
    pub fn check(&self) -> Result {
        match self.fault.load(Ordering::Acquire) {
            0 => match self.device.engine.server_fault() {
                None => Ok(()),
                Some(code) => {
                    self.fail(CUresult(code), "a client of the same MPS server failed");
                    Err(CUresult(code))
                }
            },
            code => Err(CUresult(code)),
        }
    }

    /// Records the first failure of asynchronous work.
    pub fn fail(&self, code: CUresult, why: impl std::fmt::Display) {
        let first = self
            .fault
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if first {
            self.device.engine.fail(code.0);
            log::line(format_args!("{}: {why}", code.label().unwrap_or("CUDA error")));
        }
    }

    /// cuCtxAttach: one use more.
    pub fn attach(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// cuCtxDetach: one use less. Answers whether that was the last, which it stays until the context is destroyed.
    pub fn detach(&self) -> bool {
        let less = |uses: u32| (uses > 1).then(|| uses - 1);
        self.uses
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_err()
    }

    /// Waits for all work submitted so far and says whether any failed.
    pub fn synchronize(&self) -> Result {
        self.drain();
        self.check()
    }

    /// Waits for all work submitted so far.
    pub fn drain(&self) {
        for task in self.order.everything() {
            task.wait_done();
        }
        self.printed.show();
    }

    /// Appends work to a lane. Work that must not run once the context failed checks for itself.
    pub fn submit(&self, lane: Lane, manner: Manner, also: &[Arc<Task>], work: Work) -> Arc<Task> {
        self.order.submit(lane, manner, also, work)
    }

    /// Ends the context: waits for its work, then forgets every object and allocation that belongs to it.
    pub fn destroy(&self) -> Result {
        let driver = driver()?;
        driver.graphs.captures.forget(|stream| stream.0 == self.id);
        memop::abandon(self.id);
        self.drain();
        let mine = |context: &Arc<Context>| context.id == self.id;
        driver.streams.remove_all(|stream| mine(&stream.context));
        driver.events.remove_all(|event| mine(&event.context));
        driver
            .functions
            .remove_all(|function| mine(&function.instance.context));
        driver.modules.remove_all(|instance| mine(&instance.context));
        driver.arrays.remove_all(|array| mine(&array.context));
        driver.mipmaps.remove_all(|mipmap| mine(&mipmap.context));
        driver.external.remove_all(|external| mine(&external.context));
        for library in driver.libraries.all() {
            library.forget_context(self.id);
        }
        driver
            .registry
            .remove_all(|allocation| allocation.context == self.handle);
        drop(self.memory.lock().unwrap_or_else(PoisonError::into_inner).take());
        Ok(())
    }
}

thread_local! {
    /// Handles of the contexts pushed on this thread, the current one last.
    ///
    /// Never dropped by the thread's end, and so still there when functions that run at exit call the driver: the main
    /// thread's other variables are gone by then. [`Ending`] empties those of other threads.
    static STACK: RefCell<ManuallyDrop<Vec<u64>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    /// This thread's default stream in each context, by context id. Kept as the stack is.
    static OWN_LANES: RefCell<ManuallyDrop<BTreeMap<u64, Lane>>> =
        const { RefCell::new(ManuallyDrop::new(BTreeMap::new())) };
    static ENDING: Ending = const { Ending };
}

/// The end of a thread.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        if rustix::thread::gettid() != rustix::process::getpid() {
            STACK.with(|stack| **stack.borrow_mut() = Vec::new());
            OWN_LANES.with(|lanes| lanes.borrow_mut().clear());
        }
    }
}

fn with_stack<T>(body: impl FnOnce(&mut Vec<u64>) -> T) -> Result<T> {
    STACK
        .try_with(|stack| body(&mut stack.borrow_mut()))
        .map_err(|_| CUDA_ERROR_DEINITIALIZED)
}

/// Something is about to be kept for the calling thread: its end clears it away.
fn keep_for_thread() {
    // One that ends already keeps it.
    let _ended = ENDING.try_with(|_| ());
}

/// Handle of the current context, 0 if there is none.
pub fn current_handle() -> Result<u64> {
    with_stack(|stack| stack.last().copied().unwrap_or(0))
}

/// The current context, failed or not.
pub fn current() -> Result<Arc<Context>> {
    let driver = driver()?;
    match current_handle()? {
        0 => Err(CUDA_ERROR_INVALID_CONTEXT),
        handle => driver.contexts.get(handle).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED),
    }
}

/// The current context, unless it has failed.
pub fn usable() -> Result<Arc<Context>> {
    let context = current()?;
    context.check()?;
    Ok(context)
}

/// The context a program names; 0 means the current one.
pub fn named(handle: u64) -> Result<Arc<Context>> {
    if handle == 0 {
        current()
    } else {
        driver()?.contexts.get(handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }
}

/// Replaces the current context; 0 pops it and leaves what was below.
pub fn set_current(handle: u64) -> Result {
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
pub fn own_lane(context: &Context) -> Result<Lane> {
    keep_for_thread();
    OWN_LANES
        .try_with(|lanes| {
            *lanes
                .borrow_mut()
                .entry(context.id)
                .or_insert_with(|| context.new_lane())
        })
        .map_err(|_| CUDA_ERROR_DEINITIALIZED)
}

impl Context {
    /// A limit's value as the program set it.
    pub fn limit(&self, number: u32) -> Option<usize> {
        self.limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&number)
            .copied()
    }
}
