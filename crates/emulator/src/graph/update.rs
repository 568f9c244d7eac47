//! Updating an executable graph: which changes of a node it takes, and which node of the new graph is which of its own.

use super::exec::{Exec, Plan, Step};
use super::topology::Graph;
use super::work::{MemcpyWork, MemsetWork, Work};
use crate::Result;
use crate::copy::Known;
use divvy_abi::*;
use std::collections::HashMap;

/// Why an executable graph was not updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// CU_GRAPH_EXEC_UPDATE_*.
    pub result: CUgraphExecUpdateResult,
    /// The node of the new graph that does not fit, or 0.
    pub node: u64,
    /// Where an edge does not fit: the node it comes from.
    pub from: u64,
}

fn mismatch(result: CUgraphExecUpdateResult, node: u64) -> Mismatch {
    Mismatch {
        result,
        node,
        from: 0,
    }
}

/// Takes over the parameters of a graph of the same shape, all or none.
pub fn update(exec: &Exec, graph: &Graph) -> std::result::Result<(), Mismatch> {
    let error = mismatch(CU_GRAPH_EXEC_UPDATE_ERROR, 0);
    let new = Plan::of(&graph.lock()).map_err(|_| error)?;
    let mut state = exec.lock();
    let mut plan = state.plan.clone();
    apply(&mut plan, &new, exec.flags)?;
    state.plan = plan;
    Ok(())
}

/// Gives one node of an executable graph other parameters.
pub fn set(exec: &Exec, node: u64, work: Work) -> Result {
    let mut state = exec.lock();
    let step = state.plan.step(node)?;
    if step.work.kind() != work.kind() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if step.work.is_memory() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let child = match &work {
        Work::Child(graph) => Some(Plan::of(&graph.lock()).map_err(|refusal| refusal.code)?),
        _ => None,
    };
    let new = Step {
        work,
        child,
        ..step.clone()
    };
    let mut changed = step.clone();
    replace(&mut changed, &new, exec.flags).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    *step = changed;
    Ok(())
}

/// Pairs the nodes of two plans from their ends, along the edges in the order they were added, and takes over the new
/// ones' parameters. NVIDIA's driver does the same (CUDA driver API, cuGraphExecUpdate).
fn apply(old: &mut Plan, new: &Plan, flags: u64) -> std::result::Result<(), Mismatch> {
    let changed = |node| mismatch(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node);
    if old.steps.len() != new.steps.len() {
        return Err(changed(0));
    }
    let (old_ends, new_ends) = (ends(old), ends(new));
    if old_ends.len() != new_ends.len() {
        return Err(changed(new_ends.last().map_or(0, |&at| new.steps[at].node)));
    }
    let mut pairs: HashMap<usize, usize> = HashMap::new();
    let mut taken: HashMap<usize, usize> = HashMap::new();
    let mut left: Vec<(usize, usize, u64)> = Vec::new();
    left.extend(old_ends.into_iter().zip(new_ends).map(|(old, new)| (old, new, 0)));
    while let Some((at_old, at_new, later)) = left.pop() {
        match (pairs.get(&at_new), taken.get(&at_old)) {
            (Some(&paired), _) if paired == at_old => continue,
            (None, None) => {}
            _ => {
                return Err(Mismatch {
                    from: new.steps[at_new].node,
                    ..changed(later)
                });
            }
        }
        pairs.insert(at_new, at_old);
        taken.insert(at_old, at_new);
        let (step, with) = (&old.steps[at_old], &new.steps[at_new]);
        if step.before.len() != with.before.len() {
            return Err(changed(with.node));
        }
        let edges = step.before.iter().zip(&with.before);
        left.extend(edges.map(|(&old, &new)| (old, new, with.node)));
    }
    for (at_new, at_old) in pairs {
        replace(&mut old.steps[at_old], &new.steps[at_new], flags)?;
    }
    Ok(())
}

/// The nodes that nothing depends on, in order of creation.
fn ends(plan: &Plan) -> Vec<usize> {
    let mut ends: Vec<usize> = (0..plan.steps.len()).filter(|&at| plan.steps[at].last).collect();
    ends.sort_by_key(|&at| plan.steps[at].node);
    ends
}

fn replace(step: &mut Step, new: &Step, flags: u64) -> std::result::Result<(), Mismatch> {
    if let (Some(old), Some(new)) = (&mut step.child, &new.child) {
        return apply(old, new, flags);
    }
    fits(&step.work, &new.work, flags).map_err(|result| mismatch(result, new.node))?;
    step.work = new.work.clone();
    Ok(())
}

/// Whether one node's parameters can take another's place (CUDA driver API, cuGraphExecUpdate: limitations).
fn fits(old: &Work, new: &Work, flags: u64) -> std::result::Result<(), CUgraphExecUpdateResult> {
    let parameters = |fits: bool| {
        fits.then_some(())
            .ok_or(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED)
    };
    match (old, new) {
        (Work::Kernel(old), Work::Kernel(new)) => {
            if old.context().id != new.context().id {
                return Err(CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE);
            }
            let by_priority = flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0) != 0;
            if old.geometry.cooperative != new.geometry.cooperative
                || (by_priority && old.attributes.priority() != new.attributes.priority())
            {
                return Err(CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED);
            }
            Ok(())
        }
        (Work::Memcpy(old), Work::Memcpy(new)) => parameters(copy_fits(old, new)),
        (Work::Memset(old), Work::Memset(new)) => parameters(fill_fits(old, new)),
        (Work::MemOps(old), Work::MemOps(new)) => {
            parameters(old.context.id == new.context.id && new.ops.fits(&old.ops))
        }
        (Work::Alloc(old), Work::Alloc(new)) | (Work::Free(old), Work::Free(new)) => {
            // Another node has another address, which the kernels of this graph do not know.
            let same = old.base() == new.base();
            same.then_some(()).ok_or(CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED)
        }
        _ if old.kind() == new.kind() => Ok(()),
        _ => Err(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED),
    }
}

fn copy_fits(old: &MemcpyWork, new: &MemcpyWork) -> bool {
    let (a, b) = (&old.copy.0, &new.copy.0);
    let known = Known::Reserved(&old.context.addresses);
    let shape = |copy: &CUDA_MEMCPY3D| (copy.WidthInBytes, copy.Height, copy.Depth);
    old.context.id == new.context.id
        && (a.srcMemoryType, a.dstMemoryType) == (b.srcMemoryType, b.dstMemoryType)
        && ((old.is_linear() && new.is_linear()) || shape(a) == shape(b))
        && same_place(known, a.srcDevice, b.srcDevice)
        && same_place(known, a.dstDevice, b.dstDevice)
}

fn fill_fits(old: &MemsetWork, new: &MemsetWork) -> bool {
    let (a, b) = (&old.fill, &new.fill);
    let known = Known::Reserved(&old.context.addresses);
    let block = |fill: &CUDA_MEMSET_NODE_PARAMS| (fill.width, fill.pitch, fill.elementSize);
    old.context.id == new.context.id
        && a.height == b.height
        && (a.height == 1 || block(a) == block(b))
        && same_place(known, a.dst, b.dst)
}

/// Whether two addresses are memory on the same device and of the same context. One that is not there any more fits
/// any.
fn same_place(known: Known<'_>, old: u64, new: u64) -> bool {
    match (known.find(old), known.find(new)) {
        (Some(old), Some(new)) => {
            (old.device, old.context, old.kind.is_device()) == (new.device, new.context, new.kind.is_device())
        }
        _ => true,
    }
}
