//! A device's graph memory: how many bytes graphs have taken from the device, and which graphs use them.
//!
//! The rules are those of the CUDA programming guide ("Graph Memory Nodes": physical memory management and sharing,
//! physical memory footprint). Bytes are taken at a graph's first launch or upload, not before, as it depends on the
//! stream. Graphs launched into one stream share them, as they cannot run at once. An allocation that outlives its
//! launch has bytes of its own. Bytes that are no longer used stay reserved until cuDeviceGraphMemTrim.

use crate::handle::Handles;
use crate::order::StreamId;
use crate::pool::{self, MemoryPool};
use divvy_device::Device;
use divvy_device::memory::charge::{Charge, OutOfMemory, PAGE};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One stream, in the whole process: the context's id and the stream's in it.
pub type StreamKey = (u64, StreamId);

/// The graph memory of one device.
pub struct Physical {
    device: Arc<Device>,
    pools: Arc<Handles<MemoryPool>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the graphs of one stream share.
    shared: HashMap<StreamKey, Share>,
    /// Bytes of allocations that outlive their launch.
    held: u64,
    /// Bytes reserved and not used.
    idle: u64,
    used_high: u64,
    reserved_high: u64,
}

#[derive(Default)]
struct Share {
    bytes: u64,
    /// Executable graphs that were last launched into this stream.
    users: HashSet<u64>,
    /// Launches under way.
    running: u32,
}

/// cuDeviceGetGraphMemAttribute's numbers, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Mapped by some graph.
    pub used: u64,
    /// The most that ever was.
    pub used_high: u64,
    /// Taken from the device.
    pub reserved: u64,
    /// The most that ever was.
    pub reserved_high: u64,
}

impl Physical {
    /// Nothing reserved. Memory that the device's memory pools keep without use is released when it is needed.
    pub fn new(device: Arc<Device>, pools: Arc<Handles<MemoryPool>>) -> Arc<Physical> {
        Arc::new(Physical {
            device,
            pools,
            state: Mutex::default(),
        })
    }

    /// Gives an executable graph at least `bytes` in a stream, instead of where it was before.
    pub fn map(&self, exec: u64, stream: StreamKey, bytes: u64) -> Result<(), OutOfMemory> {
        let mut state = self.lock();
        state.leave(exec, Some(stream));
        let have = state.shared.get(&stream).map_or(0, |share| share.bytes);
        let more = bytes.next_multiple_of(PAGE).saturating_sub(have);
        self.take(&mut state, more)?;
        let share = state.shared.entry(stream).or_default();
        share.bytes += more;
        share.users.insert(exec);
        state.note();
        Ok(())
    }

    /// An executable graph is gone.
    pub fn unmap(&self, exec: u64) {
        self.lock().leave(exec, None);
    }

    /// A launch into a stream begins; its memory stays until [`Physical::ended`].
    pub fn begun(&self, stream: StreamKey) {
        self.lock().shared.entry(stream).or_default().running += 1;
    }

    /// A launch has ended.
    pub fn ended(&self, stream: StreamKey) {
        let mut state = self.lock();
        if let Some(share) = state.shared.get_mut(&stream) {
            share.running = share.running.saturating_sub(1);
        }
        state.tidy();
    }

    /// Takes bytes for an allocation that outlives its launch.
    pub fn hold(&self, bytes: u64) -> Result<(), OutOfMemory> {
        let mut state = self.lock();
        let bytes = bytes.next_multiple_of(PAGE);
        self.take(&mut state, bytes)?;
        state.held += bytes;
        state.note();
        Ok(())
    }

    /// Gives them back to be used by other graphs.
    pub fn release(&self, bytes: u64) {
        let mut state = self.lock();
        let bytes = bytes.next_multiple_of(PAGE);
        state.held -= bytes;
        state.idle += bytes;
    }

    /// cuDeviceGraphMemTrim: gives the device what no launch under way and no unfreed allocation uses.
    pub fn trim(&self) {
        let mut state = self.lock();
        self.let_go(&mut state);
    }

    /// What is held now.
    pub fn figures(&self) -> Figures {
        let state = self.lock();
        Figures {
            used: state.used(),
            used_high: state.used_high,
            reserved: state.used() + state.idle,
            reserved_high: state.reserved_high,
        }
    }

    /// Starts a high-water mark again from what is held now.
    pub fn reset_high(&self, reserved: bool) {
        let mut state = self.lock();
        if reserved {
            state.reserved_high = 0;
        } else {
            state.used_high = 0;
        }
        state.note();
    }

    /// Bytes from what lies idle, and for the rest from the device. If need be, unused bytes are released first, there
    /// and in the device's memory pools.
    fn take(&self, state: &mut State, bytes: u64) -> Result<(), OutOfMemory> {
        let reused = bytes.min(state.idle);
        let new = bytes - reused;
        state.idle -= reused;
        if new == 0 || self.device.hardware.take(new).is_ok() {
            return Ok(());
        }
        state.idle += reused;
        if bytes > self.device.facts.memory_bytes() {
            return Err(OutOfMemory);
        }
        self.let_go(state);
        pool::trim_all(&self.pools, self.device.ordinal);
        self.device.hardware.take(bytes)
    }

    fn let_go(&self, state: &mut State) {
        state.shared.retain(|_, share| {
            if share.running > 0 {
                return true;
            }
            state.idle += share.bytes;
            false
        });
        self.device.hardware.give(std::mem::take(&mut state.idle));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn used(&self) -> u64 {
        self.held + self.shared.values().map(|share| share.bytes).sum::<u64>()
    }

    fn note(&mut self) {
        let used = self.used();
        self.used_high = self.used_high.max(used);
        self.reserved_high = self.reserved_high.max(used + self.idle);
    }

    fn leave(&mut self, exec: u64, except: Option<StreamKey>) {
        for (stream, share) in &mut self.shared {
            if Some(*stream) != except {
                share.users.remove(&exec);
            }
        }
        self.tidy();
    }

    /// Bytes without a mapping lie idle.
    fn tidy(&mut self) {
        let State { shared, idle, .. } = self;
        shared.retain(|_, share| {
            if !share.users.is_empty() || share.running > 0 {
                return true;
            }
            *idle += share.bytes;
            false
        });
    }
}
