//! What is known of a launch while it runs: its blocks, and the words that its threads synchronise by.

use super::bits::Written;
use super::race::{BlockClocks, Cell, Released};
use divvy_ptx::WarpAt;
use std::collections::HashMap;

/// What is known of a launch that runs.
#[derive(Default)]
pub struct State {
    /// Accesses before the grid's last barrier, or of other launches, are of other eras.
    pub era: u32,
    /// The blocks that run, by what they run in.
    pub blocks: HashMap<u64, Running>,
    /// Words that threads synchronise by: in shared memory, by the block's slot, and in device memory (slot 0).
    pub words: HashMap<(u64, u64), Released>,
}

/// A block that runs.
pub struct Running {
    pub block: u64,
    pub clocks: BlockClocks,
    pub shared: Written,
    pub cells: Vec<Cell>,
    /// Which bytes of its local memory each thread has written.
    pub local: HashMap<u32, Written>,
    /// By barrier: the lanes that came to it.
    pub arrived: HashMap<u32, Vec<Arrival>>,
}

impl Running {
    fn new(block: u64, warps: usize) -> Running {
        Running {
            block,
            clocks: BlockClocks::new(warps),
            shared: Written::default(),
            cells: Vec::new(),
            local: HashMap::new(),
            arrived: HashMap::new(),
        }
    }
}

impl State {
    /// The block at an instruction. What was in its slot before has ended.
    pub fn running(&mut self, at: &WarpAt, warps: usize) -> &mut Running {
        let running = self
            .blocks
            .entry(at.slot)
            .or_insert_with(|| Running::new(at.block, warps));
        if running.block != at.block {
            *running = Running::new(at.block, warps);
            self.words.retain(|(slot, _), _| *slot != at.slot);
        }
        running
    }
}

/// A warp at a barrier.
#[derive(Clone, Copy)]
pub struct Arrival {
    pub at: WarpAt,
    /// Threads that the barrier awaits; 0 is every one of the block that has not ended.
    pub count: u32,
    pub waits: bool,
    pub aligned: bool,
    /// Lanes of the warp that touched memory meanwhile.
    pub went_on: u32,
}
