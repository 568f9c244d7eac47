//! The accounting algorithm for each process's memory: decided by one compare-and-swap, and exact after any crash.
//!
//! Written over any atomics ([`Memory`]), so that the same lines run on shared pages, under loom's scheduler and
//! under a fault injector. The argument for its exactness is docs/adr/0003-ledger-word.md; in short:
//!
//! - **The word** is `use (38 bits) | record (14 bits) | sequence (12 bits)`. Use is in units of 512 bytes.
//!   One compare-and-swap on it grants or returns memory, and names the operation that did so.
//! - **A record** belongs to one process slot and is held by one thread at a time. It keeps two amounts: the one
//!   after its last operation and the one after the operation in progress. `state` says which is valid, so that an
//!   operation takes effect, on the total and on the record, at the compare-and-swap and at no other moment.
//! - **Helping**: a thread that replaces the word first marks the operation named in it as settled. A dead thread's
//!   operation is thus always decidable: named in the word, or marked, or without effect.

use core::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};

/// Bytes in one accounting unit: the finest granularity at which a CUDA driver hands out device memory.
pub const UNIT: u64 = 512;
/// Threads of one process that can be inside an operation at the same moment without waiting for each other.
pub const RECORDS_PER_SLOT: usize = 8;
/// Process slots in a ledger.
pub const SLOTS: usize = 2048;
/// The largest total the word can hold, in units: 128 TiB, all that a 47-bit address space can name.
pub const MAX_UNITS: u64 = (1 << USE_BITS) - 1;

const SEQUENCE_BITS: u32 = 12;
const RECORD_BITS: u32 = 14;
const USE_BITS: u32 = 64 - RECORD_BITS - SEQUENCE_BITS;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;
const _: () = assert!(SLOTS * RECORDS_PER_SLOT == 1 << RECORD_BITS);

/// Every failed exchange is another thread's success, so honest use never comes near this bound. A page that is being
/// corrupted must not keep a thread for ever.
const EXCHANGES: u32 = 10_000_000;
/// Rounds over a slot's records, each followed by [`Memory::relax`]. A record is held for nanoseconds, or for as long
/// as its holder is not scheduled. It is not plausible that all of them are held for so long.
const TAKE_ROUNDS: u32 = 1000;

/// One shared 64-bit atomic.
pub trait Cell {
    /// Reads the value.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the value.
    fn store(&self, value: u64, order: Ordering);
    /// Replaces `current` by `new`, or returns the value that was found instead.
    ///
    /// # Errors
    /// The value found, when it is not `current`.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
}

impl Cell for core::sync::atomic::AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }
}

/// One operation record of a ledger, by position; every value of the word's record field is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId(u16);

impl RecordId {
    /// Record `number` of process slot `slot`; both wrap at their bounds.
    #[must_use]
    pub const fn new(slot: usize, number: usize) -> Self {
        Self(((slot % SLOTS) * RECORDS_PER_SLOT + number % RECORDS_PER_SLOT) as u16)
    }

    /// The process slot the record belongs to, below [`SLOTS`].
    #[must_use]
    pub const fn slot(self) -> usize {
        self.0 as usize / RECORDS_PER_SLOT
    }

    /// Which of its slot's records it is, below [`RECORDS_PER_SLOT`].
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize % RECORDS_PER_SLOT
    }
}

/// The atomics that the algorithm works on.
pub trait Memory {
    /// Its atomic cell.
    type Cell: Cell;
    /// The accounting word.
    fn word(&self) -> &Self::Cell;
    /// 1 while a thread holds the record.
    fn busy(&self, record: RecordId) -> &Self::Cell;
    /// The record's sequence number and whether that operation is settled.
    fn state(&self, record: RecordId) -> &Self::Cell;
    /// The record's amount after its operations of even (0) or odd (1) sequence number, in units, as an `i64`.
    fn amount(&self, record: RecordId, parity: usize) -> &Self::Cell;
    /// The slot's redo log: the sum of its records, while a reaper gathers it into one of them; otherwise 0.
    fn gathered(&self, slot: usize) -> &Self::Cell;
    /// Lets another thread run, after `rounds` rounds without success.
    fn relax(&self, rounds: u32);
}

/// Why an operation did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It does not fit. `used` is the total, in units, at the moment of the decision.
    Full {
        /// Units in use by all processes.
        used: u64,
    },
    /// The page's contents cannot come from this algorithm: another writer is corrupting it.
    Corrupted,
}

/// The three fields of the accounting word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    used: u64,
    record: RecordId,
    sequence: u64,
}

