//! A driver that does as it is told: a test sets what it reports, and reads what it was asked for.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use divvy_abi::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUdevice,
    CUdeviceptr, CUresult,
};
use divvy_charges::environment::{Account, Accounts, Driver, Progress, Stream, StreamId};
use divvy_charges::{Charges, Key};
use divvy_ledger::{Backing, Ledger, ReserveError, Slot, SlotOwner};

pub const PAGE: u64 = 2 << 20;
/// Bytes of each account.
pub const LIMIT: u64 = 64 * PAGE;
/// A device that nothing limits.
pub const FREE_DEVICE: CUdevice = 8;
/// A device that the slice has no share of.
pub const FOREIGN_DEVICE: CUdevice = 9;
/// An address where no test has anything else.
pub const AT: u64 = 0x7f00_0000_0000;

pub const FAILS: CUresult = CUDA_ERROR_INVALID_VALUE;
pub const OOM: CUresult = CUDA_ERROR_OUT_OF_MEMORY;

/// What the driver and the accounts of one process report, and what they were asked.
pub struct Script {
    slots: Vec<Slot>,
    pub limit: Cell<u64>,
    pub spill_limit: Cell<u64>,
    /// The most bytes that an allocation may ask for.
    pub permitted: Cell<u64>,
    /// Whether this process has charges.
    pub ours: Cell<bool>,
    /// How often an allocation may pause until there is memory.
    pub pauses: Cell<u32>,
    /// What happens at each pause.
    pub at_pause: RefCell<Option<Box<dyn FnMut()>>>,
    /// How long ago the memory of a dead process came back.
    pub returned: Cell<Option<Duration>>,
    /// What the agent answers, and how often it was asked.
    pub afresh: Cell<(bool, u32)>,
    /// Whether a residual's watcher can be started, and how often that was asked.
    pub watch: Cell<(bool, u32)>,
    pub logs: RefCell<Vec<String>>,
    pub page: Cell<Option<u64>>,
    /// Bytes that each pool holds.
    pub pools: RefCell<BTreeMap<usize, u64>>,
    /// Bytes of a pool that it cannot release.
    pub pool_floor: Cell<u64>,
    /// Which pool was trimmed to how many bytes.
    pub trims: RefCell<Vec<(usize, u64)>>,
    pub graphs: RefCell<BTreeMap<CUdevice, u64>>,
    pub context: Cell<usize>,
    /// How many events there were, and what a new one fails with.
    pub events: Cell<(usize, CUresult)>,
    pub records: Cell<bool>,
    /// Which event was recorded in which stream.
    pub recorded: RefCell<Vec<(usize, usize)>>,
    /// The state of events; the others are pending.
    pub progress: RefCell<BTreeMap<usize, Progress>>,
    pub destroyed: RefCell<Vec<usize>>,
    /// How often an event was asked for.
    pub queries: Cell<u32>,
    /// At this query all events are reached.
    pub query_limit: Cell<u32>,
    /// The device of a pointer; the others are on device 0.
    pub devices: RefCell<BTreeMap<u64, Option<CUdevice>>>,
    pub contexts: RefCell<BTreeMap<u64, usize>>,
    pub ranges: RefCell<BTreeMap<u64, (u64, u64)>>,
    pub gone: RefCell<BTreeSet<u64>>,
    pub free_answer: Cell<CUresult>,
    pub freed: RefCell<Vec<u64>>,
    pub freed_in: RefCell<Vec<(u64, usize)>>,
    pub hosted: RefCell<Vec<(u64, u64)>>,
}

/// The environment of one process.
#[derive(Clone, Copy)]
pub struct Fake(&'static Script);

/// The account of one device.
#[derive(Clone, Copy)]
pub struct Share(&'static Script, u8);

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({})", self.1)
    }
}

/// One process.
pub struct Bench {
    pub ledgers: Rc<Vec<Ledger>>,
    pub driver: &'static Script,
    pub charges: Charges<Fake>,
}

pub fn stream(handle: usize) -> Stream {
    Stream {
        handle,
        per_thread: false,
    }
}

pub fn key(name: &str) -> Key {
    Key::of(name.as_bytes())
}

pub fn works() -> CUresult {
    CUDA_SUCCESS
}

pub fn fails() -> CUresult {
    FAILS
}

pub fn never() -> CUresult {
    unreachable!("the driver is not asked")
}

pub fn claim(ledger: &Ledger) -> Slot {
    let fd = ledger.share().expect("/proc");
    Slot::claim(fd, Backing::Sealed, SlotOwner::default()).expect("a slot")
}

impl Bench {
    /// A process with accounts of two devices.
    pub fn new() -> Self {
        let ledger = || Ledger::create().expect("a ledger");
        Self::on(Rc::new(vec![ledger(), ledger()]))
    }

    /// Another process of the same slice.
    pub fn another(&self) -> Self {
        Self::on(Rc::clone(&self.ledgers))
    }

