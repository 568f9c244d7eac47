//! Executable graphs: launches in order, updates and why they fail, and faults.

mod common;

use common::graph::*;
use common::{POKE, alone, code, cu, download, function, get, module, param, start, upload};
use divvy_abi::*;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn the_same_executable_graph_runs_one_launch_at_a_time() {
    alone("the_same_executable_graph_runs_one_launch_at_a_time", &[], || {
        start(0);
        let (graph, one, two) = (graph(), stream(), stream());
        let memory = upload(&[0u8; 4]);
        let (open, params) = gate();
        let host: CUgraphNode = get!(cuGraphAddHostNode(graph, null(), 0, &raw const params));
        add_fill(graph, &[host], memory, 1, 4);
        let exec = instantiate(graph);
        cu!(cuGraphLaunch(exec, one));
        cu!(cuGraphLaunch(exec, two));
        cu!(cuMemsetD8Async(memory, 2, 4, two));
        assert_eq!(code!(cuStreamQuery(two)), CUDA_ERROR_NOT_READY);
        // Destroyed while it runs: it ends, and then it is gone.
        cu!(cuGraphExecDestroy(exec));
        assert_eq!(download::<u8>(memory, 4), [0; 4]);
        drop(open);
        cu!(cuCtxSynchronize());
        assert_eq!(download::<u8>(memory, 4), [2; 4]);
        // Launches into several streams never meet.
        let graph = get!(cuGraphCreate(0));
        let params = CUDA_HOST_NODE_PARAMS {
            fn_: Some(meet),
            userData: null_mut(),
        };
        let _: CUgraphNode = get!(cuGraphAddHostNode(graph, null(), 0, &raw const params));
        let exec = instantiate(graph);
        for _ in 0..5 {
            cu!(cuGraphLaunch(exec, one));
            cu!(cuGraphLaunch(exec, two));
        }
        cu!(cuCtxSynchronize());
        assert_eq!(MOST.load(Ordering::SeqCst), 1);
    });
}

static INSIDE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Notes how many are in here at once.
unsafe extern "C" fn meet(_: *mut c_void) {
    let inside = INSIDE.fetch_add(1, Ordering::SeqCst) + 1;
    MOST.fetch_max(inside, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(10));
    INSIDE.fetch_sub(1, Ordering::SeqCst);
}

