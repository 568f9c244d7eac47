//! How much memory the allocations inside a graph need at once.
//!
//! An allocation takes over the bytes of one that is certainly freed before it, as the CUDA programming guide
//! describes ("Graph Memory Nodes": address reuse within a graph). Only the bytes are shared here: each node keeps an
//! address of its own.

use super::exec::Plan;
use super::physical::Physical;
use super::work::Work;
use divvy_device::memory::charge::GRANULE;
use std::collections::HashSet;
use std::sync::Arc;

/// A run of bytes that allocations have in turn.
struct Extent {
    bytes: u64,
    physical: Arc<Physical>,
    /// Address of the allocation that has it.
    user: u64,
    /// The step that frees it.
    freed: Option<usize>,
}

/// Bytes per device that one launch needs for what it allocates and frees.
pub fn of(plan: &Plan) -> Vec<(Arc<Physical>, u64)> {
    let mut sums = Vec::new();
    add(plan, &mut sums);
    sums
}

fn add(plan: &Plan, sums: &mut Vec<(Arc<Physical>, u64)>) {
    let mut extents: Vec<Extent> = Vec::new();
    for (at, step) in plan.steps.iter().enumerate() {
        match (&step.work, &step.child) {
            (_, Some(child)) => add(child, sums),
            (Work::Alloc(reserved), _) if reserved.is_inside() => {
                let bytes = reserved.allocation.bytes.next_multiple_of(GRANULE);
                let earlier = ancestors(plan, at);
                let reusable = extents.iter_mut().filter(|extent| {
                    extent.bytes >= bytes
                        && Arc::ptr_eq(&extent.physical, reserved.physical())
                        && extent.freed.is_some_and(|step| earlier.contains(&step))
                });
                match reusable.min_by_key(|extent| extent.bytes) {
                    Some(extent) => {
                        extent.user = reserved.base();
                        extent.freed = None;
                    }
                    None => extents.push(Extent {
                        bytes,
                        physical: Arc::clone(reserved.physical()),
                        user: reserved.base(),
                        freed: None,
                    }),
                }
            }
            (Work::Free(reserved), _) => {
                for extent in &mut extents {
                    if extent.user == reserved.base() && extent.freed.is_none() {
                        extent.freed = Some(at);
                    }
                }
            }
            _ => {}
        }
    }
    for extent in extents {
        match sums
            .iter_mut()
            .find(|(physical, _)| Arc::ptr_eq(physical, &extent.physical))
        {
            Some((_, sum)) => *sum += extent.bytes,
            None => sums.push((extent.physical, extent.bytes)),
        }
    }
}

fn ancestors(plan: &Plan, step: usize) -> HashSet<usize> {
    let mut found = HashSet::new();
    let mut left = plan.steps[step].before.clone();
    while let Some(at) = left.pop() {
        if found.insert(at) {
            left.extend(&plan.steps[at].before);
        }
    }
    found
}
