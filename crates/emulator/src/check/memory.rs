//! The allocations of this process as a check sees them: their exact sizes, which bytes were written, the last accesses
//! to them, and those that are freed.

use super::bits::Written;
use super::findings::Owner;
use super::race::Cell;
use crate::memory::allocation::{Allocation, Kind};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Freed allocations that are remembered.
const REMEMBERED: usize = 4096;
/// Freed allocations keep their bytes until there are so many of them, so that no other gets their addresses.
const HELD: usize = 1024;
/// And until they have so many bytes together.
const HELD_BYTES: u64 = 64 << 20;
/// Words of a page of cells.
const PAGE_WORDS: u64 = 1024;
/// Pages of cells of a launch, at most: beyond that races are not looked for.
const MOST_PAGES: usize = 8192;

/// How far from an allocation an address may be to be named after it, in bytes.
const NEAR: u64 = 1 << 20;
/// Addresses below this one are null pointers with an offset.
const NULL: u64 = 64 << 10;

/// An allocation.
pub struct Tracked {
    pub base: u64,
    pub bytes: u64,
    made_by: String,
    /// Which bytes were written; None where all of them count as written.
    written: Option<Written>,
    cells: HashMap<u64, Box<[Cell]>>,
}

impl Tracked {
    fn of(allocation: &Allocation) -> Tracked {
        let is_fresh = matches!(allocation.kind, Kind::Device | Kind::Pooled { .. } | Kind::Graph);
        Tracked {
            base: allocation.base,
            bytes: allocation.bytes,
            made_by: made_by(allocation.kind).to_owned(),
            written: is_fresh.then(|| Written::nothing_of(allocation.bytes)),
            cells: HashMap::new(),
        }
    }

    pub fn owner(&self) -> Owner {
        Owner {
            address: self.base,
            bytes: self.bytes,
            made_by: self.made_by.clone(),
        }
    }

    fn inner(&self, at: u64, bytes: u64) -> Range<u64> {
        let start = at - self.base;
        start..start.saturating_add(bytes).min(self.bytes)
    }

    /// The offset of the first byte that was never written.
    pub fn first_unwritten(&self, at: u64, bytes: u64) -> Option<u64> {
        self.written.as_ref()?.first_unwritten(self.inner(at, bytes))
    }

    pub fn write(&mut self, at: u64, bytes: u64) {
        let range = self.inner(at, bytes);
        if let Some(written) = &mut self.written {
            written.set(range);
        }
    }
}

/// The call that makes such memory.
pub fn made_by(kind: Kind) -> &'static str {
    match kind {
        Kind::Device => "cuMemAlloc",
        Kind::Pooled { .. } => "cuMemAllocAsync",
        Kind::Graph => "a graph's allocation node",
        Kind::Global => "a module's load",
        Kind::Mapped { .. } => "cuMemMap",
        Kind::Imported { pool: 0 } => "cuIpcOpenMemHandle",
        Kind::Imported { .. } => "cuMemPoolImportPointer",
        Kind::External { .. } => "cuExternalMemoryGetMappedBuffer",
        Kind::Managed => "cuMemAllocManaged",
        Kind::Host { .. } => "cuMemHostAlloc",
        Kind::Registered { .. } => "cuMemHostRegister",
    }
}

/// What an address that no allocation holds is.
pub enum Outside {
    Null,
    Freed(Owner),
    /// So many bytes behind the end of it.
    Past(Owner, u64),
    Before(Owner, u64),
    Nowhere,
}

/// All memory that kernels may touch.
#[derive(Default)]
pub struct Memory {
    live: BTreeMap<u64, Tracked>,
    freed: VecDeque<Tracked>,
    held: VecDeque<Arc<Allocation>>,
    held_bytes: u64,
    pages: usize,
    /// A launch touched more than they hold.
    is_out: bool,
}

impl Memory {
    pub fn allocated(&mut self, allocation: &Allocation) {
        let end = allocation.base + allocation.bytes;
        self.freed
            .retain(|freed| freed.base >= end || freed.base + freed.bytes <= allocation.base);
        self.live.insert(allocation.base, Tracked::of(allocation));
    }

    /// Says what a program calls the memory at an address.
    pub fn name(&mut self, base: u64, name: String) {
        if let Some(tracked) = self.live.get_mut(&base) {
            tracked.made_by = name;
        }
    }

    pub fn freed(&mut self, allocation: &Arc<Allocation>) {
        let Some(mut tracked) = self.live.remove(&allocation.base) else {
            return;
        };
        tracked.written = None;
        self.pages -= tracked.cells.len();
        tracked.cells = HashMap::new();
        self.freed.push_back(tracked);
        if self.freed.len() > REMEMBERED {
            self.freed.pop_front();
        }
        // Pools reuse what they have got back, and other kinds of memory are not ours to keep.
        if allocation.kind != Kind::Device || allocation.bytes > HELD_BYTES / 4 {
            return;
        }
        self.held_bytes += allocation.bytes;
        self.held.push_back(Arc::clone(allocation));
        while self.held.len() > HELD || self.held_bytes > HELD_BYTES {
            self.let_go();
        }
    }

