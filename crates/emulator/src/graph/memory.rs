//! Memory of allocation nodes: an address for the life of the graph, bytes from a launch on.

use super::foreign::Foreign;
use super::physical::Physical;
use crate::Result;
use crate::handle::Handles;
use crate::memory::allocation::{Allocation, Backing, Kind};
use crate::memory::registry::Addresses;
use crate::pool::MemoryPool;
use crate::stream::Queue;
use divvy_abi::*;
use divvy_device::Device;
use divvy_device::exec::task::Work;
use divvy_device::memory::mapping::Mapping;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The memory of all graphs of this process.
pub struct GraphMemory {
    devices: Vec<Arc<Device>>,
    addresses: Arc<Addresses>,
    /// By address.
    reserved: Mutex<HashMap<u64, Weak<Reserved>>>,
    /// What has bytes now, by address.
    live: Mutex<HashMap<u64, Arc<Reserved>>>,
    /// Where the bytes come from, by device ordinal.
    physical: Vec<Arc<Physical>>,
}

/// The memory of one allocation node.
pub struct Reserved {
    /// Its range: known to the device while [`State::live`] is not 0.
    pub allocation: Arc<Allocation>,
    /// What the program asked for.
    pub properties: Foreign<CUmemPoolProps>,
    /// The accesses it asked for.
    pub access: Vec<Foreign<CUmemAccessDesc>>,
    memory: Arc<GraphMemory>,
    physical: Arc<Physical>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Launches that gave it bytes and whose free has not been reached yet.
    live: u32,
    /// Launched, and not freed by any call or launch so far.
    unfreed: bool,
    /// The graph of the allocation node.
    owner: u64,
    /// Graphs with a free node for it.
    freed_by: Vec<u64>,
}

impl State {
    /// The graph that allocates it frees it too.
    fn inside(&self) -> bool {
        self.freed_by.contains(&self.owner)
    }
}

/// Addresses are multiples of this.
const ALIGNMENT: usize = 4096;

impl GraphMemory {
    /// Nothing reserved; graphs can allocate on these devices.
    pub fn new(
        devices: Vec<Arc<Device>>,
        addresses: Arc<Addresses>,
        pools: Arc<Handles<MemoryPool>>,
    ) -> GraphMemory {
        let physical = devices
            .iter()
            .map(|device| Physical::new(Arc::clone(device), Arc::clone(&pools)));
        GraphMemory {
            physical: physical.collect(),
            devices,
            addresses,
            reserved: Mutex::default(),
            live: Mutex::default(),
        }
    }

    /// A device's graph memory.
    pub fn physical(&self, device: &Device) -> &Arc<Physical> {
        &self.physical[device.ordinal]
    }

