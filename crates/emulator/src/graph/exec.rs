//! Executable graphs: a graph as it was when it was instantiated, ready to launch.

use super::footprint;
use super::memory::Reserved;
use super::physical::Physical;
use super::topology::{Graph, GraphHandles, Inner};
use super::work::Work;
use crate::{Result, handle};
use divvy_abi::*;
use divvy_device::exec::task::Task;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An executable graph.
pub struct Exec {
    /// What the program holds.
    pub handle: u64,
    /// cuGraphExecGetId.
    pub id: u32,
    /// CUDA_GRAPH_INSTANTIATE_FLAG_*, without UPLOAD.
    pub flags: u64,
    /// The memory it allocates and frees.
    pub memory: Memory,
    state: Mutex<State>,
    /// Gone with the last reference. Its graph uses that to see whether it lives.
    alive: Arc<()>,
}

/// What changes from launch to launch.
pub struct State {
    /// Its nodes.
    pub plan: Plan,
    /// The end of its last launch.
    pub last: Option<Arc<Task>>,
}

/// The nodes of a graph, each after those it depends on.
#[derive(Clone)]
pub struct Plan {
    /// The nodes in the order they start.
    pub steps: Vec<Step>,
}

/// A node of an executable graph.
#[derive(Clone)]
pub struct Step {
    /// The node it was made from.
    pub node: u64,
    /// What it does.
    pub work: Work,
    /// The nodes of a child graph.
    pub child: Option<Plan>,
    /// cuGraphNodeSetEnabled.
    pub enabled: bool,
    /// Positions of the steps it depends on, in the order the edges were added.
    pub before: Vec<usize>,
    /// No step depends on it.
    pub last: bool,
}

/// The graph memory of an executable graph.
#[derive(Default)]
pub struct Memory {
    /// Allocated and freed by each launch.
    pub inside: Vec<Arc<Reserved>>,
    /// Allocated and left to be freed by others.
    pub left: Vec<Arc<Reserved>>,
    /// Allocated by others and freed here.
    pub foreign: Vec<Arc<Reserved>>,
    /// Where the bytes of the first come from, and how many at most are in use at once.
    pub shared: Vec<(Arc<Physical>, u64)>,
}

/// Why a graph cannot be instantiated.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// What the call returns.
    pub code: CUresult,
    /// CUDA_GRAPH_INSTANTIATE_*.
    pub result: CUgraphInstantiateResult,
    /// The node at fault, or 0.
    pub node: u64,
}

impl From<CUresult> for Refusal {
    fn from(code: CUresult) -> Refusal {
        Refusal {
            code,
            result: CUDA_GRAPH_INSTANTIATE_ERROR,
            node: 0,
        }
    }
}

const FLAGS: u32 = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0
    | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0
    | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.0
    | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0;

impl Exec {
    /// Instantiates a graph.
    pub fn create(graph: &Graph, flags: u64) -> std::result::Result<Arc<Exec>, Refusal> {
        let has = |flag: CUgraphInstantiate_flags| flags & u64::from(flag.0) != 0;
        let from_device = has(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
        let clash = from_device && has(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        if clash || flags & !u64::from(FLAGS) != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        let mut inner = graph.lock();
        if inner.captures > 0 {
            return Err(CUDA_ERROR_ILLEGAL_STATE.into());
        }
        let plan = Plan::of(&inner)?;
        if from_device {
            // No kernel can launch a graph here: the device runtime's entry points are not emulated.
            return Err(Refusal {
                code: CUDA_ERROR_NOT_SUPPORTED,
                result: CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED,
                node: plan.steps.first().map_or(0, |step| step.node),
            });
        }
        if inner.has_memory() && inner.instance.strong_count() > 0 {
            return Err(CUDA_ERROR_INVALID_VALUE.into());
        }
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);
        let exec = Arc::new(Exec {
            handle: handle::fresh(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            flags: flags & !u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0),
            memory: Memory::of(&plan),
            state: Mutex::new(State { plan, last: None }),
            alive: Arc::default(),
        });
        inner.instance = Arc::downgrade(&exec.alive);
        Ok(exec)
    }

    /// What changes from launch to launch.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A graph like this one, for a child graph node.
    pub fn to_graph(&self, handles: &Arc<GraphHandles>) -> Result<Arc<Graph>> {
        let state = self.lock();
        state.plan.to_graph(handles)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        for (physical, _) in &self.memory.shared {
            physical.unmap(self.handle);
        }
    }
}

impl Plan {
    /// The nodes of a graph as it is.
    pub fn of(inner: &Inner) -> std::result::Result<Plan, Refusal> {
        let order = inner.order().map_err(|node| Refusal {
            code: CUDA_ERROR_INVALID_VALUE,
            result: CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE,
            node,
        })?;
        let places: HashMap<u64, usize> = order.iter().enumerate().map(|(at, &node)| (node, at)).collect();
        let mut steps = Vec::with_capacity(order.len());
        for node in order {
            let contents = &inner.nodes[&node];
            let child = match &contents.work {
                Work::Child(child) => Some(Plan::of(&child.lock())?),
                _ => None,
            };
            let before = contents.before.iter().map(|(earlier, _)| places[earlier]);
            steps.push(Step {
                node,
                work: contents.work.clone(),
                child,
                enabled: true,
                before: before.collect(),
                last: contents.after.is_empty(),
            });
        }
        Ok(Plan { steps })
    }

    /// The step made from a node, in child graphs too.
    pub fn step(&mut self, node: u64) -> Result<&mut Step> {
        // Two passes: a borrow that is returned from a loop ends it for the compiler.
        if let Some(at) = self.steps.iter().position(|step| step.node == node) {
            return Ok(&mut self.steps[at]);
        }
        for step in &mut self.steps {
            if let Some(child) = &mut step.child
                && let Ok(found) = child.step(node)
            {
                return Ok(found);
            }
        }
        Err(CUDA_ERROR_INVALID_VALUE)
    }

    /// All steps, those of child graphs in place of their nodes.
    pub fn each(&self, visit: &mut impl FnMut(&Step)) {
        for step in &self.steps {
            match &step.child {
                Some(child) => child.each(visit),
                None => visit(step),
            }
        }
    }

    fn to_graph(&self, handles: &Arc<GraphHandles>) -> Result<Arc<Graph>> {
        let graph = Graph::create(handles);
        let mut nodes = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let work = match &step.child {
                Some(child) => {
                    let child = child.to_graph(handles)?;
                    child.embed();
                    Work::Child(child)
                }
                None if !step.enabled => Work::Empty,
                None => step.work.clone(),
            };
            let before: Vec<_> = step
                .before
                .iter()
                .map(|&at| (nodes[at], Default::default()))
                .collect();
            nodes.push(graph.add(work, &before)?);
        }
        Ok(graph)
    }
}

impl Memory {
    fn of(plan: &Plan) -> Memory {
        let mut memory = Memory::default();
        plan.each(&mut |step| match &step.work {
            Work::Alloc(reserved) if reserved.is_inside() => memory.inside.push(Arc::clone(reserved)),
            Work::Alloc(reserved) => memory.left.push(Arc::clone(reserved)),
            Work::Free(reserved) if !reserved.is_inside() => memory.foreign.push(Arc::clone(reserved)),
            _ => {}
        });
        memory.shared = footprint::of(plan);
        memory
    }

    /// Whether a launch allocates or frees anything.
    pub fn is_empty(&self) -> bool {
        self.inside.is_empty() && self.left.is_empty() && self.foreign.is_empty()
    }
}
