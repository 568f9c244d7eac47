//! Moving and filling bytes, on the device and between it and the host.
//!
//! Every address that names device memory is checked against the registry when the call is made. The allocation is kept
//! alive until the work is done, so that freeing it meanwhile unmaps nothing in use.

use crate::Result;
use crate::check;
use crate::kernel_time;
use crate::memory::allocation::Allocation;
use crate::memory::registry::Addresses;
use crate::stream::Queue;
use divvy_abi::*;
use divvy_device::clock;
use divvy_device::inventory::DeviceFacts;
use divvy_device::memory::zeros::zero;
use std::sync::Arc;

/// A copy from pageable host memory up to this size is staged, so that the call returns at once.
const STAGED: u64 = 64 << 10;

/// A block of memory, up to three-dimensional: the first byte, and how far rows and slices are apart.
#[derive(Debug, Clone)]
pub struct Side {
    address: u64,
    pitch: u64,
    slice: u64,
    /// What the address belongs to; None for memory only the host knows.
    allocation: Option<Arc<Allocation>>,
    /// All of them, where the block lies in several mappings of cuMemMap. They are held until the work is done.
    #[allow(dead_code, reason = "held for its drop")]
    more: Vec<Arc<Allocation>>,
}

/// Size of the block moved: bytes of a row, rows of a slice, slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a slice.
    pub rows: u64,
    /// Slices.
    pub slices: u64,
}

impl Shape {
    /// A plain run of bytes.
    pub fn linear(bytes: u64) -> Shape {
        Shape {
            width: bytes,
            rows: 1,
            slices: 1,
        }
    }

    /// Nothing to move.
    pub fn is_empty(self) -> bool {
        self.width == 0 || self.rows == 0 || self.slices == 0
    }

    /// Bytes between the block's first and one past its last, or None where that overflows.
    fn reach(self, pitch: u64, slice: u64) -> Option<u64> {
        let slices = (self.slices - 1).checked_mul(slice)?;
        let rows = (self.rows - 1).checked_mul(pitch)?;
        slices.checked_add(rows)?.checked_add(self.width)
    }
}

/// Which memory counts as there when a copy is checked.
#[derive(Clone, Copy)]
pub enum Known<'a> {
    /// What a device may touch now.
    Live(&'a Addresses),
    /// Also the memory that graphs have reserved: it is there once a launch has come so far.
    Reserved(&'a Addresses),
}

impl Known<'_> {
    /// The memory at an address.
    pub fn find(self, address: u64) -> Option<Arc<Allocation>> {
        let (Known::Live(addresses) | Known::Reserved(addresses)) = self;
        let live = addresses.live.find(address);
        match self {
            Known::Live(_) => live,
            Known::Reserved(_) => live.or_else(|| addresses.reserved.find(address)),
        }
    }

    /// The mappings of cuMemMap that hold `bytes` from an address one after the other.
    fn find_mapped(self, address: u64, bytes: u64) -> Option<Vec<Arc<Allocation>>> {
        let (Known::Live(addresses) | Known::Reserved(addresses)) = self;
        addresses.live.find_mapped(address, bytes)
    }
}

/// Which memory an argument must name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A device pointer.
    Device,
    /// A host pointer, which may also be known to the device.
    Host,
    /// Either, told apart by the address.
    Unified,
}

impl Side {
    /// A run of bytes.
    pub fn linear(address: u64, place: Place, bytes: u64, known: Known<'_>) -> Result<Side> {
        Side::block(address, place, bytes, bytes, Shape::linear(bytes), known)
    }

    /// A block whose rows are `pitch` and whose slices are `slice` bytes apart.
    pub fn block(
        address: u64,
        place: Place,
        pitch: u64,
        slice: u64,
        shape: Shape,
        known: Known<'_>,
    ) -> Result<Side> {
        if shape.is_empty() {
            return Ok(Side {
                address,
                pitch,
                slice,
                allocation: None,
                more: Vec::new(),
            });
        }
        let mut more = Vec::new();
        let reach = shape.reach(pitch, slice).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let allocation = known.find(address);
        match (&allocation, place) {
            (Some(allocation), Place::Device | Place::Unified) => {
                if !allocation.holds(address, reach) {
                    let found = known.find_mapped(address, reach);
                    if let (Some(checker), None) = (check::on(), &found) {
                        checker.bad_copy(address, reach, Some(allocation));
                    }
                    more = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
                }
            }
            (None, Place::Device) => {
                if let Some(checker) = check::on() {
                    checker.bad_copy(address, reach, None);
                }
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            (None, Place::Host | Place::Unified) if address == 0 => return Err(CUDA_ERROR_INVALID_VALUE),
            (_, Place::Host) | (None, Place::Unified) => {}
        }
        Ok(Side {
            address,
            pitch,
            slice,
            allocation,
            more,
        })
    }

    /// A block of a CUDA array, which the array has checked.
    pub fn of_array(address: u64, pitch: u64, slice: u64, memory: Arc<Allocation>) -> Side {
        Side {
            address,
            pitch,
            slice,
            allocation: Some(memory),
            more: Vec::new(),
        }
    }

    /// The same bytes as rows that lie end to end.
    pub fn with_pitch(self, pitch: u64) -> Side {
        Side { pitch, ..self }
    }

    fn row(&self, row: u64, slice: u64) -> u64 {
        self.address + slice * self.slice + row * self.pitch
    }

    /// Only the host knows this memory: it may change or vanish when the call returns.
    fn is_pageable(&self) -> bool {
        self.allocation.is_none()
    }
}

/// A checked copy.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// Where the bytes go.
    pub to: Side,
    /// Where they come from.
    pub from: Side,
    /// How many there are.
    pub shape: Shape,
}