    fn on(ledgers: Rc<Vec<Ledger>>) -> Self {
        // It is leaked, since a process's own state lives for ever as well.
        let driver: &'static Script = Box::leak(Box::new(Script {
            slots: ledgers.iter().map(claim).collect(),
            limit: Cell::new(LIMIT),
            spill_limit: Cell::new(0),
            permitted: Cell::new(u64::MAX),
            ours: Cell::new(true),
            pauses: Cell::new(0),
            at_pause: RefCell::default(),
            returned: Cell::new(None),
            afresh: Cell::new((false, 0)),
            watch: Cell::new((true, 0)),
            logs: RefCell::default(),
            page: Cell::new(Some(PAGE)),
            pools: RefCell::default(),
            pool_floor: Cell::new(0),
            trims: RefCell::default(),
            graphs: RefCell::default(),
            context: Cell::new(1),
            events: Cell::new((0, CUDA_SUCCESS)),
            records: Cell::new(true),
            recorded: RefCell::default(),
            progress: RefCell::default(),
            destroyed: RefCell::default(),
            queries: Cell::new(0),
            query_limit: Cell::new(u32::MAX),
            devices: RefCell::default(),
            contexts: RefCell::default(),
            ranges: RefCell::default(),
            gone: RefCell::default(),
            free_answer: Cell::new(CUDA_SUCCESS),
            freed: RefCell::default(),
            freed_in: RefCell::default(),
            hosted: RefCell::default(),
        }));
        Self {
            ledgers,
            driver,
            charges: Charges::new(Fake(driver)),
        }
    }

    pub fn account(&self, index: u8) -> Share {
        self.charges.env().account(index).expect("an account")
    }

    /// Bytes charged on the first device.
    pub fn used(&self) -> u64 {
        self.ledgers[0].total_used()
    }

    /// Bytes charged on both.
    pub fn both(&self) -> [u64; 2] {
        [0, 1].map(|index: usize| self.ledgers[index].total_used())
    }

    /// Pages charged on the first device; what is charged is in whole pages.
    pub fn pages(&self) -> u64 {
        assert_eq!(self.used() % PAGE, 0);
        self.used() / PAGE
    }

    /// Bytes that this process is charged on the first device.
    pub fn own(&self) -> u64 {
        self.driver.slots[0].used().expect("our own")
    }

    pub fn slot(&self) -> &'static Slot {
        &self.driver.slots[0]
    }

    /// Allocates at an address, and returns the bytes charged during the call.
    pub fn allocate(&self, at: u64, bytes: u64) -> u64 {
        let during = Cell::new(0);
        let call = || {
            during.set(self.used());
            CUDA_SUCCESS
        };
        let result = self.charges.allocate(self.account(0), bytes, call, || at);
        assert_eq!(result, CUDA_SUCCESS);
        during.get()
    }

    pub fn free(&self, at: u64) -> CUresult {
        self.charges.free(at, works)
    }

    pub fn free_in(&self, handle: usize, at: u64) {
        assert_eq!(self.charges.free_in(stream(handle), at, works), CUDA_SUCCESS);
    }

    /// The stream has passed an event.
    pub fn reaches(&self, event: usize) {
        self.driver.progress.borrow_mut().insert(event, Progress::Reached);
    }

    pub fn pool_holds(&self, pool: usize, pages: u64) {
        self.driver.pools.borrow_mut().insert(pool, pages * PAGE);
    }

    /// Whether `text` is in any message so far.
    pub fn logged(&self, text: &str) -> bool {
        self.driver.logs.borrow().iter().any(|line| line.contains(text))
    }
}

impl Account for Share {
    fn index(self) -> u8 {
        self.1
    }

    fn reserve(self, bytes: u64) -> Result<(), ReserveError> {
        self.0.slots[usize::from(self.1)].reserve(bytes, self.limit_bytes())
    }

    fn give_back(self, bytes: u64) {
        self.0.slots[usize::from(self.1)]
            .release(bytes)
            .expect("what was reserved");
    }

    fn limit_bytes(self) -> u64 {
        self.0.limit.get()
    }

    fn room_bytes(self) -> u64 {
        let used = self.0.slots[usize::from(self.1)].total_used();
        self.limit_bytes().saturating_sub(used.expect("our own"))
    }

    fn context_bytes(self) -> u64 {
        3 * PAGE
    }

    fn slot(self) -> Option<&'static Slot> {
        Some(&self.0.slots[usize::from(self.1)])
    }

    fn spill_limit_bytes(self) -> u64 {
        self.0.spill_limit.get()
    }

    fn look_afresh(self, _: u64) -> bool {
        let (answer, asked) = self.0.afresh.get();
        self.0.afresh.set((answer, asked + 1));
        answer
    }

    fn since_return(self) -> Option<Duration> {
        self.0.returned.get()
    }

    fn begin_waiting(self, _: u64) -> Option<impl FnMut() -> bool> {
        (self.0.pauses.get() > 0).then_some(move || {
            let left = self.0.pauses.get();
            self.0.pauses.set(left.saturating_sub(1));
            if let Some(happens) = self.0.at_pause.borrow_mut().as_mut() {
                happens();
            }
            left > 0
        })
    }
}

