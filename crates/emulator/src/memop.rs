//! Stream memory operations: words of memory that a stream waits for or writes.
//!
//! A wait occupies no thread: one thread of ours looks at all words that are waited for, and is there only while there
//! are any. A wait ends without its condition when its stream or context goes, so that no wait lasts for ever.

use crate::Result;
use crate::check;
use crate::context::Context;
use crate::graph::Foreign;
use crate::memory::allocation::{Allocation, Kind};
use crate::memory::registry::Addresses;
use crate::stream::Stream;
use divvy_abi::*;
use divvy_device::exec::pool;
use divvy_device::exec::task::{Task, Work};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Operations that a stream does one after another.
pub struct MemOps {
    /// As the program gave them, lent to it by cuGraphBatchMemOpNodeGetParams.
    pub raw: Box<[Foreign<CUstreamBatchMemOpParams>]>,
    ops: Vec<Op>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Wait {
        word: Word,
        value: u64,
        condition: u32,
    },
    Write {
        word: Word,
        value: u64,
    },
    Reduce {
        word: Word,
        value: u64,
        how: CUstreamAtomicReductionOpType,
    },
    Barrier,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Word {
    address: u64,
    bytes: u64,
}

/// cuStreamBatchMemOp takes fewer than this many operations.
pub const TOO_MANY: u32 = 256;
/// How often words that are waited for are looked at.
const POLL: Duration = Duration::from_micros(50);

impl MemOps {
    /// Checks operations: each word lies in memory of a device or of the host that the device knows, other than
    /// managed memory, and is aligned (CUDA driver API, cuStreamWaitValue32).
    pub fn read(addresses: &Addresses, list: Vec<CUstreamBatchMemOpParams>) -> Result<Arc<MemOps>> {
        if list.len() >= TOO_MANY as usize {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let ops = list
            .iter()
            .map(|raw| Op::read(addresses, raw))
            .collect::<Result<Vec<_>>>()?;
        let raw = list.into_iter().map(Foreign).collect();
        Ok(Arc::new(MemOps { raw, ops }))
    }

    /// Whether these can take the place of `old` in an executable graph: only words, values and conditions differ.
    pub fn fits(&self, old: &MemOps) -> bool {
        let same = |(new, old): (&Op, &Op)| {
            let size = |op: &Op| op.word().map(|word| word.bytes);
            let reduced = matches!((new, old), (Op::Reduce { .. }, _) | (_, Op::Reduce { .. }));
            std::mem::discriminant(new) == std::mem::discriminant(old)
                && size(new) == size(old)
                && (!reduced || new == old)
        };
        self.ops.len() == old.ops.len() && self.ops.iter().zip(&old.ops).all(same)
    }

    fn waits(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Wait { .. }))
    }
}

