//! How many blocks of a kernel fit on a multiprocessor, by the rules of CUDA's occupancy calculator.

use divvy_device::product::profile::{Profile, REGISTER_ALLOCATION_UNIT, THREADS_PER_BLOCK, WARP};
use divvy_ptx::Kernel;

/// Shared memory is handed out in units of this many bytes.
const SHARED_UNIT: u64 = 128;
/// Warps get registers in groups of this many.
const WARP_GRANULE: u32 = 4;
/// Registers of a block at most.
const REGISTERS_PER_BLOCK: u32 = 65_536;

/// Blocks of `threads` threads and `dynamic_shared` bytes that are resident on one multiprocessor at once.
pub fn blocks_per_sm(profile: &Profile, kernel: &Kernel, threads: u32, dynamic_shared: u64) -> u32 {
    let limits = profile.limits();
    if threads == 0 || threads > THREADS_PER_BLOCK {
        return 0;
    }
    let warps = threads.div_ceil(WARP);
    let by_warps = (limits.threads_per_sm / WARP) / warps;
    let by_registers = match registers_per_warp(registers(kernel)) {
        0 => limits.blocks_per_sm,
        per_warp => (limits.registers_per_sm / per_warp / WARP_GRANULE * WARP_GRANULE) / warps,
    };
    let shared = u64::from(kernel.static_shared_bytes) + dynamic_shared;
    if shared > u64::from(limits.shared_per_block_optin) {
        return 0;
    }
    let shared = (shared + u64::from(limits.shared_reserved_per_block)).next_multiple_of(SHARED_UNIT);
    let by_shared = u64::from(limits.shared_per_sm)
        .checked_div(shared)
        .map_or(limits.blocks_per_sm, |blocks| {
            u32::try_from(blocks).unwrap_or(u32::MAX)
        });
    limits
        .blocks_per_sm
        .min(by_warps)
        .min(by_registers)
        .min(by_shared)
}

/// Registers a thread of the kernel is taken to need (CU_FUNC_ATTRIBUTE_NUM_REGS). PTX tells only how many values live
/// at once, and a compiler would spill to let a whole block in. So the number is never more than a block of 1024
/// threads can have.
pub fn registers(kernel: &Kernel) -> u32 {
    kernel.registers.clamp(1, REGISTERS_PER_BLOCK / THREADS_PER_BLOCK)
}

/// Dynamic shared memory each of `blocks` blocks of `threads` threads can have, in bytes.
pub fn dynamic_shared_for(profile: &Profile, kernel: &Kernel, blocks: u32, threads: u32) -> Option<u64> {
    if blocks == 0 || blocks_per_sm(profile, kernel, threads, 0) < blocks {
        return None;
    }
    let limits = profile.limits();
    let each = u64::from(limits.shared_per_sm / blocks) / SHARED_UNIT * SHARED_UNIT;
    let own = u64::from(limits.shared_reserved_per_block) + u64::from(kernel.static_shared_bytes);
    let most = u64::from(
        limits
            .shared_per_block_optin
            .saturating_sub(kernel.static_shared_bytes),
    );
    Some(each.saturating_sub(own).min(most))
}

fn registers_per_warp(registers: u32) -> u32 {
    (registers * WARP).next_multiple_of(REGISTER_ALLOCATION_UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(registers: u32, static_shared_bytes: u32) -> Kernel {
        Kernel {
            name: "k".into(),
            params: Vec::new(),
            param_bytes: 0,
            static_shared_bytes,
            local_bytes: 0,
            registers,
            max_threads: None,
            unsupported: None,
        }
    }

    #[test]
    fn each_resource_can_be_the_one_that_binds() {
        let a100 = Profile::by_key("a100-40gb").unwrap();
        assert_eq!(blocks_per_sm(a100, &kernel(16, 0), 256, 0), 8, "threads");
        assert_eq!(blocks_per_sm(a100, &kernel(16, 0), 32, 0), 32, "blocks");
        assert_eq!(blocks_per_sm(a100, &kernel(64, 0), 256, 0), 4, "registers");
        assert_eq!(
            blocks_per_sm(a100, &kernel(255, 0), 1024, 0),
            1,
            "a whole block always fits"
        );
        assert_eq!(
            blocks_per_sm(a100, &kernel(16, 0), 64, 48 << 10),
            3,
            "shared memory, 1 KiB kept of each"
        );
        assert_eq!(
            blocks_per_sm(a100, &kernel(16, 0), 64, 164 << 10),
            0,
            "more than a block can have"
        );
        assert_eq!(
            blocks_per_sm(Profile::by_key("t4").unwrap(), &kernel(16, 0), 256, 0),
            4
        );
        assert_eq!(blocks_per_sm(a100, &kernel(16, 0), 1025, 0), 0);
    }

    #[test]
    fn what_is_left_of_shared_memory_lets_that_many_blocks_in() {
        let h100 = Profile::by_key("h100").unwrap();
        for blocks in 1..=8 {
            let bytes = dynamic_shared_for(h100, &kernel(16, 512), blocks, 256).unwrap();
            assert!(blocks_per_sm(h100, &kernel(16, 512), 256, bytes) >= blocks);
        }
        assert_eq!(dynamic_shared_for(h100, &kernel(16, 0), 33, 32), None);
    }
}
