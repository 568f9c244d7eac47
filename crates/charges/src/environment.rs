//! What charges need from outside: the accounts that pay, and the driver that holds the memory.

use core::fmt;
use core::time::Duration;

use divvy_abi::{CUdevice, CUdeviceptr, CUresult};
use divvy_ledger::{ReserveError, Slot};

/// An account: the slice's share of one device. A handle, and cheap to copy.
pub trait Account: Copy + fmt::Debug {
    /// Its number among the process's accounts.
    fn index(self) -> u8;

    /// Takes `bytes` if the account has room for them.
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

    /// This process's place in the ledger, where there is one.
    fn slot(self) -> Option<&'static Slot> {
        None
    }

    /// Bytes that may be allocated beyond the limit, in managed memory.
    fn spill_limit_bytes(self) -> u64 {
        0
    }

    /// Asks the agent what the driver holds for itself. Returns whether `bytes` may fit by now.
    fn look_afresh(self, _bytes: u64) -> bool {
        false
    }

    /// How long ago bytes of a dead process came back.
    fn since_return(self) -> Option<Duration> {
        None
    }

    /// Begins to wait for `bytes`, where the slice's terms wait for room. The function pauses, and returns false once
    /// the time is over.
    fn begin_waiting(self, _bytes: u64) -> Option<impl FnMut() -> bool> {
        None::<fn() -> bool>
    }

    /// Takes `bytes` if they are to be had at once. Callers that may wait use [`Reserve`].
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

    /// The account of a device; none where nothing is limited.
    ///
    /// # Errors
    /// What the program gets where the slice has no share of the device.
    fn of_device(&self, device: CUdevice) -> Result<Option<Self::Account>, CUresult>;

    /// Whether an allocation of `bytes` may be tried at all.
    ///
    /// # Errors
    /// What the program gets if not.
    fn permit(&self, bytes: u64) -> Result<(), CUresult>;

    /// Begins to call [`crate::Charges::follow_residuals`] whenever an importer leaves memory that this account still
    /// pays for. Returns whether that worked.
    fn watch(&self, account: Self::Account) -> bool;

    /// Notes what went wrong.
    fn log(&self, message: fmt::Arguments<'_>);
}

/// A stream as a call names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its handle.
    pub handle: usize,
    /// The call's default stream is each thread's own.
    pub per_thread: bool,
}

/// A stream, whatever name a call gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId {
    /// Its context.
    pub context: usize,
    /// Its handle.
    pub handle: usize,
    /// The thread whose default stream it is, else 0.
    pub thread: usize,
}

/// How far an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The stream has passed it.
    Reached,
    /// The stream has not, or has failed.
    Pending,
    /// It is gone with its context, and so is the stream.
    Gone,
}

/// The driver below. It is asked and told; nothing here is charged.
pub trait Driver {
    /// Bytes of a page of the current device. [`crate::UNIT`] where the driver tells no pages, and none where it
    /// cannot tell yet.
    fn granularity(&self) -> Option<u64>;

    /// Bytes that a pool has taken from its device.
    fn pool_reserved(&self, pool: usize) -> Option<u64>;

    /// Has a pool let go of what is unused beyond `keep` bytes.
    fn trim_pool(&self, pool: usize, keep: u64);

    /// Bytes that graphs have taken from a device.
    fn graphs_reserved(&self, device: CUdevice) -> Option<u64>;

    /// Has graphs let go of what is unused on a device.
    fn trim_graphs(&self, device: CUdevice) -> CUresult;

    /// The thread's current context; 0 for none.
    fn current_context(&self) -> usize;

    /// Which stream a call names.
    fn stream_id(&self, stream: Stream) -> StreamId;

    /// A new event in a context.
    ///
    /// # Errors
    /// The driver's code; `CUDA_ERROR_NOT_SUPPORTED` of a driver without events.
    fn new_event(&self, context: usize) -> Result<usize, CUresult>;

    /// Records an event of ours in a stream. Returns whether that worked.
    fn record(&self, event: usize, stream: Stream) -> bool;

    /// How far an event of ours is.
    fn query(&self, event: usize) -> Progress;

    /// Ends an event of ours.
    fn destroy_event(&self, event: usize);

    /// While the answer lives, calls of this thread break no stream capture.
    fn quiet(&self) -> impl Sized;

    /// The device that memory at a pointer is on.
    fn device_of(&self, pointer: CUdeviceptr) -> Option<CUdevice>;

    /// The context of an allocation, as far as the driver tells.
    fn context_of(&self, pointer: CUdeviceptr) -> Option<usize>;

    /// Begin and size in bytes of the allocation that a pointer lies in.
    fn range_of(&self, pointer: CUdeviceptr) -> Option<(CUdeviceptr, u64)>;

    /// Whether the driver knows no such pointer. Any other answer leaves it open whether the memory is gone.
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

/// Reserves, and finds or awaits room before it refuses. Not to be called with a lock held.
pub trait Reserve<A> {
    /// Takes `bytes`, a multiple of [`crate::UNIT`]. `what` is for the log: "an allocation".
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` over the limit; `CUDA_ERROR_NOT_INITIALIZED` in a forked child;
    /// `CUDA_ERROR_SYSTEM_NOT_READY` where the bytes cannot be counted.
    fn take(&self, account: A, bytes: u64, what: &'static str) -> Result<(), CUresult>;

    /// [`Reserve::take`], after [`Accounts::permit`].
    ///
    /// # Errors
    /// Those of both.
    fn reserve(&self, account: A, bytes: u64, what: &'static str) -> Result<(), CUresult>;
}
