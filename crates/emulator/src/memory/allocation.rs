//! One range of memory a device may touch: what it is, its owner, and what keeps its bytes alive.

use super::virtual_range::Mapped;
use crate::memory::external::ExternalPart;
use crate::memory::imported::Imported;
use divvy_device::memory::charge::GRANULE;
use divvy_device::memory::heap::Extent;
use divvy_device::memory::mapping::Mapping;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How the range came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Device memory of cuMemAlloc or cuMemAllocPitch.
    Device,
    /// Device memory of a memory pool, by the pool's handle.
    Pooled {
        /// The pool's handle.
        pool: u64,
    },
    /// Device memory of a graph's allocation node.
    Graph,
    /// A variable of a module or library.
    Global,
    /// cuMemMap: physical memory of a device, or of the host, at an address of the program's choice.
    Mapped {
        /// The bytes are in host memory.
        host: bool,
    },
    /// Device memory that another process allocated.
    Imported {
        /// Handle of the imported pool it came through; 0 for memory of cuIpcOpenMemHandle.
        pool: u64,
    },
    /// A buffer mapped from external memory.
    External {
        /// The bytes are in host memory.
        host: bool,
    },
    /// cuMemAllocManaged.
    Managed,
    /// cuMemHostAlloc, with its flags.
    Host {
        /// CU_MEMHOSTALLOC_*.
        flags: u32,
    },
    /// cuMemHostRegister, with its flags: the program's own memory.
    Registered {
        /// CU_MEMHOSTREGISTER_*.
        flags: u32,
    },
}

impl Kind {
    /// The bytes live on a device, not in host memory.
    pub fn is_device(self) -> bool {
        matches!(
            self,
            Kind::Device
                | Kind::Pooled { .. }
                | Kind::Graph
                | Kind::Global
                | Kind::Mapped { host: false }
                | Kind::Imported { .. }
                | Kind::External { host: false }
        )
    }
}

/// What holds the bytes; dropped with the allocation.
#[derive(Debug)]
pub enum Backing {
    /// Memory of a device.
    Device(Arc<Extent>),
    /// Physical memory and the place it is mapped at.
    Mapped(Arc<Mapped>),
    /// Memory of another process.
    Imported(Arc<Imported>),
    /// A part of external memory.
    External(#[allow(dead_code, reason = "held for its drop")] ExternalPart),
    /// Host memory of ours.
    Host(#[allow(dead_code, reason = "held for its drop")] Mapping),
    /// Memory of a graph's allocation node, charged by the graph's launch.
    Graph(Mapping),
    /// Memory the program owns.
    Program,
}

/// A range of addresses a device may touch. Each holder of an `Arc` of it keeps the bytes mapped.
#[derive(Debug)]
pub struct Allocation {
    /// First address, on the device and on the host alike.
    pub base: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// How it came to be.
    pub kind: Kind,
    /// Handle of the context it belongs to; 0 for memory that no context owns.
    pub context: u64,
    /// Ordinal of the device it was made on.
    pub device: usize,
    /// CU_POINTER_ATTRIBUTE_BUFFER_ID: unique in the process.
    pub buffer_id: u64,
    backing: Backing,
}

impl Allocation {
    /// Describes a range; `backing` must hold its bytes rounded up to a granule, unless they are the program's.
    pub fn new(
        base: u64,
        bytes: u64,
        kind: Kind,
        context: u64,
        device: usize,
        backing: Backing,
    ) -> Allocation {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let buffer_id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Allocation {
            base,
            bytes,
            kind,
            context,
            device,
            buffer_id,
            backing,
        }
    }

    /// One past the last accessible address. The rest of a granule is accessible, as it is on hardware, where
    /// kernels are known to read a whole vector at the end of a buffer.
    pub fn end(&self) -> u64 {
        match &self.backing {
            Backing::Program | Backing::Mapped(_) | Backing::External(_) => self.base + self.bytes,
            Backing::Imported(imported) => self.base + imported.reach(),
            Backing::Device(_) | Backing::Host(_) | Backing::Graph(_) => {
                self.base + self.bytes.next_multiple_of(GRANULE)
            }
        }
    }

    /// The device memory behind it.
    pub fn extent(&self) -> Option<&Arc<Extent>> {
        match &self.backing {
            Backing::Device(extent) => Some(extent),
            Backing::Host(_)
            | Backing::Graph(_)
            | Backing::Program
            | Backing::Mapped(_)
            | Backing::Imported(_)
            | Backing::External(_) => None,
        }
    }

    /// Its part of another process's memory, if it is such memory.
    pub fn imported(&self) -> Option<&Arc<Imported>> {
        match &self.backing {
            Backing::Imported(imported) => Some(imported),
            _ => None,
        }
    }

    /// The mapping of cuMemMap that it is.
    pub fn mapped(&self) -> Option<&Arc<Mapped>> {
        match &self.backing {
            Backing::Mapped(mapped) => Some(mapped),
            _ => None,
        }
    }

    /// Lets the host have a graph's bytes back; they are zeros when they are touched again.
    pub fn discard(&self) {
        if let Backing::Graph(mapping) = &self.backing {
            mapping.discard();
        }
    }

    /// Whether `bytes` from `address` lie inside.
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && address.checked_add(bytes).is_some_and(|end| end <= self.end())
    }
}
