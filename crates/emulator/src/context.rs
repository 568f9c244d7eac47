//! Contexts: an address space, streams, and whether it has failed.

use crate::Result;
use crate::check;
use crate::device_heap::{DEFAULT_BYTES, DeviceHeap};
use crate::handle;
use crate::memory::allocation::{Allocation, Backing, Kind};
use crate::memory::registry::Addresses;
use crate::order::{Order, StreamId, StreamKind};
use crate::print::PrintBuffer;
use divvy_abi::*;
use divvy_device::exec::task::{Task, Work};
use divvy_device::memory::charge::Charged;
use divvy_device::{Device, log};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a context that is destroyed waits for its work. What the work computes is lost with the context's memory,
/// but it may still write to the host's.
const GRACE: Duration = Duration::from_secs(2);

/// A context: an address space, its streams, and whether it has failed.
pub struct Context {
    /// What the program holds.
    pub handle: u64,
    /// The device it runs on.
    pub device: Arc<Device>,
    /// The addresses of the process, which every context sees.
    pub addresses: Arc<Addresses>,
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
    /// Where its kernels' `malloc` takes memory.
    pub heap: DeviceHeap,
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
    /// Calls of cuCtxAttach without their cuCtxDetach, and one for the context's creator.
    uses: AtomicU32,
    next_stream: AtomicU64,
    /// What it costs the device while it lives.
    memory: Mutex<Option<Charged>>,
}

impl Context {
    /// A new context on a device, under the given handle, with the memory that it costs the device.
    pub fn new(
        device: Arc<Device>,
        addresses: Arc<Addresses>,
        memory: Option<Charged>,
        handle: u64,
        primary: bool,
        flags: u32,
        api_version: u32,
    ) -> Arc<Context> {
        Arc::new(Context {
            addresses,
            handle,
            device,
            id: handle::fresh(),
            primary,
            api_version,
            flags: AtomicU32::new(flags),
            order: Order::default(),
            printed: PrintBuffer::default(),
            heap: DeviceHeap::default(),
            cancel: AtomicBool::new(false),
            peers: RwLock::default(),
            limits: Mutex::default(),
            cache_config: AtomicU32::new(0),
            shared_config: AtomicU32::new(1),
            fault: AtomicU32::new(0),
            uses: AtomicU32::new(1),
            next_stream: AtomicU64::new(1),
            memory: Mutex::new(memory),
        })
    }

    /// Memory for a kernel's `malloc`: None where the context's heap has not so many bytes.
    pub fn allocate(&self, bytes: u64) -> Option<u64> {
        self.heap.allocate(bytes, || {
            let size = self.limit(CU_LIMIT_MALLOC_HEAP_SIZE.0).unwrap_or(DEFAULT_BYTES) as u64;
            let extent = self.device.heap.take(size).ok()?;
            let memory = Arc::new(Allocation::new(
                extent.address(),
                size,
                Kind::Global,
                self.handle,
                self.device.ordinal,
                Backing::Device(Arc::new(extent)),
            ));
            self.addresses.live.insert(Arc::clone(&memory)).ok()?;
            if let Some(checker) = check::on() {
                checker.name(memory.base, "the heap of the kernels' malloc".into());
            }
            Some(memory)
        })
    }

    /// An id for a new stream.
    pub fn new_stream_id(&self) -> StreamId {
        self.next_stream.fetch_add(1, Ordering::Relaxed)
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

    /// cuCtxDetach: one use less. Returns whether that was the last, which it stays until the context is destroyed.
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

    /// Waits for all work submitted so far, and ends what is not over after [`GRACE`]: the context is about to go, and a
    /// kernel that never ends would keep it for ever.
    pub fn end_work(&self) {
        let deadline = Instant::now() + GRACE;
        let over = self
            .order
            .everything()
            .iter()
            .all(|task| task.wait_done_until(deadline));
        if !over {
            self.cancel.store(true, Ordering::Relaxed);
        }
        self.drain();
    }

    /// Appends work to a stream. Work that must not run once the context failed checks for itself.
    pub fn submit(&self, stream: StreamId, kind: StreamKind, also: &[Arc<Task>], work: Work) -> Arc<Task> {
        self.order.submit(stream, kind, also, work)
    }

    /// Gives the device back what the context cost.
    pub fn give_memory(&self) {
        drop(self.memory.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// A limit's value as the program set it.
    pub fn limit(&self, number: u32) -> Option<usize> {
        self.limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&number)
            .copied()
    }
}