    /// Reserves an address for an allocation node. No memory of the device is taken yet.
    pub fn reserve(
        self: &Arc<GraphMemory>,
        properties: CUmemPoolProps,
        access: Vec<CUmemAccessDesc>,
        bytes: usize,
    ) -> Result<Arc<Reserved>> {
        let kind = (properties.allocType, properties.location.type_);
        if bytes == 0 || kind.0 != CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // Allocation nodes of host and managed memory are not emulated.
        if kind.1 != CU_MEM_LOCATION_TYPE_DEVICE || properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: every bit pattern is an i32.
        let device = self.device(unsafe { properties.location.anonymous1.id })?;
        for entry in &access {
            if entry.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            // SAFETY: every bit pattern is an i32.
            self.device(unsafe { entry.location.anonymous1.id })?;
        }
        let room = bytes
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        if room as u64 > device.facts.memory_bytes() {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mapping = Mapping::new(room, ALIGNMENT, true).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        let allocation = Arc::new(Allocation::new(
            mapping.address(),
            bytes as u64,
            Kind::Graph,
            0,
            device.ordinal,
            Backing::Graph(mapping),
        ));
        self.addresses
            .reserved
            .insert(Arc::clone(&allocation))
            .map_err(|_| CUDA_ERROR_UNKNOWN)?;
        let reserved = Arc::new(Reserved {
            allocation,
            properties: Foreign(properties),
            access: access.into_iter().map(Foreign).collect(),
            physical: Arc::clone(self.physical(device)),
            memory: Arc::clone(self),
            state: Mutex::default(),
        });
        lock(&self.reserved).insert(reserved.base(), Arc::downgrade(&reserved));
        Ok(reserved)
    }

    fn device(&self, ordinal: CUdevice) -> Result<&Arc<Device>> {
        let ordinal = usize::try_from(ordinal).ok();
        ordinal
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// The reservation that starts at an address.
    pub fn find(&self, base: u64) -> Result<Arc<Reserved>> {
        let found = lock(&self.reserved).get(&base).and_then(Weak::upgrade);
        found.ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// cuDeviceGraphMemTrim: gives back what no launch uses of a device's graph memory.
    pub fn trim(&self, device: &Device) {
        self.physical(device).trim();
        let all: Vec<Arc<Reserved>> = lock(&self.reserved).values().filter_map(Weak::upgrade).collect();
        for reserved in all
            .iter()
            .filter(|reserved| reserved.allocation.device == device.ordinal)
        {
            reserved.discard();
        }
    }

    /// cuMemFreeAsync of a graph's memory; None if the address is none of a graph's.
    pub fn free_later(&self, pointer: u64, queue: &Queue) -> Option<Result> {
        let reserved = self.find(pointer).ok()?;
        queue.wait_for_room();
        Some(reserved.free().map(|()| {
            // Also where the context has failed by then: the device gets its bytes back.
            queue.submit(Work::Pool(Box::new(move || reserved.end())));
        }))
    }

    /// cuMemFree of a graph's memory, whose users have been waited for.
    pub fn free_now(&self, pointer: u64) -> Result {
        let reserved = self.find(pointer)?;
        reserved.free()?;
        reserved.end();
        Ok(())
    }
}

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reserved {
    /// Its address.
    pub fn base(&self) -> u64 {
        self.allocation.base
    }

    /// As cuGraphMemAllocNodeGetParams gives it.
    pub fn params(&self) -> CUDA_MEM_ALLOC_NODE_PARAMS {
        CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: self.properties.0,
            accessDescs: self.access.as_ptr().cast(),
            accessDescCount: self.access.len(),
            bytesize: self.allocation.bytes as usize,
            dptr: self.base(),
        }
    }

    /// Remembers the graph its allocation node is in.
    pub fn own(&self, graph: u64) {
        self.lock().owner = graph;
    }

    /// Adds a free node of a graph. Either the owner frees it once or others may, not both (CUDA driver API,
    /// cuGraphAddMemFreeNode and cuGraphAddMemAllocNode).
    pub fn free_in(&self, graph: u64) -> Result {
        let mut state = self.lock();
        let clash = if graph == state.owner {
            !state.freed_by.is_empty()
        } else {
            state.freed_by.contains(&graph) || state.freed_by.contains(&state.owner)
        };
        if clash {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        state.freed_by.push(graph);
        Ok(())
    }

    /// Takes back a free node that was not added after all.
    pub fn not_free_in(&self, graph: u64) {
        self.lock().freed_by.retain(|other| *other != graph);
    }

    /// Whether the graph that allocates it frees it too.
    pub fn is_inside(&self) -> bool {
        self.lock().inside()
    }

    /// The device's graph memory, where its bytes come from.
    pub fn physical(&self) -> &Arc<Physical> {
        &self.physical
    }

    /// Launched, and not freed by any call or launch so far.
    pub fn is_unfreed(&self) -> bool {
        self.lock().unfreed
    }

    /// A launch gives it bytes, from the call on, as the program may pass its address to calls that follow. It lives
    /// until they are freed, even if its graph is destroyed.
    pub fn begin(self: &Arc<Reserved>) -> Result {
        let mut state = self.lock();
        let inside = state.inside();
        if state.live == 0 {
            if !inside {
                let held = self.physical.hold(self.allocation.bytes);
                held.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
            }
            lock(&self.memory.live).insert(self.base(), Arc::clone(self));
            let known = self.memory.addresses.live.insert(Arc::clone(&self.allocation));
            known.map_err(|_| CUDA_ERROR_UNKNOWN)?;
        }
        state.live += 1;
        state.unfreed = !inside;
        Ok(())
    }

    /// A call or a launch frees it: what follows may not free it again.
    pub fn free(&self) -> Result {
        let mut state = self.lock();
        if !state.unfreed {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        state.unfreed = false;
        Ok(())
    }

    /// Takes back an announced free that is not to happen after all.
    pub fn not_freed(&self) {
        self.lock().unfreed = true;
    }

    /// The free has been reached.
    pub fn end(self: &Arc<Reserved>) {
        let mut state = self.lock();
        state.live = state.live.saturating_sub(1);
        if state.live > 0 {
            return;
        }
        let id = self.allocation.buffer_id;
        let addresses = &self.memory.addresses;
        addresses.live.remove(self.base(), |found| found.buffer_id == id);
        lock(&self.memory.live).remove(&self.base());
        if !state.inside() {
            self.physical.release(self.allocation.bytes);
        }
    }

    /// Lets the host have the bytes back if no launch uses them.
    pub fn discard(&self) {
        let state = self.lock();
        if state.live == 0 {
            self.allocation.discard();
        }
    }

    /// Whether another device than its own may use it.
    pub fn grants(&self, device: usize) -> bool {
        self.access.iter().any(|entry| {
            // SAFETY: checked when it was made: the location is a device, and any bits are an i32.
            let id = unsafe { entry.0.location.anonymous1.id };
            usize::try_from(id) == Ok(device) && entry.0.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        lock(&self.memory.reserved).remove(&self.base());
        let id = self.allocation.buffer_id;
        let addresses = &self.memory.addresses;
        addresses
            .reserved
            .remove(self.base(), |found| found.buffer_id == id);
    }
}