#[test]
fn executable_graphs_take_new_parameters() {
    alone("executable_graphs_take_new_parameters", &[], || {
        start(0);
        let (graph, stream) = (graph(), stream());
        let memory = upload(&[0u8; 16]);
        let filled = add_fill(graph, &[], memory, 1, 8);
        let copied = add_copy(graph, &[filled], memory + 8, memory, 8);
        let exec = instantiate(graph);
        let new = fill(memory, 2, 8);
        cu!(cuGraphExecMemsetNodeSetParams(
            exec,
            filled,
            &raw const new,
            null_mut()
        ));
        run(exec, stream);
        assert_eq!(download::<u8>(memory, 16), [2; 16]);
        // A disabled node does nothing, and keeps its parameters.
        cu!(cuGraphNodeSetEnabled(exec, filled, 0));
        let mut enabled = 9;
        cu!(cuGraphNodeGetEnabled(exec, filled, &raw mut enabled));
        assert_eq!(enabled, 0);
        cu!(cuMemsetD8_v2(memory, 0, 16));
        run(exec, stream);
        assert_eq!(download::<u8>(memory, 16), [0; 16]);
        cu!(cuGraphNodeSetEnabled(exec, filled, 1));
        run(exec, stream);
        assert_eq!(download::<u8>(memory, 16), [2; 16]);

        // The graph itself was not touched, and an update takes its parameters back.
        let mut back = CUDA_MEMSET_NODE_PARAMS::default();
        cu!(cuGraphMemsetNodeGetParams(filled, &raw mut back));
        assert_eq!(back.value, 1);
        let mut info = CUgraphExecUpdateResultInfo::default();
        cu!(cuGraphExecUpdate_v2(exec, graph, &raw mut info));
        assert_eq!(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
        run(exec, stream);
        assert_eq!(download::<u8>(memory, 16), [1; 16]);

        // What an executable graph does not take.
        let two_rows = CUDA_MEMSET_NODE_PARAMS {
            pitch: 8,
            width: 4,
            height: 2,
            ..new
        };
        let refused = code!(cuGraphExecMemsetNodeSetParams(
            exec,
            filled,
            &raw const two_rows,
            null_mut()
        ));
        assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
        let refused = code!(cuGraphExecMemsetNodeSetParams(
            exec,
            copied,
            &raw const new,
            null_mut()
        ));
        assert_eq!(refused, CUDA_ERROR_INVALID_VALUE, "another kind of node");
        let empty = add_empty(graph, &[]);
        assert_eq!(
            code!(cuGraphNodeSetEnabled(exec, empty, 0)),
            CUDA_ERROR_INVALID_VALUE,
            "added later"
        );
    });
}

#[test]
fn updates_say_why_they_fail() {
    alone("updates_say_why_they_fail", &[], || {
        start(0);
        let memory = upload(&[0u8; 16]);
        let original = graph();
        let first = add_fill(original, &[], memory, 1, 8);
        add_copy(original, &[first], memory + 8, memory, 8);
        let exec = instantiate(original);
        let attempt = |graph| {
            let mut info = CUgraphExecUpdateResultInfo::default();
            let code = code!(cuGraphExecUpdate_v2(exec, graph, &raw mut info));
            assert_eq!(code, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
            (info.result, info.errorNode)
        };
        let fewer = graph();
        add_fill(fewer, &[], memory, 1, 8);
        assert_eq!(
            attempt(fewer),
            (CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, null_mut())
        );
        let apart = graph();
        add_fill(apart, &[], memory, 1, 8);
        let second = add_copy(apart, &[], memory + 8, memory, 8);
        assert_eq!(
            attempt(apart),
            (CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, second)
        );
        let kinds = graph();
        let first = add_fill(kinds, &[], memory, 1, 8);
        let second = add_fill(kinds, &[first], memory, 1, 8);
        assert_eq!(
            attempt(kinds),
            (CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, second)
        );
        let places = graph();
        let first = add_fill(places, &[], memory, 1, 8);
        let host = [0u8; 8];
        let params = CUDA_MEMCPY3D {
            srcMemoryType: CU_MEMORYTYPE_HOST,
            srcHost: host.as_ptr().cast(),
            ..copy(memory, 0, 8)
        };
        let second: CUgraphNode = get!(cuGraphAddMemcpyNode(
            places,
            &raw const first,
            1,
            &raw const params,
            null_mut()
        ));
        assert_eq!(
            attempt(places),
            (CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, second)
        );
        // A failed update changes nothing.
        run(exec, stream());
        assert_eq!(download::<u8>(memory, 16), [1; 16]);
        let (mut node, mut result) = (null_mut(), CU_GRAPH_EXEC_UPDATE_SUCCESS);
        assert_eq!(
            code!(cuGraphExecUpdate(exec, kinds, &raw mut node, &raw mut result)),
            CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
        );
        assert_eq!(result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    });
}

#[test]
fn a_fault_in_a_graph_stays_with_its_context() {
    alone("a_fault_in_a_graph_stays_with_its_context", &[], || {
        start(0);
        let (graph, stream) = (graph(), stream());
        let poke = function(module(POKE), c"poke");
        let memory = upload(&[0u32]);
        let nowhere: CUdeviceptr = 0x10;
        let mut arguments = [param(&nowhere)];
        let params = kernel(poke, &mut arguments);
        let node: CUgraphNode = get!(cuGraphAddKernelNode_v2(graph, null(), 0, &raw const params));
        add_fill(graph, &[node], memory, 9, 4);
        let exec = instantiate(graph);
        cu!(cuGraphLaunch(exec, stream));
        assert_eq!(code!(cuStreamSynchronize(stream)), CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(code!(cuGraphLaunch(exec, stream)), CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn memory_freed_behind_a_graphs_back_is_an_illegal_address() {
    alone(
        "memory_freed_behind_a_graphs_back_is_an_illegal_address",
        &[],
        || {
            start(0);
            let (graph, stream) = (graph(), stream());
            let memory: CUdeviceptr = get!(cuMemAlloc_v2(4 << 20));
            add_fill(graph, &[], memory, 1, 16);
            let exec = instantiate(graph);
            run(exec, stream);
            cu!(cuMemFree_v2(memory));
            cu!(cuGraphLaunch(exec, stream));
            assert_eq!(code!(cuStreamSynchronize(stream)), CUDA_ERROR_ILLEGAL_ADDRESS);
        },
    );
}
