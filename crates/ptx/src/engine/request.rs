//! What a caller asks of the engine, and what it hears of a launch that has ended.

use super::image::{Image, Texture};
use super::timing::{Times, Timing};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

/// What the device's memory looks like to a kernel. A device address is the host address of the byte.
pub trait AddressSpace: Sync {
    /// The accessible range `[start, end)` that holds `address`, or `None`. It stays valid, readable and writable for
    /// the length of the launch. Called rarely: the engine remembers ranges.
    fn range(&self, address: u64) -> Option<Range<u64>>;

    /// The address of `bytes` bytes of the device's heap, for a kernel's `malloc`: aligned to 16 bytes, and inside a
    /// range of this space. `None` where the heap has not as many, or there is none.
    fn allocate(&self, _bytes: u64) -> Option<u64> {
        None
    }

    /// What a texture object stands for. Its texels stay readable for the length of the launch.
    fn texture(&self, _object: u64) -> Option<Texture> {
        None
    }

    /// What a surface object stands for. Its elements stay readable and writable for the length of the launch.
    fn surface(&self, _object: u64) -> Option<Image> {
        None
    }

    /// Gives back what [`Self::allocate`] gave; false where the address is not the beginning of that.
    fn free(&self, _address: u64) -> bool {
        false
    }
}

/// One launch of a kernel.
pub struct Launch<'a> {
    /// The kernel's name.
    pub kernel: &'a str,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub dynamic_shared_bytes: u32,
    /// Parameters laid out as `Kernel::params` say.
    pub params: &'a [u8],
    /// The device's memory.
    pub memory: &'a dyn AddressSpace,
    /// Every block is resident from the start: blocks may wait for each other.
    pub cooperative: bool,
    /// `%globaltimer`, in nanoseconds.
    pub clock_ns: &'a (dyn Fn() -> u64 + Sync),
    /// Takes what `vprintf` prints, a part per call.
    pub print: &'a (dyn Fn(&[u8]) + Sync),
    /// Set: the launch ends with `Fault::Cancelled` within milliseconds.
    pub cancel: &'a AtomicBool,
    /// `%nsmid`.
    pub sm_count: u32,
    /// Ticks of `%clock64` in a millisecond.
    pub clock_khz: u32,
    /// How time passes for the kernel; without it, as long as the CPU takes.
    pub timing: Option<Timing<'a>>,
    /// The module is compiled to machine code, where the processor has AVX-512 and the system allows it. It is
    /// interpreted elsewhere; results are the same.
    pub compile: bool,
}

/// What a launch executed. An instruction counts once for its warp and once for every lane that was active when it was
/// issued, whether or not a guard held for that lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Instructions issued to warps.
    pub warp_instructions: u64,
    /// Instructions times active lanes.
    pub lane_instructions: u64,
    /// How long its blocks took.
    pub times: Times,
}