impl Word {
    const fn unpack(word: u64) -> Self {
        Self {
            used: word >> (RECORD_BITS + SEQUENCE_BITS),
            record: RecordId(((word >> SEQUENCE_BITS) & ((1 << RECORD_BITS) - 1)) as u16),
            sequence: word & SEQUENCE_MASK,
        }
    }

    const fn pack(self) -> u64 {
        self.used << (RECORD_BITS + SEQUENCE_BITS)
            | (self.record.0 as u64) << SEQUENCE_BITS
            | (self.sequence & SEQUENCE_MASK)
    }

    const fn names(self, record: RecordId, sequence: u64) -> bool {
        self.record.0 == record.0 && self.sequence == sequence & SEQUENCE_MASK
    }
}

/// A record's `state`: the sequence number of its last operation, and whether that operation is known to have taken
/// effect (settled) or may still be without effect (pending).
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

impl State {
    const fn settled(sequence: u64) -> Self {
        Self(sequence << 1)
    }

    const fn pending(sequence: u64) -> Self {
        Self(sequence << 1 | 1)
    }

    const fn sequence(self) -> u64 {
        self.0 >> 1
    }

    const fn is_pending(self) -> bool {
        self.0 & 1 == 1
    }
}

const fn parity(sequence: u64) -> usize {
    (sequence & 1) as usize
}

/// Units in use by all processes.
pub fn total<M: Memory>(memory: &M) -> u64 {
    Word::unpack(memory.word().load(Acquire)).used
}

/// Takes `units` for process slot `slot`, unless the total would pass `limit` units.
///
/// `hint` spreads the threads of a process over its records; any number does.
///
/// # Errors
/// [`Denied::Full`] exactly when the total plus `units` was above `limit` at one moment during the call.
#[inline]
pub fn reserve<M: Memory>(
    memory: &M,
    slot: usize,
    hint: usize,
    units: u64,
    limit: u64,
) -> Result<(), Denied> {
    if units == 0 {
        return Ok(());
    }
    let limit = limit.min(MAX_UNITS);
    if units > limit {
        return Err(Denied::Full { used: total(memory) });
    }
    with_record(memory, slot, hint, |record| {
        charge(memory, record, units as i64, limit)
    })
}

/// Gives back `units` of process slot `slot`. The total stops at zero, however much is given back.
///
/// # Errors
/// [`Denied::Corrupted`] only.
#[inline]
pub fn release<M: Memory>(memory: &M, slot: usize, hint: usize, units: u64) -> Result<(), Denied> {
    if units == 0 {
        return Ok(());
    }
    let units = units.min(MAX_UNITS) as i64;
    with_record(memory, slot, hint, |record| {
        charge(memory, record, -units, MAX_UNITS)
    })
}

/// Units that process slot `slot` holds. Exact when the slot is at rest; while it works, some recent value.
pub fn held<M: Memory>(memory: &M, slot: usize) -> i64 {
    if let Some(sum) = gathered(memory, slot) {
        return sum;
    }
    (0..RECORDS_PER_SLOT).fold(0, |sum: i64, number| {
        let record = RecordId::new(slot, number);
        let sequence = last_effective(memory, record);
        sum.wrapping_add(memory.amount(record, parity(sequence)).load(Relaxed) as i64)
    })
}

/// Returns everything that slot `slot` holds and prepares it for a new owner. Returns the number of units.
///
/// The caller owns the slot: its process is dead, and no other process reclaims or claims it meanwhile (the slot's
/// liveness lock decides that). A death in here is as harmless as one anywhere else: the next caller continues.
///
/// # Errors
/// [`Denied::Corrupted`] only.
pub fn reclaim<M: Memory>(memory: &M, slot: usize) -> Result<i64, Denied> {
    reclaim_but(memory, slot, 0)
}

/// [`reclaim`], except for `keep` units, which the slot continues to hold.
///
/// # Errors
/// [`Denied::Corrupted`] only.
pub fn reclaim_but<M: Memory>(memory: &M, slot: usize, keep: u64) -> Result<i64, Denied> {
    let sum = gather(memory, slot);
    let kept = sum.max(0).min(keep.min(MAX_UNITS) as i64);
    let back = sum.wrapping_sub(kept);
    if back != 0 {
        charge(memory, RecordId::new(slot, 0), back.wrapping_neg(), u64::MAX)?;
    }
    Ok(back)
}

