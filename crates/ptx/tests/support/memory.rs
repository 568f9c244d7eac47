//! Device memory as the tests lend it: buffers of atomics, which the engine may write while we hold a reference.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use divvy_ptx::{AddressSpace, Image, Texture};

/// One aligned chunk of a buffer; 256 bytes is what CUDA's allocations are aligned to.
#[repr(C, align(256))]
struct Chunk([AtomicU8; 256]);

/// Bytes on the "device", at an address that is a multiple of 256.
pub struct Buffer {
    chunks: Vec<Chunk>,
    bytes: usize,
}

impl Buffer {
    /// A buffer of `bytes` zeros.
    pub fn zeroed(bytes: usize) -> Buffer {
        let chunks = (0..bytes.div_ceil(256).max(1))
            .map(|_| Chunk([const { AtomicU8::new(0) }; 256]))
            .collect();
        Buffer { chunks, bytes }
    }

    /// A buffer that holds `bytes`.
    pub fn of_bytes(bytes: &[u8]) -> Buffer {
        let buffer = Buffer::zeroed(bytes.len());
        buffer.fill(bytes);
        buffer
    }

    /// Overwrites the beginning with `bytes`.
    pub fn fill(&self, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            self.chunks[at / 256].0[at % 256].store(*byte, Relaxed);
        }
    }

    pub fn of_u32(values: &[u32]) -> Buffer {
        Buffer::of_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn of_u64(values: &[u64]) -> Buffer {
        Buffer::of_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    pub fn of_f32(values: &[f32]) -> Buffer {
        Buffer::of_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Where the first byte lies.
    pub fn address(&self) -> u64 {
        self.chunks.as_ptr() as u64
    }

    /// The addresses a kernel may touch.
    pub fn range(&self) -> Range<u64> {
        self.address()..self.address() + self.bytes as u64
    }

    /// The bytes as they are now.
    pub fn bytes(&self) -> Vec<u8> {
        (0..self.bytes)
            .map(|at| self.chunks[at / 256].0[at % 256].load(Relaxed))
            .collect()
    }

    pub fn u32s(&self) -> Vec<u32> {
        self.bytes()
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    pub fn u64s(&self) -> Vec<u64> {
        self.bytes()
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    pub fn f32s(&self) -> Vec<f32> {
        self.u32s().into_iter().map(f32::from_bits).collect()
    }

    pub fn f64s(&self) -> Vec<f64> {
        self.u64s().into_iter().map(f64::from_bits).collect()
    }
}

/// The ranges one launch may touch.
#[derive(Default)]
pub struct Memory {
    pub ranges: Vec<Range<u64>>,
    /// Texture and surface objects, by their numbers.
    pub textures: Vec<(u64, Texture)>,
    pub surfaces: Vec<(u64, Image)>,
}

impl Memory {
    fn cells(&self) -> impl Iterator<Item = &[AtomicU8]> {
        self.ranges.iter().map(|range| {
            let bytes = (range.end - range.start) as usize;
            // SAFETY: a range is a buffer's, which the test holds for longer than the launch; its bytes are atomics.
            unsafe { std::slice::from_raw_parts(range.start as *const AtomicU8, bytes) }
        })
    }

    /// What every range holds.
    pub fn snapshot(&self) -> Vec<Vec<u8>> {
        (self.cells())
            .map(|cells| cells.iter().map(|cell| cell.load(Relaxed)).collect())
            .collect()
    }

    /// Puts back what [`Self::snapshot`] gave.
    pub fn restore(&self, bytes: &[Vec<u8>]) {
        for (cells, bytes) in self.cells().zip(bytes) {
            for (cell, byte) in cells.iter().zip(bytes) {
                cell.store(*byte, Relaxed);
            }
        }
    }
}

fn find<T: Copy>(objects: &[(u64, T)], object: u64) -> Option<T> {
    let found = objects.iter().find(|(number, _)| *number == object);
    found.map(|(_, of)| *of)
}

impl AddressSpace for Memory {
    fn range(&self, address: u64) -> Option<Range<u64>> {
        self.ranges.iter().find(|range| range.contains(&address)).cloned()
    }

    fn texture(&self, object: u64) -> Option<Texture> {
        find(&self.textures, object)
    }

    fn surface(&self, object: u64) -> Option<Image> {
        find(&self.surfaces, object)
    }
}
