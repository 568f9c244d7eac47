//! Functions of the device runtime that synchronise a cooperative grid: CUDA's cooperative groups call them.
//!
//! The barrier itself is two-staged. The block's threads meet at a barrier of their own ([`GRID_BARRIER`]). Then the
//! block is put aside until every block of the grid has been there, which the pool sees to.

use super::block::GRID_BARRIER;
use super::ctx::{BarrierCall, Ctx};
use super::functions::{Value, collect, deliver};
use crate::inst::{Flow, Inst};

/// `cudaCGScopeGrid` of the runtime's `enum cudaCGScope`.
const SCOPE_GRID: u32 = 1;
/// `cudaErrorInvalidValue`.
const INVALID_VALUE: u32 = 1;
/// The value that stands for the grid; kernels only hand it back.
const GRID_HANDLE: u64 = 0x4347_0000_0000_0010;

/// `unsigned long long cudaCGGetIntrinsicHandle(cudaCGScope)`: the grid's handle in a cooperative launch, else 0.
pub(crate) fn intrinsic_handle(c: &mut Ctx, i: &Inst) -> Flow {
    let launch = c.launch();
    let call = &launch.code().calls[i.aux as usize];
    let scopes = collect(c, &call.arguments);
    let results = call.results.clone();
    let given: [u64; 32] = std::array::from_fn(|lane| {
        let scope = scopes.first().map_or(0, |v| v.word(lane) as u32);
        if scope == SCOPE_GRID && launch.cooperative {
            GRID_HANDLE
        } else {
            0
        }
    });
    deliver(c, &results, &[Value::of_wide_words(&given)]);
    Flow::Next
}

/// `cudaError_t cudaCGSynchronize(unsigned long long handle, unsigned flags)`: waits until every thread of the grid
/// is there, and gives 0. Lanes without the grid's handle get `cudaErrorInvalidValue` at once.
pub(crate) fn synchronize(c: &mut Ctx, i: &Inst) -> Flow {
    let call = &c.launch().code().calls[i.aux as usize];
    let handles = collect(c, &call.arguments);
    let results = call.results.clone();
    let waits = if c.launch().cooperative {
        c.active()
            .filter(|lane| handles.first().is_some_and(|v| v.word(*lane) == GRID_HANDLE))
            .fold(0u32, |mask, lane| mask | 1 << lane)
    } else {
        0
    };
    let answers = std::array::from_fn(|lane| if waits >> lane & 1 == 1 { 0 } else { INVALID_VALUE });
    deliver(c, &results, &[Value::of_words(&answers)]);
    if waits == 0 {
        return Flow::Next;
    }
    // Others see after the barrier what a block wrote before it.
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    c.barrier = BarrierCall {
        id: GRID_BARRIER,
        ..BarrierCall::default()
    };
    // The warp lets the lanes that do not wait go on.
    c.set_mask(waits);
    Flow::Barrier
}
