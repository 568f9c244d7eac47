//! Checks a launch against the module and the device, and lays it out for the workers.

use super::launch::{LaunchState, NO_AREA, WORKSPACE_WORDS};
use super::request::Launch;
use super::watch::Watch;
use crate::code::{ConstSlot, LOCAL_ALIGN, RESERVED_SHARED};
use crate::error::Fault;
use crate::module::Program;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bounds on what one block may take, far above any device: they keep a hostile module from taking the host's memory.
const MAX_SHARED: u64 = 16 << 20;
const MAX_REGISTERS: u64 = 1 << 30;
const MAX_LOCAL: u64 = 1 << 30;
/// Local memory for the frames of recursive functions, per thread.
const RECURSION_STACK: u64 = 64 << 10;

static LAUNCHES: AtomicU64 = AtomicU64::new(1);

/// Checks a launch and lays it out.
///
/// # Errors
/// Why it cannot run.
pub(super) fn prepare<'a>(
    program: &Program,
    launch: &Launch<'a>,
    watch: Option<&'a dyn Watch>,
) -> Result<LaunchState<'a>, Fault> {
    let bad = |why: String| Err(Fault::BadLaunch(why));
    let module = program.module();
    let Some(index) = module.kernel_index(launch.kernel) else {
        return bad(format!("no kernel `{}` in the module", launch.kernel));
    };
    let kernel = &module.kernels()[index];
    if let Some(what) = &kernel.unsupported {
        return Err(Fault::Unsupported(what.clone()));
    }
    if launch.grid.contains(&0) || launch.block.contains(&0) {
        return bad("a grid and a block have at least one element in each dimension".into());
    }
    let threads = launch
        .block
        .iter()
        .try_fold(1u32, |n, d| n.checked_mul(*d))
        .filter(|n| *n <= 1024);
    let Some(threads) = threads else {
        return bad(format!(
            "a block of {:?} has more than 1024 threads",
            launch.block
        ));
    };
    if launch.block[2] > 64 {
        return bad(format!("a block of {:?} is deeper than 64", launch.block));
    }
    let blocks = launch
        .grid
        .iter()
        .try_fold(1u64, |n, d| n.checked_mul(u64::from(*d)));
    let Some(blocks) = blocks else {
        return bad(format!("a grid of {:?} is too large", launch.grid));
    };
    // No device holds more than 32 blocks on a multiprocessor.
    if launch.cooperative && blocks > 32 * u64::from(launch.sm_count.max(1)) {
        return bad(format!(
            "{blocks} blocks cannot be resident at once on {} multiprocessors",
            launch.sm_count
        ));
    }
    if launch.params.len() < kernel.param_bytes as usize {
        return bad(format!(
            "kernel `{}` takes {} bytes of parameters, {} were given",
            kernel.name,
            kernel.param_bytes,
            launch.params.len()
        ));
    }
    let code = module.code();
    let function = module.kernel_function(index);
    let reachable = module.reachable(function);
    let mut areas = vec![NO_AREA; code.functions.len()];
    let mut warp_bytes = 0u64;
    for f in &reachable {
        areas[*f as usize] = u32::try_from(warp_bytes).unwrap_or(NO_AREA);
        warp_bytes += u64::from(code.functions[*f as usize].area_bytes.next_multiple_of(64));
    }
    let warps = u64::from(threads.div_ceil(32));
    if warp_bytes * warps > MAX_REGISTERS || warp_bytes >= u64::from(NO_AREA) {
        return bad(format!("kernel `{}` needs too many registers", kernel.name));
    }
    let (shared_offsets, static_bytes) = module.shared_layout(&reachable);
    let mut user_shared = static_bytes + u64::from(launch.dynamic_shared_bytes);
    let mut shared_bytes = user_shared;
    let reserved = reachable
        .iter()
        .any(|f| code.functions[*f as usize].reserved_shared);
    if reserved {
        user_shared = user_shared.next_multiple_of(RESERVED_SHARED / 2);
        shared_bytes = user_shared + RESERVED_SHARED;
    }
    if shared_bytes > MAX_SHARED {
        return bad(format!(
            "{shared_bytes} bytes of shared memory are more than any device has"
        ));
    }
    let recursive = reachable.iter().any(|f| code.functions[*f as usize].recursive);
    // An address that a lane computes is as aligned as the variable asks, in every lane and window.
    let functions = || reachable.iter().map(|f| &code.functions[*f as usize]);
    let local_align = functions().map(|f| f.local_align).fold(LOCAL_ALIGN, u64::max);
    let shared_align = functions()
        .flat_map(|f| &f.shared)
        .map(|n| code.shared[*n as usize].align)
        .fold(LOCAL_ALIGN, u64::max);
    let local_stride = (u64::from(kernel.local_bytes) + if recursive { RECURSION_STACK } else { 0 })
        .next_multiple_of(local_align);
    if local_stride * warps * 32 > MAX_LOCAL {
        return bad(format!(
            "{local_stride} bytes of local memory a thread are more than any device has"
        ));
    }
    let consts = |per_block: bool| -> Vec<(u32, Vec<ConstSlot>)> {
        reachable
            .iter()
            .map(|f| {
                let slots = code.functions[*f as usize].consts.iter();
                (
                    areas[*f as usize],
                    slots
                        .filter(|s| s.value.per_block() == per_block)
                        .copied()
                        .collect(),
                )
            })
            .collect()
    };
    let workspace = Box::new([const { AtomicU64::new(0) }; WORKSPACE_WORDS]);
    workspace[0].store(8 * WORKSPACE_WORDS as u64, Ordering::Relaxed);
    Ok(LaunchState {
        code: module.shared_code(),
        kernel: kernel.name.clone(),
        function,
        grid: launch.grid,
        block: launch.block,
        threads,
        blocks,
        dynamic_shared: launch.dynamic_shared_bytes,
        shared_bytes,
        user_shared,
        shared_offsets,
        params: launch.params[..].to_vec(),
        memory: launch.memory,
        cooperative: launch.cooperative,
        workspace,
        clock_ns: launch.clock_ns,
        print: launch.print,
        cancel: launch.cancel,
        sm_count: launch.sm_count.max(1),
        clock_khz: launch.clock_khz.max(1),
        timing: launch.timing,
        instruction_ps: launch.timing.map_or(0, |timing| timing.instruction_ps),
        begun_ns: (launch.clock_ns)(),
        warp_bytes: (warp_bytes as usize).max(64),
        local_stride,
        local_align,
        shared_align,
        launch_consts: consts(false),
        block_consts: consts(true),
        areas,
        addresses: program.addresses().to_vec(),
        compiled: launch.compile && watch.is_none(),
        watch,
        attentive: launch.timing.is_some() || watch.is_some(),
        rows: launch.block[0].is_multiple_of(32),
        id: LAUNCHES.fetch_add(1, Ordering::Relaxed),
    })
}
