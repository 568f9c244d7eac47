//! The heap that kernels of a context take memory from with `malloc`.
//!
//! It has the size of CU_LIMIT_MALLOC_HEAP_SIZE and is charged to the device when a kernel first asks for memory. What a
//! kernel took stays taken until a kernel of the context frees it.

use crate::memory::allocation::Allocation;
use divvy_device::memory::free_list::FreeList;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The heap's size until the program sets another, in bytes.
pub const DEFAULT_BYTES: usize = 8 << 20;
/// What `malloc` gives is aligned to this many bytes.
const ALIGN: u64 = 16;

/// A context's heap, made when it is first used.
#[derive(Default)]
pub struct DeviceHeap(Mutex<Option<Heap>>);

struct Heap {
    memory: Arc<Allocation>,
    free: FreeList,
    /// Bytes of each allocation, by its offset.
    taken: HashMap<u64, u64>,
}

impl Heap {
    fn of(memory: Arc<Allocation>) -> Heap {
        Heap {
            free: FreeList::new(memory.bytes - memory.bytes % ALIGN),
            memory,
            taken: HashMap::new(),
        }
    }
}

impl DeviceHeap {
    /// The address of so many bytes; None where the heap has not as many. `memory` gives the heap its own when it is
    /// first used.
    pub fn allocate(&self, bytes: u64, memory: impl FnOnce() -> Option<Arc<Allocation>>) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(ALIGN)?;
        let mut heap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if heap.is_none() {
            *heap = memory().map(Heap::of);
        }
        let heap = heap.as_mut()?;
        let offset = heap.free.take(bytes)?;
        heap.taken.insert(offset, bytes);
        Some(heap.memory.base + offset)
    }

    /// Gives back an allocation; false where the address is not the beginning of one.
    pub fn free(&self, address: u64) -> bool {
        let mut heap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(heap) = heap.as_mut() else { return false };
        let offset = address.wrapping_sub(heap.memory.base);
        let Some(bytes) = heap.taken.remove(&offset) else {
            return false;
        };
        heap.free.give(offset, bytes);
        true
    }
}