impl Accounts for Fake {
    type Account = Share;

    fn is_ours(&self) -> bool {
        self.0.ours.get()
    }

    fn account(&self, index: u8) -> Option<Share> {
        (usize::from(index) < self.0.slots.len()).then_some(Share(self.0, index))
    }

    fn accounts(&self) -> impl Iterator<Item = Share> {
        let script = self.0;
        (0..script.slots.len() as u8).map(move |index| Share(script, index))
    }

    fn of_device(&self, device: CUdevice) -> Result<Option<Share>, CUresult> {
        match device {
            FREE_DEVICE => Ok(None),
            FOREIGN_DEVICE => Err(CUDA_ERROR_INVALID_DEVICE),
            device => Ok(self.account(device as u8)),
        }
    }

    fn permit(&self, bytes: u64) -> Result<(), CUresult> {
        if bytes > self.0.permitted.get() {
            Err(FAILS)
        } else {
            Ok(())
        }
    }

    fn watch(&self, _: Share) -> bool {
        let (answer, asked) = self.0.watch.get();
        self.0.watch.set((answer, asked + 1));
        answer
    }

    fn log(&self, message: fmt::Arguments<'_>) {
        self.0.logs.borrow_mut().push(message.to_string());
    }
}

impl Driver for Fake {
    fn granularity(&self) -> Option<u64> {
        self.0.page.get()
    }

    fn pool_reserved(&self, pool: usize) -> Option<u64> {
        self.0.pools.borrow().get(&pool).copied()
    }

    fn trim_pool(&self, pool: usize, keep: u64) {
        self.0.trims.borrow_mut().push((pool, keep / PAGE));
        if let Some(held) = self.0.pools.borrow_mut().get_mut(&pool) {
            *held = keep.max(self.0.pool_floor.get()).min(*held);
        }
    }

    fn graphs_reserved(&self, device: CUdevice) -> Option<u64> {
        self.0.graphs.borrow().get(&device).copied()
    }

    fn trim_graphs(&self, device: CUdevice) -> CUresult {
        self.0.graphs.borrow_mut().insert(device, 0);
        CUDA_SUCCESS
    }

    fn current_context(&self) -> usize {
        self.0.context.get()
    }

    fn stream_id(&self, stream: Stream) -> StreamId {
        StreamId {
            context: self.0.context.get(),
            handle: stream.handle,
            thread: usize::from(stream.per_thread),
        }
    }

    fn new_event(&self, _: usize) -> Result<usize, CUresult> {
        let (count, answer) = self.0.events.get();
        if !answer.is_success() {
            return Err(answer);
        }
        self.0.events.set((count + 1, answer));
        Ok(count + 1)
    }

    fn record(&self, event: usize, stream: Stream) -> bool {
        self.0.recorded.borrow_mut().push((event, stream.handle));
        self.0.progress.borrow_mut().remove(&event);
        self.0.records.get()
    }

    fn query(&self, event: usize) -> Progress {
        self.0.queries.set(self.0.queries.get() + 1);
        if self.0.queries.get() >= self.0.query_limit.get() {
            return Progress::Reached;
        }
        let progress = self.0.progress.borrow();
        progress.get(&event).copied().unwrap_or(Progress::Pending)
    }

    fn destroy_event(&self, event: usize) {
        self.0.destroyed.borrow_mut().push(event);
    }

    fn quiet(&self) -> impl Sized {}

    fn device_of(&self, pointer: CUdeviceptr) -> Option<CUdevice> {
        self.0.devices.borrow().get(&pointer).copied().unwrap_or(Some(0))
    }

    fn context_of(&self, pointer: CUdeviceptr) -> Option<usize> {
        self.0.contexts.borrow().get(&pointer).copied()
    }

    fn range_of(&self, pointer: CUdeviceptr) -> Option<(CUdeviceptr, u64)> {
        self.0.ranges.borrow().get(&pointer).copied()
    }

    fn is_gone(&self, pointer: CUdeviceptr) -> bool {
        self.0.gone.borrow().contains(&pointer)
    }

    fn free(&self, pointer: CUdeviceptr) -> CUresult {
        self.0.freed.borrow_mut().push(pointer);
        self.0.free_answer.get()
    }

    fn free_in(&self, pointer: CUdeviceptr, stream: Stream) {
        self.0.freed_in.borrow_mut().push((pointer, stream.handle));
    }

    fn prefer_host(&self, pointer: CUdeviceptr, bytes: u64) {
        self.0.hosted.borrow_mut().push((pointer, bytes));
    }
}
