//! Launching executable graphs: each node becomes a task behind those it depends on.

use super::exec::{Exec, Plan, Step};
use super::memory::Reserved;
use super::physical::StreamKey;
use super::work::{HostWork, Work};
use crate::Result;
use crate::array::Array;
use crate::check;
use crate::context::Context;
use crate::handle::Handles;
use crate::launch::{self, Launcher};
use crate::memop;
use crate::order::StreamKind;
use crate::stream::{Queue, Stream, engine_work};
use crate::trace::{self, Place, Traced};
use divvy_abi::*;
use divvy_device::exec::task::{self, Task};
use std::sync::{Arc, Weak};

/// What the nodes of a graph run on.
#[derive(Clone, Copy)]
pub struct On {
    /// What runs kernels.
    pub launcher: &'static Launcher,
    /// Live arrays, which copies name by handle.
    pub arrays: &'static Handles<Array>,
}

/// Launches a graph in a stream: behind all that is in it, and behind the graph's own previous launch.
/// Waits for words of memory end with `stream`, where that can be destroyed.
pub fn launch(exec: &Arc<Exec>, queue: &Queue, stream: Option<Weak<Stream>>, on: On) -> Result {
    queue.wait_for_room();
    let mut state = exec.lock();
    check_memory(exec)?;
    map(exec, queue)?;
    let left = begin_memory(exec)?;
    let previous: Vec<_> = state.last.iter().cloned().collect();
    let mut start = queue.mark(&previous);
    if !left.is_empty() {
        start = queue.submit(task::Work::Pool(Box::new(move || {
            left.iter().for_each(Reserved::end);
        })));
    }
    let launch = Launch {
        on,
        context: Arc::clone(&queue.context),
        stream,
        place: queue.place(),
    };
    let mut ends = launch.submit(&state.plan, &[start]);
    if !exec.memory.shared.is_empty() {
        ends = vec![end_memory(exec, queue, &ends)];
    }
    let end = queue.mark(&ends);
    for context in other_contexts(&state.plan, &queue.context) {
        // A wait for that context waits for its part of the graph too.
        let stream = context.new_stream_id();
        context.submit(
            stream,
            StreamKind::NonBlocking,
            &[Arc::clone(&end)],
            task::Work::Marker,
        );
    }
    state.last = Some(end);
    Ok(())
}

/// Gives a graph the memory for a launch in a stream, without launching it.
pub fn upload(exec: &Arc<Exec>, queue: &Queue) -> Result {
    let mut state = exec.lock();
    map(exec, queue)?;
    let previous: Vec<_> = state.last.iter().cloned().collect();
    state.last = Some(queue.mark(&previous));
    Ok(())
}

fn key(queue: &Queue) -> StreamKey {
    (queue.context.id, queue.id)
}

fn map(exec: &Exec, queue: &Queue) -> Result {
    for (physical, bytes) in &exec.memory.shared {
        physical
            .map(exec.handle, key(queue), *bytes)
            .map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    }
    Ok(())
}