impl Op {
    fn read(addresses: &Addresses, raw: &CUstreamBatchMemOpParams) -> Result<Op> {
        // SAFETY: every member of the union starts with the operation.
        let operation = unsafe { raw.operation };
        match operation {
            CU_STREAM_MEM_OP_WAIT_VALUE_32 | CU_STREAM_MEM_OP_WAIT_VALUE_64 => {
                // SAFETY: the operation says which member it is; any bits are numbers.
                let (wait, value) = unsafe { (raw.waitValue, raw.waitValue.anonymous1.value64) };
                let word = Word::check(
                    addresses,
                    wait.address,
                    operation == CU_STREAM_MEM_OP_WAIT_VALUE_64,
                )?;
                if wait.flags & CU_STREAM_WAIT_VALUE_FLUSH.0 != 0 {
                    // CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES is 0.
                    return Err(CUDA_ERROR_NOT_SUPPORTED);
                }
                if wait.flags > CU_STREAM_WAIT_VALUE_NOR.0 {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                let (value, condition) = (word.cut(value), wait.flags);
                Ok(Op::Wait {
                    word,
                    value,
                    condition,
                })
            }
            CU_STREAM_MEM_OP_WRITE_VALUE_32 | CU_STREAM_MEM_OP_WRITE_VALUE_64 => {
                // SAFETY: as above.
                let (write, value) = unsafe { (raw.writeValue, raw.writeValue.anonymous1.value64) };
                let word = Word::check(
                    addresses,
                    write.address,
                    operation == CU_STREAM_MEM_OP_WRITE_VALUE_64,
                )?;
                if write.flags & !CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER.0 != 0 {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                let value = word.cut(value);
                Ok(Op::Write { word, value })
            }
            CU_STREAM_MEM_OP_ATOMIC_REDUCTION => {
                // SAFETY: as above.
                let reduction = unsafe { raw.atomicReduction };
                let wide = reduction.dataType == CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64;
                let how = reduction.reductionOp;
                let known = matches!(
                    how,
                    CU_STREAM_ATOMIC_REDUCTION_OP_OR
                        | CU_STREAM_ATOMIC_REDUCTION_OP_AND
                        | CU_STREAM_ATOMIC_REDUCTION_OP_ADD
                );
                if !known || !(wide || reduction.dataType == CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32) {
                    return Err(CUDA_ERROR_INVALID_VALUE);
                }
                let word = Word::check(addresses, reduction.address, wide)?;
                let value = word.cut(reduction.value);
                Ok(Op::Reduce { word, value, how })
            }
            CU_STREAM_MEM_OP_BARRIER => Ok(Op::Barrier),
            CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => Err(CUDA_ERROR_NOT_SUPPORTED),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn word(&self) -> Option<Word> {
        match self {
            Op::Wait { word, .. } | Op::Write { word, .. } | Op::Reduce { word, .. } => Some(*word),
            Op::Barrier => None,
        }
    }

    /// Does it, or says that it has to wait; memory that is gone is an error.
    fn run(&self, addresses: &Addresses) -> Result<bool> {
        let Some(word) = self.word() else {
            fence(Ordering::SeqCst);
            return Ok(true);
        };
        let memory = word.find(addresses)?;
        if let (Some(checker), Op::Write { .. } | Op::Reduce { .. }) = (check::on(), self) {
            checker.written(word.address, word.bytes);
        }
        match self {
            Op::Wait { value, condition, .. } => {
                return Ok(word.satisfies(word.load(&memory), *value, *condition));
            }
            Op::Write { value, .. } => word.update(&memory, |_| *value),
            Op::Reduce { value, how, .. } => word.update(&memory, |old| match *how {
                CU_STREAM_ATOMIC_REDUCTION_OP_OR => old | value,
                CU_STREAM_ATOMIC_REDUCTION_OP_AND => old & value,
                _ => old.wrapping_add(*value),
            }),
            Op::Barrier => {}
        }
        Ok(true)
    }
}

impl Word {
    fn check(addresses: &Addresses, address: u64, wide: bool) -> Result<Word> {
        let bytes = if wide { 8 } else { 4 };
        let word = Word { address, bytes };
        if !address.is_multiple_of(bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let known = addresses
            .live
            .find(address)
            .or_else(|| addresses.reserved.find(address));
        known
            .filter(|found| word.lies_in(found))
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(word)
    }

    fn find(self, addresses: &Addresses) -> Result<Arc<Allocation>> {
        let found = addresses.live.find(self.address);
        found
            .filter(|found| self.lies_in(found))
            .ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)
    }

    fn lies_in(self, allocation: &Allocation) -> bool {
        allocation.kind != Kind::Managed && allocation.holds(self.address, self.bytes)
    }

    /// As much of a value as fits.
    fn cut(self, value: u64) -> u64 {
        if self.bytes == 4 {
            value & u64::from(u32::MAX)
        } else {
            value
        }
    }

    fn load(self, _memory: &Allocation) -> u64 {
        // SAFETY: the word lies in memory that the caller keeps alive and is aligned to its size. Any other writer
        // writes it meanwhile as a device would: by whole words.
        unsafe {
            if self.bytes == 4 {
                u64::from(AtomicU32::from_ptr(self.address as *mut u32).load(Ordering::Acquire))
            } else {
                AtomicU64::from_ptr(self.address as *mut u64).load(Ordering::Acquire)
            }
        }
    }

    fn update(self, _memory: &Allocation, change: impl Fn(u64) -> u64) {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: as in `load`.
        unsafe {
            if self.bytes == 4 {
                let word = AtomicU32::from_ptr(self.address as *mut u32);
                let _ = word.fetch_update(set, fetch, |old| Some(change(u64::from(old)) as u32));
            } else {
                let word = AtomicU64::from_ptr(self.address as *mut u64);
                let _ = word.fetch_update(set, fetch, |old| Some(change(old)));
            }
        }
    }

    fn satisfies(self, have: u64, value: u64, condition: u32) -> bool {
        let mask = self.cut(u64::MAX);
        match CUstreamWaitValue_flags(condition) {
            CU_STREAM_WAIT_VALUE_GEQ if self.bytes == 4 => {
                (have as u32).wrapping_sub(value as u32) as i32 >= 0
            }
            CU_STREAM_WAIT_VALUE_GEQ => have.wrapping_sub(value) as i64 >= 0,
            CU_STREAM_WAIT_VALUE_EQ => have == value,
            CU_STREAM_WAIT_VALUE_AND => have & value != 0,
            _ => !(have | value) & mask != 0,
        }
    }
}

/// Operations under way.
struct Running {
    task: Arc<Task>,
    ops: Arc<MemOps>,
    next: usize,
    context: Arc<Context>,
    /// The stream they were put in, where it can go.
    stream: Option<Weak<Stream>>,
    abandoned: bool,
}

static RUNNING: Mutex<Watch> = Mutex::new(Watch {
    running: Vec::new(),
    watched: false,
});

struct Watch {
    running: Vec<Running>,
    watched: bool,
}

/// A task that does the operations behind others.
pub fn submit(
    ops: &Arc<MemOps>,
    context: &Arc<Context>,
    stream: Option<Weak<Stream>>,
    before: &[Arc<Task>],
) -> Arc<Task> {
    if !ops.waits() {
        let (ops, context) = (Arc::clone(ops), Arc::clone(context));
        let run = move || {
            run(&ops, &mut 0, &context);
        };
        return Task::submit(before, Work::Pool(Box::new(run)));
    }
    // What wrote the word comes before, and nothing here tells what that was.
    if let Some(checker) = check::on() {
        checker.strands.unknown();
    }
    let task = Task::submit(before, Work::Caller);
    watch(Running {
        task: Arc::clone(&task),
        ops: Arc::clone(ops),
        next: 0,
        context: Arc::clone(context),
        stream,
        abandoned: false,
    });
    task
}

/// A context is about to end: its waits end with it.
pub fn abandon(context: u64) {
    for running in &mut lock().running {
        running.abandoned |= running.context.id == context;
    }
}

/// Goes on until something has to be waited for. Returns whether all is done.
fn run(ops: &MemOps, next: &mut usize, context: &Context) -> bool {
    while let Some(op) = ops.ops.get(*next) {
        if context.check().is_err() {
            return true;
        }
        match op.run(&context.addresses) {
            Ok(true) => *next += 1,
            Ok(false) => return false,
            Err(code) => {
                context.fail(code, "a stream memory operation names memory that is gone");
                return true;
            }
        }
    }
    true
}

impl Running {
    /// Whether it is over.
    fn step(&mut self) -> bool {
        if !self.task.is_turn() {
            return false;
        }
        let gone = self
            .stream
            .as_ref()
            .is_some_and(|stream| stream.strong_count() == 0);
        self.abandoned || gone || run(&self.ops, &mut self.next, &self.context)
    }
}

fn watch(running: Running) {
    let mut watch = lock();
    watch.running.push(running);
    if watch.watched {
        return;
    }
    watch.watched = true;
    drop(watch);
    let spawned = std::thread::Builder::new().name("divvy-memop".into()).spawn(|| {
        pool::block_signals();
        while round() {
            std::thread::sleep(POLL);
        }
    });
    if spawned.is_err() {
        // Without a thread nothing would end these waits.
        let mut watch = lock();
        watch.watched = false;
        let stranded = std::mem::take(&mut watch.running);
        drop(watch);
        for running in stranded {
            running.context.fail(
                CUDA_ERROR_OPERATING_SYSTEM,
                "no thread for stream memory operations",
            );
            running.task.wait_turn();
            running.task.finish();
        }
    }
}

/// Looks at all words once. Returns whether there is anything left to look at.
fn round() -> bool {
    let mut watch = lock();
    let over: Vec<Running> = watch.running.extract_if(.., Running::step).collect();
    watch.watched = !watch.running.is_empty() || !over.is_empty();
    let more = watch.watched;
    // What follows may submit more.
    drop(watch);
    for running in over {
        running.task.finish();
    }
    more
}

fn lock() -> MutexGuard<'static, Watch> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