impl Transfer {
    /// Moves the bytes on the calling thread, at once.
    ///
    /// # Safety
    /// Host memory that only the program knows is mapped, and readable or writable as used.
    pub unsafe fn run(&self) {
        // SAFETY: device memory was checked by `Side::block` and is kept alive; the caller vouches for the rest.
        unsafe { transfer(&self.to, &self.from, self.shape) };
    }

    /// Moves the bytes when the queue has come so far, and waits for it.
    pub fn now(&self, queue: &Queue) -> Result {
        // SAFETY: the program vouches for its own memory until the call returns.
        queue.run_now(|| unsafe { self.run() })
    }

    /// Moves the bytes in stream order; waits where memory is pageable, as the host may change it afterwards.
    pub fn later(self, queue: &Queue) -> Result {
        let Transfer { to, from, shape } = &self;
        let small = shape.rows == 1 && shape.slices == 1 && shape.width <= STAGED;
        if from.is_pageable() && !to.is_pageable() && small {
            // SAFETY: the program vouches for its memory until this call returns.
            let staged =
                unsafe { std::slice::from_raw_parts(from.address as *const u8, shape.width as usize) }
                    .to_vec();
            queue.run_later(move || {
                let from = Side {
                    address: staged.as_ptr() as u64,
                    ..self.from
                };
                // SAFETY: `staged` holds the row; the destination was checked and is kept alive.
                unsafe { transfer(&self.to, &from, self.shape) };
            });
            return Ok(());
        }
        if from.is_pageable() || to.is_pageable() {
            return self.now(queue);
        }
        queue.run_later(move || {
            // SAFETY: both sides were checked and are kept alive by the closure.
            unsafe { self.run() };
        });
        Ok(())
    }
}

/// # Safety
/// Both blocks are mapped, readable or writable as used.
unsafe fn transfer(to: &Side, from: &Side, shape: Shape) {
    for slice in 0..shape.slices {
        for row in 0..shape.rows {
            let (target, source) = (to.row(row, slice), from.row(row, slice));
            // SAFETY: the row lies inside both blocks. It may overlap itself, so this is memmove.
            unsafe { std::ptr::copy(source as *const u8, target as *mut u8, shape.width as usize) };
            if let Some(checker) = check::on() {
                checker.copied(target, source, shape.width);
            }
        }
    }
}

/// A value to fill memory with.
#[derive(Debug, Clone, Copy)]
pub enum Value {
    /// One byte.
    U8(u8),
    /// Two bytes, aligned.
    U16(u16),
    /// Four bytes, aligned.
    U32(u32),
}

impl Value {
    /// As a number.
    pub fn number(self) -> u32 {
        match self {
            Value::U8(byte) => u32::from(byte),
            Value::U16(half) => u32::from(half),
            Value::U32(word) => word,
        }
    }

    /// Its size in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Value::U8(_) => 1,
            Value::U16(_) => 2,
            Value::U32(_) => 4,
        }
    }
}

/// Fills a checked block.
///
/// # Safety
/// The block is mapped and writable, and its rows are aligned to the value.
pub unsafe fn fill(block: &Side, value: Value, shape: Shape) {
    for row in 0..shape.rows {
        let (start, count) = (block.row(row, 0), (shape.width / value.bytes()) as usize);
        if let Some(checker) = check::on() {
            checker.written(start, shape.width);
        }
        // SAFETY: the row lies inside the block.
        unsafe {
            match value {
                _ if value.number() == 0 => zero(start, shape.width as usize),
                Value::U8(byte) => std::ptr::write_bytes(start as *mut u8, byte, count),
                Value::U16(word) => std::slice::from_raw_parts_mut(start as *mut u16, count).fill(word),
                Value::U32(word) => std::slice::from_raw_parts_mut(start as *mut u32, count).fill(word),
            }
        }
    }
}

/// A checked filling of memory.
#[derive(Debug, Clone)]
pub struct Fill {
    block: Side,
    value: Value,
    shape: Shape,
}

impl Fill {
    /// Checks a block of device memory of `count` values a row; None if it is empty.
    pub fn check(
        address: u64,
        pitch: u64,
        value: Value,
        count: u64,
        rows: u64,
        known: Known<'_>,
    ) -> Result<Option<Fill>> {
        let width = count.checked_mul(value.bytes()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let shape = Shape {
            width,
            rows,
            slices: 1,
        };
        if shape.is_empty() {
            return Ok(None);
        }
        let misaligned =
            !address.is_multiple_of(value.bytes()) || (rows > 1 && !pitch.is_multiple_of(value.bytes()));
        if misaligned || (rows > 1 && pitch < width) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let block = Side::block(address, Place::Device, pitch, 0, shape, known)?;
        Ok(Some(Fill { block, value, shape }))
    }

    /// Fills the memory on the calling thread, at once. The engine time that a device takes for it, in nanoseconds.
    pub fn run(&self, facts: &DeviceFacts) -> u64 {
        let since = clock::thread_cpu_ns();
        // SAFETY: the block was checked, is aligned and is kept alive.
        unsafe { fill(&self.block, self.value, self.shape) };
        let bytes = self.shape.width.saturating_mul(self.shape.rows);
        let took = clock::thread_cpu_ns().saturating_sub(since);
        kernel_time::fill_ns(facts.profile, bytes, facts.timing.dilation()).max(took)
    }
}

/// Writes the first bytes of an allocation that no other code knows yet.
pub fn initialise(allocation: &Allocation, bytes: &[u8]) {
    let room = (allocation.end() - allocation.base) as usize;
    let count = bytes.len().min(room);
    // SAFETY: the allocation holds `room` bytes of ours, and no program or kernel has its address yet.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), allocation.base as *mut u8, count) };
}