/// Refuses a launch that would allocate what is not freed, or free what is not allocated.
fn check_memory(exec: &Exec) -> Result {
    let memory = &exec.memory;
    let unfreed = memory.left.iter().any(|reserved| reserved.is_unfreed());
    if unfreed && !frees_itself(exec) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if memory.foreign.iter().any(|reserved| !reserved.is_unfreed()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

fn frees_itself(exec: &Exec) -> bool {
    exec.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0) != 0
}

/// Gives all allocations of a launch their bytes, or none. Allocations that the previous launch left, and that this one
/// is to free first, come back.
fn begin_memory(exec: &Exec) -> Result<Vec<Arc<Reserved>>> {
    let memory = &exec.memory;
    let freed = |reserved: &&Arc<Reserved>| reserved.free().is_ok();
    let left: Vec<_> = memory.left.iter().filter(freed).cloned().collect();
    let mut begun: Vec<&Arc<Reserved>> = Vec::new();
    for reserved in memory.inside.iter().chain(&memory.left) {
        if let Err(full) = reserved.begin() {
            for taken in begun {
                let _ = taken.free();
                taken.end();
            }
            left.iter().for_each(|reserved| reserved.not_freed());
            return Err(full);
        }
        begun.push(reserved);
    }
    for reserved in &memory.foreign {
        // Unfreed: `check_memory` has looked.
        let _ = reserved.free();
    }
    Ok(left)
}

fn end_memory(exec: &Arc<Exec>, queue: &Queue, ends: &[Arc<Task>]) -> Arc<Task> {
    let key = key(queue);
    let shared = exec.memory.shared.clone();
    for (physical, _) in &shared {
        physical.begun(key);
    }
    // Holding the exec keeps its memory mapped until the launch is over, even if it is destroyed meanwhile.
    let exec = Arc::clone(exec);
    let run = move || {
        for (physical, _) in &shared {
            physical.ended(key);
        }
        drop(exec);
    };
    Task::submit(ends, task::Work::Pool(Box::new(run)))
}

fn other_contexts(plan: &Plan, main: &Arc<Context>) -> Vec<Arc<Context>> {
    let mut others: Vec<Arc<Context>> = Vec::new();
    plan.each(&mut |step| {
        if let Some(context) = step.work.context()
            && context.id != main.id
            && others.iter().all(|other| other.id != context.id)
        {
            others.push(Arc::clone(context));
        }
    });
    others
}

struct Launch {
    on: On,
    /// The stream's, for nodes that have no context of their own.
    context: Arc<Context>,
    /// The stream, where it can be destroyed: waits for words of memory end with it.
    stream: Option<Weak<Stream>>,
    /// The stream, for records.
    place: Place,
}

impl Launch {
    /// Starts all steps behind `start`; the tasks after which all is done.
    fn submit(&self, plan: &Plan, start: &[Arc<Task>]) -> Vec<Arc<Task>> {
        let mut tasks: Vec<Arc<Task>> = Vec::with_capacity(plan.steps.len());
        let mut ends = Vec::new();
        for step in &plan.steps {
            let before: Vec<_> = if step.before.is_empty() {
                start.to_vec()
            } else {
                step.before.iter().map(|&at| Arc::clone(&tasks[at])).collect()
            };
            let task = self.start(step, before);
            if step.last {
                ends.push(Arc::clone(&task));
            }
            tasks.push(task);
        }
        if ends.is_empty() { start.to_vec() } else { ends }
    }

    fn start(&self, step: &Step, mut before: Vec<Arc<Task>>) -> Arc<Task> {
        if !step.enabled {
            return Task::submit(&before, task::Work::Marker);
        }
        let On { launcher, arrays } = self.on;
        match &step.work {
            Work::Empty | Work::Alloc(_) => Task::submit(&before, task::Work::Marker),
            Work::Child(_) => {
                let ends = match &step.child {
                    Some(plan) => self.submit(plan, &before),
                    None => before,
                };
                Task::submit(&ends, task::Work::Marker)
            }
            Work::Wait(event) => {
                before.extend(event.mark());
                Task::submit(&before, task::Work::Marker)
            }
            Work::Record(event) => {
                let mark = Task::submit(&before, task::Work::Marker);
                event.record(Arc::clone(&mark));
                mark
            }
            Work::Free(reserved) => {
                // Also where the context has failed: the device gets its bytes back.
                let reserved = Arc::clone(reserved);
                Task::submit(&before, task::Work::Pool(Box::new(move || reserved.end())))
            }
            Work::Kernel(kernel) => {
                let kernel = kernel.clone();
                let context = Arc::clone(kernel.context());
                let traced = launch::traced(
                    launcher,
                    self.place,
                    &kernel.function,
                    &kernel.geometry,
                    &kernel.params.bytes,
                );
                let number = check::launch((self.place.context, self.place.stream));
                let run = engine_work(&context, traced, move |running| {
                    kernel.run(launcher, running, number)
                });
                Task::submit(&before, run)
            }
            Work::Memcpy(copy) => run(&before, &copy.context, trace::work(self.place), {
                let copy = copy.clone();
                move || copy.run(arrays)
            }),
            Work::Memset(fill) => {
                let fill = fill.clone();
                let run = engine_work(&fill.context, trace::work(self.place), {
                    let fill = fill.clone();
                    move |_| fill.run()
                });
                Task::submit(&before, run)
            }
            Work::Host(HostWork { function, data, .. }) => {
                let (function, data) = (*function, *data);
                let checked = check::on().map(|checker| (checker, checker.strands.function()));
                run(&before, &self.context, trace::work(self.place), move || {
                    if let Some((checker, number)) = checked {
                        checker.strands.runs(number);
                    }
                    // SAFETY: the program gave a function of this type, and vouches for its data while the graph runs.
                    unsafe { function(data as *mut c_void) };
                })
            }
            Work::MemOps(work) => memop::submit(&work.ops, &work.context, self.stream.clone(), &before),
        }
    }
}

/// A task that does nothing if its context has failed by then.
fn run(
    before: &[Arc<Task>],
    context: &Arc<Context>,
    traced: Traced,
    body: impl FnOnce() + Send + 'static,
) -> Arc<Task> {
    let context = Arc::clone(context);
    let run = move || {
        if context.check().is_ok() {
            trace::run(traced, body);
        }
    };
    Task::submit(before, task::Work::Pool(Box::new(run)))
}
