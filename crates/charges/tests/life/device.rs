//! A device that hands out pages, and the driver of two processes that share it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;

use divvy_abi::{CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUresult};
use divvy_charges::environment::{Account, Accounts, Driver, Progress, Stream, StreamId};
use divvy_ledger::{ReserveError, Slot};

pub const PAGE: u64 = 2 << 20;
/// Bytes that both processes may use.
pub const LIMIT: u64 = 64 * PAGE;
/// The pool of each process.
pub const POOL: usize = 1;

/// The memory taken from the device.
#[derive(Default)]
pub struct Device {
    next: u64,
    /// Allocations and importers of each page.
    pages: BTreeMap<u64, u32>,
    /// Bytes of pools and of physical memory.
    pub other_bytes: u64,
}

impl Device {
    pub fn held_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE + self.other_bytes
    }

    fn new_page(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn hold(&mut self, pages: &[u64]) {
        for page in pages {
            *self.pages.entry(*page).or_default() += 1;
        }
    }

    pub fn let_go(&mut self, pages: &[u64]) {
        for page in pages {
            let users = self.pages.get_mut(page).expect("a page in use");
            *users -= 1;
            if *users == 0 {
                self.pages.remove(page);
            }
        }
    }
}

/// An allocation, with the device's pages that it lies in.
#[derive(Clone)]
pub struct Allocation {
    /// A number that no other allocation has, not even at the same address.
    pub number: u64,
    pub bytes: u64,
    pub pages: Vec<u64>,
    pooled: bool,
}

enum Work {
    Free(CUdeviceptr),
    Event(usize),
}

/// A driver's knowledge of one process.
#[derive(Default)]
pub struct Memory {
    /// The device's page behind each page of addresses, and the allocations in it.
    mapped: BTreeMap<u64, (u64, u32)>,
    /// Bytes of each allocation, by its begin.
    occupied: BTreeMap<u64, u64>,
    /// Begin and bytes of freed memory that importers have open, in pages that are mapped.
    holes: Vec<(u64, u64)>,
    pub live: BTreeMap<CUdeviceptr, Allocation>,
    streams: [VecDeque<Work>; 2],
    pending: BTreeSet<usize>,
    events: usize,
    /// How many allocations there ever were.
    count: u64,
    /// Bytes that the pool has, and those in use.
    pool: (u64, u64),
    /// The cost of a context, in bytes.
    pub context_bytes: u64,
    /// Bytes that graphs have taken; `None` if the driver cannot tell.
    pub graphs: Option<u64>,
}

/// One process.
pub struct Process {
    pub device: Rc<RefCell<Device>>,
    pub memory: RefCell<Memory>,
    pub slot: Slot,
}

/// The environment of one process.
#[derive(Clone, Copy)]
pub struct Fake(pub &'static Process);

/// The account of a process. Both have the same device.
#[derive(Clone, Copy)]
pub struct Share(&'static Process);

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({})", self.0.slot.index())
    }
}

impl Process {
    /// The driver's cuMemAlloc: into gaps of pages where it fits, else to the lowest free addresses.
    pub fn allocate(&self, bytes: u64) -> CUdeviceptr {
        let mut memory = self.memory.borrow_mut();
        let gap = (bytes < PAGE).then(|| memory.gap(bytes)).flatten();
        let pointer = gap.unwrap_or_else(|| memory.free_addresses(bytes));
        memory.occupied.insert(pointer, bytes);
        let mut device = self.device.borrow_mut();
        let pages: Vec<u64> = pages_of(pointer, bytes)
            .map(|address| {
                let (page, live) = memory
                    .mapped
                    .entry(address)
                    .or_insert_with(|| (device.new_page(), 0));
                *live += 1;
                *page
            })
            .collect();
        device.hold(&pages);
        memory.note(pointer, bytes, pages, false);
        pointer
    }

    /// The driver's cuMemAllocAsync: whole pages, which the pool keeps.
    pub fn allocate_from_pool(&self, bytes: u64) -> CUdeviceptr {
        let bytes = bytes.next_multiple_of(PAGE);
        let mut memory = self.memory.borrow_mut();
        let pointer = memory.free_addresses(bytes);
        memory.occupied.insert(pointer, bytes);
        memory.note(pointer, bytes, Vec::new(), true);
        let (reserved, used) = &mut memory.pool;
        *used += bytes;
        let more = used.saturating_sub(*reserved);
        *reserved += more;
        self.device.borrow_mut().other_bytes += more;
        pointer
    }