    fn let_go(&mut self) -> bool {
        let Some(oldest) = self.held.pop_front() else {
            return false;
        };
        self.held_bytes -= oldest.bytes;
        true
    }

    /// Gives up all freed memory that is still held; true where there was any.
    pub fn let_all_go(&mut self) -> bool {
        let had_any = !self.held.is_empty();
        while self.let_go() {}
        had_any
    }

    /// The allocation that holds this byte.
    pub fn find(&mut self, address: u64) -> Option<&mut Tracked> {
        let (_, tracked) = self.live.range_mut(..=address).next_back()?;
        (address - tracked.base < tracked.bytes).then_some(tracked)
    }

    /// The cell of the word at an address, and the allocation. None beyond what a launch may take.
    pub fn cell(&mut self, address: u64) -> Option<&mut Cell> {
        let (_, tracked) = self.live.range_mut(..=address).next_back()?;
        if address - tracked.base >= tracked.bytes {
            return None;
        }
        let word = address / 4;
        let page = word / PAGE_WORDS;
        let cells = match tracked.cells.entry(page) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if self.pages >= MOST_PAGES => {
                self.is_out = true;
                return None;
            }
            Entry::Vacant(fresh) => {
                self.pages += 1;
                fresh.insert(vec![Cell::default(); PAGE_WORDS as usize].into_boxed_slice())
            }
        };
        cells.get_mut((word % PAGE_WORDS) as usize)
    }

    /// A kernel got these bytes of its heap again: earlier accesses to them are over.
    pub fn forget(&mut self, address: u64, bytes: u64) {
        let Some(tracked) = self.find(address) else { return };
        for word in address / 4..(address + bytes).div_ceil(4) {
            let page = tracked.cells.get_mut(&(word / PAGE_WORDS));
            if let Some(cell) = page.and_then(|page| page.get_mut((word % PAGE_WORDS) as usize)) {
                *cell = Cell::default();
            }
        }
    }

    /// Whether a launch touched more memory than is looked at for races.
    pub fn is_out_of_cells(&self) -> bool {
        self.is_out
    }

    /// Forgets all accesses: no kernel runs.
    pub fn forget_cells(&mut self) {
        for tracked in self.live.values_mut() {
            tracked.cells = HashMap::new();
        }
        self.pages = 0;
        self.is_out = false;
    }

    /// What an address outside of all allocations is.
    pub fn outside(&self, address: u64) -> Outside {
        if address < NULL {
            return Outside::Null;
        }
        let holds = |tracked: &&Tracked| address.wrapping_sub(tracked.base) < tracked.bytes;
        if let Some(freed) = self.freed.iter().rev().find(holds) {
            return Outside::Freed(freed.owner());
        }
        let before = self
            .live
            .range(..=address)
            .next_back()
            .map(|(_, tracked)| tracked);
        let after = self.live.range(address..).next().map(|(_, tracked)| tracked);
        let past = before.map(|tracked| (tracked, address.saturating_sub(tracked.base + tracked.bytes)));
        let ahead = after.map(|tracked| (tracked, tracked.base - address));
        match (past, ahead) {
            (Some((tracked, by)), next) if by < NEAR && next.is_none_or(|(_, other)| by <= other) => {
                Outside::Past(tracked.owner(), by)
            }
            (_, Some((tracked, by))) if by < NEAR => Outside::Before(tracked.owner(), by),
            (Some((tracked, by)), _) if by < NEAR => Outside::Past(tracked.owner(), by),
            _ => Outside::Nowhere,
        }
    }

    /// The host, or a copy, has written these bytes.
    pub fn written(&mut self, address: u64, bytes: u64) {
        if let Some(tracked) = self.find(address) {
            tracked.write(address, bytes);
        }
    }

    /// Bytes were copied: what was not written there is not written here.
    pub fn copied(&mut self, to: u64, from: u64, bytes: u64) {
        let source = self.find(from).and_then(|source| {
            let range = source.inner(from, bytes);
            let written = source.written.as_ref()?;
            written.first_unwritten(range.clone())?;
            let mut part = Written::nothing_of(bytes);
            part.copy(0..range.end - range.start, written, range.start);
            Some(part)
        });
        let Some(target) = self.find(to) else { return };
        let range = target.inner(to, bytes);
        match (&mut target.written, source) {
            (Some(written), Some(source)) => written.copy(range, &source, 0),
            (Some(written), None) => written.set(range),
            (None, _) => {}
        }
    }

    /// All bytes of the allocation count as written from here on: another process may write to it.
    pub fn all_written(&mut self, address: u64) {
        if let Some(tracked) = self.find(address) {
            tracked.written = None;
        }
    }
}