/// Moves all that a dead process's records hold to the first of them, and returns that one.
///
/// One thread may have taken what another gave back, so single records may be below zero. Returned one by one they
/// would take the total below or above what living processes hold. The slot's log makes the move one step: before it is
/// written nothing has moved, and from then on every later caller repeats the same step.
fn gather<M: Memory>(memory: &M, slot: usize) -> i64 {
    let sum = gathered(memory, slot).unwrap_or_else(|| {
        for number in 0..RECORDS_PER_SLOT {
            let record = RecordId::new(slot, number);
            memory
                .state(record)
                .store(State::settled(last_effective(memory, record)).0, Release);
        }
        let sum = held(memory, slot);
        memory.gathered(slot).store((sum as u64) << 1 | 1, Release);
        sum
    });
    for number in 0..RECORDS_PER_SLOT {
        let record = RecordId::new(slot, number);
        let sequence = State(memory.state(record).load(Relaxed)).sequence();
        let amount = if number == 0 { sum } else { 0 };
        memory
            .amount(record, parity(sequence))
            .store(amount as u64, Relaxed);
        memory.busy(record).store(0, Relaxed);
    }
    memory.gathered(slot).store(0, Release);
    sum
}

fn gathered<M: Memory>(memory: &M, slot: usize) -> Option<i64> {
    let log = memory.gathered(slot).load(Acquire);
    (log & 1 == 1).then_some(log as i64 >> 1)
}

/// The sequence number of the last operation of `record` that took effect.
fn last_effective<M: Memory>(memory: &M, record: RecordId) -> u64 {
    let state = memory.state(record);
    let before = State(state.load(Acquire));
    if !before.is_pending() {
        return before.sequence();
    }
    // The word is read before the state is read again: a thread that replaced the word had marked the record before.
    let named = Word::unpack(memory.word().load(Acquire)).names(record, before.sequence());
    let after = State(state.load(Acquire));
    if named || !after.is_pending() {
        after.sequence()
    } else {
        after.sequence().wrapping_sub(1)
    }
}

/// Holds one of the slot's records around `operation`. Nothing here undoes itself on unwinding: `operation` cannot.
#[inline]
fn with_record<M: Memory>(
    memory: &M,
    slot: usize,
    hint: usize,
    operation: impl FnOnce(RecordId) -> Result<(), Denied>,
) -> Result<(), Denied> {
    for round in 0..TAKE_ROUNDS {
        for turn in 0..RECORDS_PER_SLOT {
            let record = RecordId::new(slot, hint.wrapping_add(turn));
            let busy = memory.busy(record);
            if busy.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                let answer = operation(record);
                busy.store(0, Release);
                return answer;
            }
        }
        memory.relax(round);
    }
    Err(Denied::Corrupted)
}

/// Adds `delta` units to a held record and to the total, in one step. An increase happens only if the total stays
/// within `limit`. A decrease that would pass below zero stops at zero: only a corrupted page can ask for one.
#[inline]
fn charge<M: Memory>(memory: &M, record: RecordId, delta: i64, limit: u64) -> Result<(), Denied> {
    let (word, state) = (memory.word(), memory.state(record));
    // Only this thread writes it while the record is held and settled: helpers only turn pending into settled.
    let last = State(state.load(Relaxed)).sequence();
    let next = last.wrapping_add(1);
    let before = memory.amount(record, parity(last)).load(Relaxed);
    memory
        .amount(record, parity(next))
        .store(before.wrapping_add_signed(delta), Relaxed);
    state.store(State::pending(next).0, Release);

    let mut seen = word.load(Acquire);
    for _ in 0..EXCHANGES {
        let current = Word::unpack(seen);
        let used = current.used.saturating_add_signed(delta);
        if delta > 0 && used > limit {
            state.store(State::settled(last).0, Release);
            return Err(Denied::Full { used: current.used });
        }
        help(memory, current, seen);
        let after = Word {
            used: used.min(MAX_UNITS),
            record,
            sequence: next,
        };
        match word.compare_exchange(seen, after.pack(), AcqRel, Acquire) {
            Ok(_) => {
                state.store(State::settled(next).0, Release);
                return Ok(());
            }
            Err(found) => seen = found,
        }
    }
    state.store(State::settled(last).0, Release);
    Err(Denied::Corrupted)
}

/// Marks the operation that `word` names as settled, before `word` is replaced and its name is lost.
///
/// The mark is right because the word is read again. The record's state was read before it, so every earlier operation
/// of that record is in the word's past. A word that still names this sequence number therefore means that this very
/// operation took effect (and not one 4096 operations earlier).
#[inline]
fn help<M: Memory>(memory: &M, word: Word, raw: u64) {
    let state = memory.state(word.record);
    let found = State(state.load(Acquire));
    if found.is_pending()
        && found.sequence() & SEQUENCE_MASK == word.sequence
        && memory.word().load(Acquire) == raw
    {
        let _already = state.compare_exchange(found.0, State::settled(found.sequence()).0, AcqRel, Relaxed);
    }
}