    /// The driver's cuMemFree.
    pub fn free(&self, pointer: CUdeviceptr) -> CUresult {
        let mut memory = self.memory.borrow_mut();
        let Some(freed) = memory.live.remove(&pointer) else {
            return CUDA_ERROR_INVALID_VALUE;
        };
        if freed.pooled {
            memory.occupied.remove(&pointer);
            memory.pool.1 -= freed.bytes;
            return CUDA_SUCCESS;
        }
        self.device.borrow_mut().let_go(&freed.pages);
        let device = self.device.borrow();
        // If an importer has it open, its part of a mapped page is not handed out again.
        let is_open = freed.pages.iter().any(|page| device.pages.contains_key(page));
        memory.occupied.remove(&pointer);
        for (address, page) in pages_of(pointer, freed.bytes).zip(&freed.pages) {
            let (_, live) = memory.mapped.get_mut(&address).expect("it is mapped");
            *live -= 1;
            if *live == 0 {
                memory.mapped.remove(&address);
                memory.holes.retain(|(begin, _)| begin / PAGE * PAGE != address);
            } else if is_open && device.pages.contains_key(page) {
                let begin = pointer.max(address);
                let end = (pointer + freed.bytes).min(address + PAGE);
                memory.holes.push((begin, end - begin));
            }
        }
        CUDA_SUCCESS
    }

    /// The driver's cuMemFreeAsync.
    pub fn free_later(&self, pointer: CUdeviceptr, stream: usize) -> CUresult {
        self.memory.borrow_mut().streams[stream].push_back(Work::Free(pointer));
        CUDA_SUCCESS
    }

    /// A stream finishes all its work. In some cases, memory that it has freed before our event behind it is charged
    /// one page too much or too little (docs/adr/0037). So the stream stops at no such moment here.
    pub fn advance(&self, stream: usize) {
        let work = core::mem::take(&mut self.memory.borrow_mut().streams[stream]);
        for one in work {
            match one {
                Work::Free(pointer) => assert!(self.free(pointer).is_success()),
                Work::Event(event) => assert!(self.memory.borrow_mut().pending.remove(&event)),
            }
        }
    }
}

fn pages_of(pointer: u64, bytes: u64) -> impl Iterator<Item = u64> + use<> {
    (pointer / PAGE * PAGE..pointer + bytes).step_by(PAGE as usize)
}

impl Memory {
    /// Returns bytes that go back to the device: nothing is in use.
    pub fn destroy_pool(&mut self) -> u64 {
        assert_eq!(self.pool.1, 0);
        core::mem::take(&mut self.pool).0
    }

    fn note(&mut self, pointer: u64, bytes: u64, pages: Vec<u64>, pooled: bool) {
        self.count += 1;
        let allocation = Allocation {
            number: self.count,
            bytes,
            pages,
            pooled,
        };
        self.live.insert(pointer, allocation);
    }

    /// A gap in a page that is mapped.
    fn gap(&self, bytes: u64) -> Option<u64> {
        let pages = self.mapped.keys().copied();
        pages.into_iter().find_map(|page| {
            let begin = self.used_of(page);
            let mut at = page;
            for (from, to) in begin {
                if from >= at + bytes {
                    break;
                }
                at = at.max(to);
            }
            (at + bytes <= page + PAGE).then_some(at)
        })
    }

    /// The used parts of a page, from and to, in order.
    fn used_of(&self, page: u64) -> Vec<(u64, u64)> {
        let occupied = self.occupied.iter().map(|(from, bytes)| (*from, from + bytes));
        let holes = self.holes.iter().map(|(from, bytes)| (*from, from + bytes));
        let all = occupied.chain(holes);
        let mut used: Vec<_> = all
            .filter(|(from, to)| *from < page + PAGE && *to > page)
            .collect();
        used.sort_unstable();
        used
    }

    fn free_addresses(&self, bytes: u64) -> u64 {
        let mut at = 0x7f00_0000_0000;
        for (begin, bytes_there) in &self.occupied {
            let begin_page = begin / PAGE * PAGE;
            if begin_page >= (at + bytes).next_multiple_of(PAGE) {
                break;
            }
            at = at.max((begin + bytes_there).next_multiple_of(PAGE));
        }
        at
    }
}

