//! Executable graphs: instantiating, launching, updating and ending them.

use super::args::{Handle, In, InMut, Out, stream_name};
use super::find;
use super::graph_params::NodeParams;
use super::stream_name::stream_of;
use crate::Result;
use crate::driver::driver;
use crate::graph::capture::Target;
use crate::graph::exec::{Exec, Refusal};
use crate::graph::launch;
use crate::graph::update;
use crate::graph::work::Work;
use divvy_abi::*;
use std::sync::Arc;

entry! {
    fn cuGraphInstantiate | cuGraphInstantiate_v2(
        exec: Out<CUgraphExec>, graph: Handle<CUgraph>, error_node: Out<CUgraphNode>, log: Out<c_char>, room: usize,
    ) {
        with_log(&exec, graph.0, &error_node, &log, room)
    }

    fn cuGraphInstantiateWithFlags(exec: Out<CUgraphExec>, graph: Handle<CUgraph>, flags: u64) {
        exec.required()?;
        // Uploading needs a stream, which this call has not.
        if flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0) != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let made = driver()?.graphs.instantiate(&*find::graph(graph.0)?, flags).map_err(|refusal| refusal.code)?;
        exec.set(made.handle as CUgraphExec)
    }

    fn cuGraphInstantiateWithParams(
        exec: Out<CUgraphExec>, graph: Handle<CUgraph>, params: InMut<CUDA_GRAPH_INSTANTIATE_PARAMS>,
    ) {
        with_params(&exec, graph.0, &params, false)
    }

    fn cuGraphInstantiateWithParams_ptsz(
        exec: Out<CUgraphExec>, graph: Handle<CUgraph>, params: InMut<CUDA_GRAPH_INSTANTIATE_PARAMS>,
    ) {
        with_params(&exec, graph.0, &params, true)
    }

    fn cuGraphUpload | cuGraphUpload_ptsz(exec: Handle<CUgraphExec> ; stream) {
        let exec = find::exec(exec.0)?;
        launch::upload(&exec, &stream.queue()?)
    }

    fn cuGraphLaunch | cuGraphLaunch_ptsz(exec: Handle<CUgraphExec> ; stream) {
        let exec = find::exec(exec.0)?;
        match stream.target()? {
            Target::Queue(queue) => {
                let driver = driver()?;
                let on = launch::On { launcher: &driver.launcher, arrays: &driver.arrays };
                launch::launch(&exec, &queue, stream_of(&queue)?, on)
            }
            Target::Capture(recorder) => {
                if !exec.memory.is_empty() {
                    return Err(CUDA_ERROR_NOT_SUPPORTED);
                }
                let child = exec.to_graph(&driver()?.graphs.handles)?;
                child.embed();
                recorder.add(Work::Child(child)).map(drop)
            }
        }
    }

    fn cuGraphExecDestroy(exec: Handle<CUgraphExec>) {
        let removed = driver()?.graphs.execs.remove(exec.0);
        removed.map(drop).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn cuGraphExecGetFlags(exec: Handle<CUgraphExec>, flags: Out<u64>) {
        flags.set(find::exec(exec.0)?.flags)
    }

    fn cuGraphExecGetId(exec: Handle<CUgraphExec>, id: Out<u32>) {
        id.set(find::exec(exec.0)?.id)
    }

    fn cuGraphNodeSetEnabled(exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, enabled: u32) {
        let exec = of_exec(exec.0, node.0)?;
        let mut state = exec.lock();
        let step = state.plan.step(node.0)?;
        can_be_disabled(&step.work)?;
        step.enabled = enabled != 0;
        Ok(())
    }

    fn cuGraphNodeGetEnabled(exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, enabled: Out<u32>) {
        let exec = of_exec(exec.0, node.0)?;
        let mut state = exec.lock();
        let step = state.plan.step(node.0)?;
        can_be_disabled(&step.work)?;
        enabled.set(u32::from(step.enabled))
    }

    fn cuGraphExecUpdate(
        exec: Handle<CUgraphExec>,
        graph: Handle<CUgraph>,
        error_node: Out<CUgraphNode>,
        result: Out<CUgraphExecUpdateResult>,
    ) {
        result.required()?;
        let info = updated(exec.0, graph.0)?;
        error_node.set_if_wanted(info.errorNode);
        result.set(info.result)?;
        outcome(&info)
    }

    fn cuGraphExecUpdate_v2(
        exec: Handle<CUgraphExec>,
        graph: Handle<CUgraph>,
        info: Out<CUgraphExecUpdateResultInfo>,
    ) {
        info.required()?;
        let found = updated(exec.0, graph.0)?;
        info.set(found)?;
        outcome(&found)
    }

    fn cuGraphExecKernelNodeSetParams(
        exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, params: In<CUDA_KERNEL_NODE_PARAMS_v1>,
    ) {
        set(exec.0, node.0, params.get()?.work()?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(
        exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, params: In<CUDA_KERNEL_NODE_PARAMS>,
    ) {
        set(exec.0, node.0, params.get()?.work()?)
    }

    fn cuGraphExecMemcpyNodeSetParams(
        exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, params: In<CUDA_MEMCPY3D>, context: Handle<CUcontext>,
    ) {
        let params = params.get()?;
        // Unlike cuGraphExecUpdate, this call takes copies of one row only.
        if (params.Height, params.Depth) != (1, 1) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        set(exec.0, node.0, (params, context.0).work()?)
    }

    fn cuGraphExecMemsetNodeSetParams(
        exec: Handle<CUgraphExec>,
        node: Handle<CUgraphNode>,
        params: In<CUDA_MEMSET_NODE_PARAMS>,
        context: Handle<CUcontext>,
    ) {
        set(exec.0, node.0, (params.get()?, context.0).work()?)
    }

    fn cuGraphExecHostNodeSetParams(
        exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, params: In<CUDA_HOST_NODE_PARAMS>,
    ) {
        set(exec.0, node.0, params.get()?.work()?)
    }

    fn cuGraphExecChildGraphNodeSetParams(
        exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, child: Handle<CUgraph>,
    ) {
        set(exec.0, node.0, Work::Child(find::graph(child.0)?))
    }

    fn cuGraphExecEventRecordNodeSetEvent(
        exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, event: Handle<CUevent>,
    ) {
        set(exec.0, node.0, Work::Record(driver()?.event(event.0)?))
    }

    fn cuGraphExecEventWaitNodeSetEvent(
        exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, event: Handle<CUevent>,
    ) {
        set(exec.0, node.0, Work::Wait(driver()?.event(event.0)?))
    }

    fn cuGraphExecBatchMemOpNodeSetParams(
        exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, params: In<CUDA_BATCH_MEM_OP_NODE_PARAMS>,
    ) {
        set(exec.0, node.0, params.get()?.work()?)
    }

    fn cuGraphExecNodeSetParams(
        exec: Handle<CUgraphExec>, node: Handle<CUgraphNode>, params: InMut<CUgraphNodeParams>,
    ) {
        let params = params.read().get()?;
        if params.type_ == CU_GRAPH_NODE_TYPE_GRAPH {
            // SAFETY: the type says which member it is, and any bits are a handle.
            let child = unsafe { params.anonymous1.graph.graph } as u64;
            return set(exec.0, node.0, Work::Child(find::graph(child)?));
        }
        set(exec.0, node.0, params.work()?)
    }
}

/// The executable graph, for a call that also names a node, which must still be in its graph.
fn of_exec(exec: u64, node: u64) -> Result<Arc<Exec>> {
    find::graph_of(node)?;
    find::exec(exec)
}

fn set(exec: u64, node: u64, work: Work) -> Result {
    update::set(&*of_exec(exec, node)?, node, work)
}

fn can_be_disabled(work: &Work) -> Result {
    match work {
        Work::Kernel(_) | Work::Memcpy(_) | Work::Memset(_) => Ok(()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn with_log(
    exec: &Out<CUgraphExec>,
    graph: u64,
    error_node: &Out<CUgraphNode>,
    log: &Out<c_char>,
    room: usize,
) -> Result {
    exec.required()?;
    let made = find::graph(graph)
        .map_err(Refusal::from)
        .and_then(|graph| driver()?.graphs.instantiate(&graph, 0));
    let node = made.as_ref().err().map_or(0, |refusal| refusal.node);
    error_node.set_if_wanted(node as CUgraphNode);
    if !log.is_null() && room > 0 {
        let text = made
            .as_ref()
            .err()
            .and_then(|refusal| refusal.result.label())
            .unwrap_or("");
        log.set_text(text, i32::try_from(room).unwrap_or(i32::MAX))?;
    }
    exec.set(made.map_err(|refusal| refusal.code)?.handle as CUgraphExec)
}

fn with_params(
    exec: &Out<CUgraphExec>,
    graph: u64,
    params: &InMut<CUDA_GRAPH_INSTANTIATE_PARAMS>,
    per_thread: bool,
) -> Result {
    exec.required()?;
    let mut given = params.read().get()?;
    let made = find::graph(graph)
        .map_err(Refusal::from)
        .and_then(|graph| driver()?.graphs.instantiate(&graph, given.flags))
        .and_then(|made| {
            if given.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0) != 0 {
                let queue = stream_name(given.hUploadStream, per_thread).queue();
                if let Err(why) = queue.and_then(|queue| launch::upload(&made, &queue)) {
                    driver()?.graphs.execs.remove(made.handle);
                    return Err(why.into());
                }
            }
            Ok(made)
        });
    let refusal = made.as_ref().err();
    given.result_out = refusal.map_or(CUDA_GRAPH_INSTANTIATE_SUCCESS, |refusal| refusal.result);
    given.hErrNode_out = refusal.map_or(0, |refusal| refusal.node) as CUgraphNode;
    params.write(given);
    exec.set(made.map_err(|refusal| refusal.code)?.handle as CUgraphExec)
}

fn updated(exec: u64, graph: u64) -> Result<CUgraphExecUpdateResultInfo> {
    let (exec, graph) = (find::exec(exec)?, find::graph(graph)?);
    Ok(match update::update(&exec, &graph) {
        Ok(()) => CUgraphExecUpdateResultInfo::default(),
        Err(mismatch) => CUgraphExecUpdateResultInfo {
            result: mismatch.result,
            errorNode: mismatch.node as CUgraphNode,
            errorFromNode: mismatch.from as CUgraphNode,
        },
    })
}

fn outcome(info: &CUgraphExecUpdateResultInfo) -> Result {
    if info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS {
        Ok(())
    } else {
        Err(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    }
}
