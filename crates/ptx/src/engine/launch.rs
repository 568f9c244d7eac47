//! A launch, checked and laid out: what every worker that runs its blocks reads.

use super::request::AddressSpace;
use super::timing::Timing;
use super::watch::Watch;
use crate::code::{Code, ConstSlot};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Not reachable from the kernel.
pub(crate) const NO_AREA: u32 = u32::MAX;

/// The grid's workspace, in words of 8 bytes.
pub(crate) const WORKSPACE_WORDS: usize = 8;

pub(crate) struct LaunchState<'a> {
    pub code: Arc<Code>,
    pub kernel: String,
    pub function: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub threads: u32,
    pub blocks: u64,
    pub dynamic_shared: u32,
    /// Of a block, with the system's part.
    pub shared_bytes: u64,
    /// The kernel's own part of it, where the system's begins.
    pub user_shared: u64,
    pub shared_offsets: Vec<u64>,
    pub params: Vec<u8>,
    pub memory: &'a dyn AddressSpace,
    pub cooperative: bool,
    /// Where CUDA's cooperative groups count the blocks that have come to the grid's barrier: `%envreg1` and
    /// `%envreg2` have its address. The first word is its size in bytes.
    pub workspace: Box<[AtomicU64; WORKSPACE_WORDS]>,
    pub clock_ns: &'a (dyn Fn() -> u64 + Sync),
    pub print: &'a (dyn Fn(&[u8]) + Sync),
    pub cancel: &'a AtomicBool,
    pub sm_count: u32,
    pub clock_khz: u32,
    pub timing: Option<Timing<'a>>,
    /// What an instruction costs its warp, in picoseconds: 0 without a model of time.
    pub instruction_ps: u64,
    /// `clock_ns` when the launch began.
    pub begun_ns: u64,
    /// Where each function's register area begins in a warp's registers.
    pub areas: Vec<u32>,
    pub warp_bytes: usize,
    pub local_stride: u64,
    /// Alignments of the host memory behind a block's local and shared memory, in bytes.
    pub local_align: u64,
    pub shared_align: u64,
    pub launch_consts: Vec<(u32, Vec<ConstSlot>)>,
    pub block_consts: Vec<(u32, Vec<ConstSlot>)>,
    pub addresses: Vec<u64>,
    pub id: u64,
    /// What is told of the launch.
    pub watch: Option<&'a dyn Watch>,
    /// What happens at barriers matters: there is a model of time, or the launch is watched.
    pub attentive: bool,
    /// Run compiled code where there is any.
    pub compiled: bool,
    /// A warp's lanes are neighbours in a row of the block.
    pub rows: bool,
}

impl LaunchState<'_> {
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Whether the warps of a block may go from barrier to barrier together: in compiled code, all of them with every
    /// lane, where nothing is modelled or watched between them.
    pub fn marches(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let compiled = self.native().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        let compiled = false;
        compiled && !self.attentive && self.threads.is_multiple_of(32)
    }

    /// The module's machine code, where this launch may use it.
    #[cfg(target_arch = "x86_64")]
    pub fn native(&self) -> Option<&crate::compile::Native> {
        if !self.compiled {
            return None;
        }
        self.code.native()
    }
}