impl Account for Share {
    fn index(self) -> u8 {
        0
    }

    fn reserve(self, bytes: u64) -> Result<(), ReserveError> {
        let answer = self.0.slot.reserve(bytes, LIMIT);
        if answer.is_err() {
            // The device works while a process waits.
            self.0.advance(0);
            self.0.advance(1);
        }
        answer
    }

    fn give_back(self, bytes: u64) {
        self.0.slot.release(bytes).expect("what was reserved");
    }

    fn limit_bytes(self) -> u64 {
        LIMIT
    }

    fn room_bytes(self) -> u64 {
        LIMIT - self.0.slot.total_used().expect("our own")
    }

    fn context_bytes(self) -> u64 {
        self.0.memory.borrow().context_bytes
    }

    fn slot(self) -> Option<&'static Slot> {
        Some(&self.0.slot)
    }
}

impl Accounts for Fake {
    type Account = Share;

    fn is_ours(&self) -> bool {
        true
    }

    fn account(&self, index: u8) -> Option<Share> {
        (index == 0).then_some(Share(self.0))
    }

    fn accounts(&self) -> impl Iterator<Item = Share> {
        self.account(0).into_iter()
    }

    fn of_device(&self, _: CUdevice) -> Result<Option<Share>, CUresult> {
        Ok(self.account(0))
    }

    fn permit(&self, _: u64) -> Result<(), CUresult> {
        Ok(())
    }

    fn watch(&self, _: Share) -> bool {
        true
    }

    fn log(&self, _: fmt::Arguments<'_>) {}
}

impl Driver for Fake {
    fn granularity(&self) -> Option<u64> {
        Some(PAGE)
    }

    fn pool_reserved(&self, _: usize) -> Option<u64> {
        Some(self.0.memory.borrow().pool.0)
    }

    fn trim_pool(&self, _: usize, keep: u64) {
        let mut memory = self.0.memory.borrow_mut();
        let (reserved, used) = &mut memory.pool;
        let now = (*used).max(keep).min(*reserved);
        self.0.device.borrow_mut().other_bytes -= *reserved - now;
        *reserved = now;
    }

    fn graphs_reserved(&self, _: CUdevice) -> Option<u64> {
        self.0.memory.borrow().graphs
    }

    fn trim_graphs(&self, _: CUdevice) -> CUresult {
        CUDA_SUCCESS
    }

    fn current_context(&self) -> usize {
        1
    }

    fn stream_id(&self, stream: Stream) -> StreamId {
        StreamId {
            context: 1,
            handle: stream.handle,
            thread: 0,
        }
    }

    fn new_event(&self, _: usize) -> Result<usize, CUresult> {
        let mut memory = self.0.memory.borrow_mut();
        memory.events += 1;
        Ok(memory.events)
    }

    fn record(&self, event: usize, stream: Stream) -> bool {
        let mut memory = self.0.memory.borrow_mut();
        for stream in &mut memory.streams {
            stream.retain(|work| !matches!(work, Work::Event(other) if *other == event));
        }
        memory.pending.insert(event);
        memory.streams[stream.handle].push_back(Work::Event(event));
        true
    }

    fn query(&self, event: usize) -> Progress {
        if self.0.memory.borrow().pending.contains(&event) {
            Progress::Pending
        } else {
            Progress::Reached
        }
    }

    fn destroy_event(&self, _: usize) {}

    fn quiet(&self) -> impl Sized {}

    fn device_of(&self, _: CUdeviceptr) -> Option<CUdevice> {
        Some(0)
    }

    fn context_of(&self, _: CUdeviceptr) -> Option<usize> {
        Some(1)
    }

    fn range_of(&self, pointer: CUdeviceptr) -> Option<(CUdeviceptr, u64)> {
        let memory = self.0.memory.borrow();
        let found = memory.live.get(&pointer)?;
        Some((pointer, found.bytes))
    }

    fn is_gone(&self, pointer: CUdeviceptr) -> bool {
        !self.0.memory.borrow().live.contains_key(&pointer)
    }

    fn free(&self, pointer: CUdeviceptr) -> CUresult {
        self.0.free(pointer)
    }

    fn free_in(&self, pointer: CUdeviceptr, stream: Stream) {
        self.0.free_later(pointer, stream.handle);
    }

    fn prefer_host(&self, _: CUdeviceptr, _: u64) {}
}
