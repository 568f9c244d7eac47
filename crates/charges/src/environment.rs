//! The environment of the charges: the accounts that are charged, and the driver that holds the memory.

use core::fmt;
use core::time::Duration;

use divvy_abi::{CUdevice, CUdeviceptr, CUresult};
use divvy_ledger::{ReserveError, Slot};

/// An account: the slice's share of one device. A handle, and cheap to copy.
pub trait Account: Copy + fmt::Debug {
    /// Its number among the process's accounts.
    fn index(self) -> u8;

    /// Takes `bytes` if they fit into the account.
    ///
    /// # Errors
    /// [`ReserveError`].
    fn reserve(self, bytes: u64) -> Result<(), ReserveError>;

    /// Gives back bytes that were reserved.
    fn give_back(self, bytes: u64);

    /// Bytes that the account may use.
    fn limit_bytes(self) -> u64;

    /// Bytes of the limit that are not in use.
    fn room_bytes(self) -> u64;

    /// Bytes that a context costs on its device.
    fn context_bytes(self) -> u64;

    /// This process's slot in the ledger, if it has one.
    fn slot(self) -> Option<&'static Slot> {
        None
    }

    /// Bytes that may be allocated beyond the limit, in managed memory.
    fn spill_limit_bytes(self) -> u64 {
        0
    }

    /// Asks the agent how much the driver holds for itself. Returns whether `bytes` may fit by now.
    fn look_afresh(self, _bytes: u64) -> bool {
        false
    }

    /// How long ago bytes of a dead process came back.
    fn since_return(self) -> Option<Duration> {
        None
    }

    /// Begins to wait for `bytes`, if the slice's terms allow waiting. The function pauses, and returns false once the
    /// time is over.
    fn begin_waiting(self, _bytes: u64) -> Option<impl FnMut() -> bool> {
        None::<fn() -> bool>
    }

    /// Takes `bytes` if they are available at once. Callers that may wait use [`Reserve`].
    #[inline]
    fn try_reserve(self, bytes: u64) -> bool {
        self.reserve(bytes).is_ok()
    }
}

/// The accounts of this process.
pub trait Accounts {
    /// One of them.
    type Account: Account;

    /// Whether charges of this process can exist: it is in a slice, and not a forked child with a copy of its parent's
    /// tables.
    fn is_ours(&self) -> bool;

    /// The account with this index.
    fn account(&self, index: u8) -> Option<Self::Account>;

    /// All of them, by index.
    fn accounts(&self) -> impl Iterator<Item = Self::Account>;

    /// The account of a device; none if nothing is limited.
    ///
    /// # Errors
    /// The program's result if the slice has no share of the device.
    fn of_device(&self, device: CUdevice) -> Result<Option<Self::Account>, CUresult>;

    /// Whether an allocation of `bytes` may be tried.
    ///
    /// # Errors
    /// The program's result if not.
    fn permit(&self, bytes: u64) -> Result<(), CUresult>;

    /// Begins to call [`crate::Charges::follow_residuals`] whenever an importer leaves memory that this account is
    /// still charged for. Returns whether that worked.
    fn watch(&self, account: Self::Account) -> bool;

    /// Logs a failure.
    fn log(&self, message: fmt::Arguments<'_>);
}

/// A stream as a call names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its handle.
    pub handle: usize,
    /// The call's default stream is the per-thread one.
    pub per_thread: bool,
}

/// A stream, independent of the name that a call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId {
    /// Its context.
    pub context: usize,
    /// Its handle.
    pub handle: usize,
    /// The thread whose default stream it is; otherwise 0.
    pub thread: usize,
}

/// The state of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The stream has passed it.
    Reached,
    /// The stream has not, or has failed.
    Pending,
    /// It ended with its context, and so did the stream.
    Gone,
}

/// The driver below. Nothing here is charged.
pub trait Driver {
    /// Bytes of a page of the current device. [`crate::UNIT`] if the driver reports no pages, and `None` if it cannot
    /// tell yet.
    fn granularity(&self) -> Option<u64>;

    /// Bytes that a pool has taken from its device.
    fn pool_reserved(&self, pool: usize) -> Option<u64>;

    /// Makes a pool release its unused memory beyond `keep` bytes.
    fn trim_pool(&self, pool: usize, keep: u64);

    /// Bytes that graphs have taken from a device.
    fn graphs_reserved(&self, device: CUdevice) -> Option<u64>;

    /// Makes graphs release their unused memory on a device.
    fn trim_graphs(&self, device: CUdevice) -> CUresult;

    /// The thread's current context; 0 for none.
    fn current_context(&self) -> usize;

    /// Which stream a call names.
    fn stream_id(&self, stream: Stream) -> StreamId;

    /// A new event in a context.
    ///
    /// # Errors
    /// The driver's code; `CUDA_ERROR_NOT_SUPPORTED` for a driver without events.
    fn new_event(&self, context: usize) -> Result<usize, CUresult>;

    /// Records an event of ours in a stream. Returns whether that worked.
    fn record(&self, event: usize, stream: Stream) -> bool;

    /// The state of an event of ours.
    fn query(&self, event: usize) -> Progress;

    /// Destroys an event of ours.
    fn destroy_event(&self, event: usize);

    /// While the returned value lives, calls of this thread break no stream capture.
    fn quiet(&self) -> impl Sized;

    /// The device that memory at a pointer is on.
    fn device_of(&self, pointer: CUdeviceptr) -> Option<CUdevice>;

    /// The context of an allocation, if the driver knows it.
    fn context_of(&self, pointer: CUdeviceptr) -> Option<usize>;

    /// Begin and size in bytes of the allocation that a pointer lies in.
    fn range_of(&self, pointer: CUdeviceptr) -> Option<(CUdeviceptr, u64)>;

    /// Whether the driver does not know such a pointer. Any other result leaves it open whether the memory is gone.
    fn is_gone(&self, pointer: CUdeviceptr) -> bool;

    /// Frees an allocation that the program does not know.
    fn free(&self, pointer: CUdeviceptr) -> CUresult;

    /// Frees one in stream order.
    fn free_in(&self, pointer: CUdeviceptr, stream: Stream);

    /// Asks for the pages of managed memory to stay on the host, mapped into the device.
    fn prefer_host(&self, pointer: CUdeviceptr, bytes: u64);
}

/// Both.
pub trait Environment: Accounts + Driver {}

impl<E: Accounts + Driver> Environment for E {}

/// Reserves memory; it looks or waits for free memory before it refuses. Not to be called with a lock held.
pub trait Reserve<A> {
    /// Takes `bytes`, a multiple of [`crate::UNIT`]. `what` is for the log: "an allocation".
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` over the limit; `CUDA_ERROR_NOT_INITIALIZED` in a forked child;
    /// `CUDA_ERROR_SYSTEM_NOT_READY` if the bytes cannot be counted.
    fn take(&self, account: A, bytes: u64, what: &'static str) -> Result<(), CUresult>;

    /// [`Reserve::take`], after [`Accounts::permit`].
    ///
    /// # Errors
    /// The errors of both.
    fn reserve(&self, account: A, bytes: u64, what: &'static str) -> Result<(), CUresult>;
}
