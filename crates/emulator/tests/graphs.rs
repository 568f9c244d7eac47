//! Graphs built node by node: nodes and edges, what they do when launched, and what is refused.

mod common;

use common::graph::*;
use common::{POKE, VECTOR_ADD, alone, code, cu, download, function, get, module, param, start, upload};
use divvy_abi::*;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

#[test]
fn nodes_run_after_those_they_depend_on() {
    alone("nodes_run_after_those_they_depend_on", &[], || {
        start(0);
        let (graph, stream) = (graph(), stream());
        let memory = upload(&[0u8; 64]);
        let first = add_fill(graph, &[], memory, 1, 64);
        let (left, right) = (
            add_fill(graph, &[first], memory, 2, 16),
            add_fill(graph, &[first], memory + 16, 3, 16),
        );
        add_copy(graph, &[left, right], memory + 32, memory, 32);
        let exec = instantiate(graph);
        for _ in 0..3 {
            cu!(cuMemsetD8Async(memory, 0, 64, stream));
            run(exec, stream);
            let expected = [[2u8; 16], [3; 16], [2; 16], [3; 16]].concat();
            assert_eq!(download::<u8>(memory, 64), expected);
        }
        // The graph may go, what was made of it stays.
        cu!(cuGraphDestroy(graph));
        cu!(cuMemsetD8_v2(memory, 0, 64));
        cu!(cuGraphLaunch_ptsz(exec, null_mut()));
        cu!(cuCtxSynchronize());
        assert_eq!(download::<u8>(memory + 48, 16), [3; 16]);
        cu!(cuGraphExecDestroy(exec));
        assert_eq!(code!(cuGraphExecDestroy(exec)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(code!(cuGraphLaunch(exec, stream)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(code!(cuGraphDestroy(graph)), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn kernel_parameters_are_copied_when_the_node_is_made() {
    alone("kernel_parameters_are_copied_when_the_node_is_made", &[], || {
        start(0);
        let (graph, stream) = (graph(), stream());
        let add = function(module(VECTOR_ADD), c"add");
        let (mut a, b, c) = (upload(&[1f32; 32]), upload(&[2f32; 32]), upload(&[0f32; 64]));
        let mut n = 32u32;
        let mut list = [param(&a), param(&b), param(&c), param(&n)];
        let params = kernel(add, &mut list);
        let node: CUgraphNode = get!(cuGraphAddKernelNode_v2(graph, null(), 0, &raw const params));
        let (first, mut c2) = (a, c + 128);
        (a, n) = (0, 0);
        assert_eq!((a, n), (0, 0), "the program has its variables back");
        // And the same as one packed buffer.
        let mut packed = Vec::new();
        for pointer in [first, b, c2] {
            packed.extend(pointer.to_le_bytes());
        }
        packed.extend(32u32.to_le_bytes());
        let mut size = packed.len();
        let mut extra = [
            CU_LAUNCH_PARAM_BUFFER_POINTER,
            packed.as_mut_ptr().cast(),
            CU_LAUNCH_PARAM_BUFFER_SIZE,
            (&raw mut size).cast(),
            CU_LAUNCH_PARAM_END,
        ];
        let mut with_extra = kernel(add, &mut []);
        (with_extra.kernelParams, with_extra.extra) = (null_mut(), extra.as_mut_ptr());
        let second: CUgraphNode = get!(cuGraphAddKernelNode_v2(
            graph,
            &raw const node,
            1,
            &raw const with_extra
        ));
        packed.fill(0);
        run(instantiate(graph), stream);
        assert_eq!(download::<f32>(c, 64), [3.0; 64]);

        // What was set can be read back, in the form it was set in.
        let mut back = CUDA_KERNEL_NODE_PARAMS::default();
        cu!(cuGraphKernelNodeGetParams_v2(node, &raw mut back));
        assert_eq!((back.func, back.blockDimX, back.extra), (add, 32, null_mut()));
        // SAFETY: the driver lends a list of four addresses.
        let value = unsafe { back.kernelParams.add(3).read().cast::<u32>().read() };
        assert_eq!(value, 32);
        cu!(cuGraphKernelNodeGetParams_v2(second, &raw mut back));
        assert!(back.kernelParams.is_null() && !back.extra.is_null());
        c2 += 4;
        let mut list = [param(&first), param(&b), param(&c2), param(&1u32)];
        let changed = kernel(add, &mut list);
        cu!(cuGraphKernelNodeSetParams_v2(second, &raw const changed));
        cu!(cuMemsetD8_v2(c, 0, 256));
        run(instantiate(graph), stream);
        assert_eq!(download::<f32>(c + 128, 3), [0.0, 3.0, 0.0]);

        let mut both = kernel(add, &mut list);
        both.extra = extra.as_mut_ptr();
        let mut too_many = kernel(add, &mut list);
        too_many.blockDimX = 4096;
        for wrong in [both, too_many, CUDA_KERNEL_NODE_PARAMS::default()] {
            let refused = code!(cuGraphAddKernelNode_v2(
                &mut null_mut(),
                graph,
                null(),
                0,
                &raw const wrong
            ));
            assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
        }
    });
}

#[test]
fn host_nodes_children_and_events() {
    alone("host_nodes_children_and_events", &[], || {
        start(0);
        let (child, graph, stream) = (graph(), graph(), stream());
        let memory = upload(&[0u8; 8]);
        add_fill(child, &[], memory, 7, 4);
        let (open, params) = gate();
        let host: CUgraphNode = get!(cuGraphAddHostNode(graph, null(), 0, &raw const params));
        let inner: CUgraphNode = get!(cuGraphAddChildGraphNode(graph, &raw const host, 1, child));
        // The child was copied: what happens to the original does not matter.
        cu!(cuGraphDestroy(child));
        let event: CUevent = get!(cuEventCreate(0));
        let recorded: CUgraphNode = get!(cuGraphAddEventRecordNode(graph, &raw const inner, 1, event));
        let mut found = null_mut();
        cu!(cuGraphEventRecordNodeGetEvent(recorded, &raw mut found));
        assert_eq!(found, event);
        let exec = instantiate(graph);
        cu!(cuGraphLaunch(exec, stream));
        assert_eq!(code!(cuEventQuery(event)), CUDA_ERROR_NOT_READY);
        assert_eq!(code!(cuStreamQuery(stream)), CUDA_ERROR_NOT_READY);
        // Another graph waits for the event in another stream.
        let (waiting, other) = (
            get!(cuGraphCreate(0)),
            get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0)),
        );
        let wait: CUgraphNode = get!(cuGraphAddEventWaitNode(waiting, null(), 0, event));
        add_copy(waiting, &[wait], memory + 4, memory, 4);
        cu!(cuGraphLaunch(instantiate(waiting), other));
        assert_eq!(code!(cuStreamQuery(other)), CUDA_ERROR_NOT_READY);
        drop(open);
        cu!(cuStreamSynchronize(other));
        cu!(cuEventQuery(event));
        assert_eq!(download::<u8>(memory, 8), [7; 8]);

        let mut embedded = null_mut();
        cu!(cuGraphChildGraphNodeGetGraph(inner, &raw mut embedded));
        assert_eq!(nodes(embedded).len(), 1);
        assert_eq!(code!(cuGraphDestroy(embedded)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(
            code!(cuGraphChildGraphNodeGetGraph(host, &mut null_mut())),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn edges_are_kept_listed_and_checked() {
    alone("edges_are_kept_listed_and_checked", &[], || {
        start(0);
        let (other, graph) = (graph(), graph());
        let (a, b, c) = (
            add_empty(graph, &[]),
            add_empty(graph, &[]),
            add_empty(graph, &[]),
        );
        let foreign = add_empty(other, &[]);
        cu!(cuGraphAddDependencies(graph, [a, b].as_ptr(), [b, c].as_ptr(), 2));
        for (from, to) in [(a, b), (a, a), (a, foreign), (null_mut(), a)] {
            let refused = code!(cuGraphAddDependencies(graph, &raw const from, &raw const to, 1));
            assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
        }
        // One bad edge spoils the list, and the good ones before it are not kept.
        let refused = code!(cuGraphAddDependencies(graph, [a, a].as_ptr(), [c, b].as_ptr(), 2));
        assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
        let (mut from, mut to, mut count) = ([null_mut(); 4], [null_mut(); 4], 4usize);
        cu!(cuGraphGetEdges(
            graph,
            from.as_mut_ptr(),
            to.as_mut_ptr(),
            &raw mut count
        ));
        assert_eq!(
            (count, from, to),
            (2, [a, b, null_mut(), null_mut()], [b, c, null_mut(), null_mut()])
        );
        let mut roots = [null_mut(); 1];
        let mut count = 1;
        cu!(cuGraphGetRootNodes(graph, roots.as_mut_ptr(), &raw mut count));
        assert_eq!((roots[0], count), (a, 1));
        let mut found = [null_mut(); 2];
        let mut count = 2;
        cu!(cuGraphNodeGetDependencies(c, found.as_mut_ptr(), &raw mut count));
        assert_eq!((found[0], count), (b, 1));
        let mut count = 2;
        cu!(cuGraphNodeGetDependentNodes(
            a,
            found.as_mut_ptr(),
            &raw mut count
        ));
        assert_eq!((found[0], count), (b, 1));

        // A cycle is accepted, copied, and refused at instantiation, with a node of it.
        cu!(cuGraphAddDependencies(graph, &raw const c, &raw const a, 1));
        let cyclic: CUgraph = get!(cuGraphClone(graph));
        for graph in [graph, cyclic] {
            let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS::default();
            let refused = code!(cuGraphInstantiateWithParams(
                &mut null_mut(),
                graph,
                &raw mut params
            ));
            assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
            assert_eq!(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
            assert!(nodes(graph).contains(&params.hErrNode_out));
        }
        cu!(cuGraphRemoveDependencies(graph, &raw const c, &raw const a, 1));
        assert_eq!(
            code!(cuGraphRemoveDependencies(graph, &raw const c, &raw const a, 1)),
            CUDA_ERROR_INVALID_VALUE
        );
        cu!(cuGraphDestroyNode(b));
        assert_eq!(nodes(graph), [a, c]);
        assert_eq!(
            code!(cuGraphNodeGetType(b, &mut CUgraphNodeType(0))),
            CUDA_ERROR_INVALID_VALUE
        );
        run(instantiate(graph), stream());

        // A clone knows which node was made for which.
        let clone: CUgraph = get!(cuGraphClone(graph));
        let mut copy: CUgraphNode = null_mut();
        cu!(cuGraphNodeFindInClone(&raw mut copy, a, clone));
        assert!(nodes(clone).contains(&copy));
        for (node, graph) in [(b, clone), (a, other), (foreign, clone)] {
            let refused = code!(cuGraphNodeFindInClone(&mut null_mut(), node, graph));
            assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
        }
    });
}

#[test]
fn annotated_edges_are_not_dropped_in_silence() {
    alone("annotated_edges_are_not_dropped_in_silence", &[], || {
        start(0);
        let graph = graph();
        let poke = function(module(POKE), c"poke");
        let memory = upload(&[0u32]);
        let mut arguments = [param(&memory)];
        let params = kernel(poke, &mut arguments);
        let a: CUgraphNode = get!(cuGraphAddKernelNode_v2(graph, null(), 0, &raw const params));
        let b: CUgraphNode = get!(cuGraphAddKernelNode_v2(graph, null(), 0, &raw const params));
        let programmatic = CUgraphEdgeData {
            from_port: CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
            type_: CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.0 as u8,
            ..CUgraphEdgeData::default()
        };
        cu!(cuGraphAddDependencies_v2(
            graph,
            &raw const a,
            &raw const b,
            &raw const programmatic,
            1
        ));
        let (mut from, mut to, mut data, mut count) =
            (null_mut(), null_mut(), CUgraphEdgeData::default(), 1usize);
        assert_eq!(
            code!(cuGraphGetEdges(graph, &raw mut from, &raw mut to, &raw mut count)),
            CUDA_ERROR_LOSSY_QUERY
        );
        count = 1;
        cu!(cuGraphGetEdges_v2(
            graph,
            &raw mut from,
            &raw mut to,
            &raw mut data,
            &raw mut count
        ));
        assert_eq!((from, to, data.from_port, data.type_), (a, b, 1, 1));
        let empty = add_empty(graph, &[]);
        let wrong = CUgraphEdgeData {
            to_port: 1,
            ..CUgraphEdgeData::default()
        };
        for (from, data) in [(empty, programmatic), (a, wrong)] {
            let refused = code!(cuGraphAddDependencies_v2(
                graph,
                &raw const from,
                &raw const b,
                &raw const data,
                1
            ));
            assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
        }
        run(instantiate(graph), stream());
        assert_eq!(download::<u32>(memory, 1), [1]);
    });
}

#[test]
fn generic_nodes_are_what_the_special_calls_make() {
    alone("generic_nodes_are_what_the_special_calls_make", &[], || {
        start(0);
        let (graph, stream) = (graph(), stream());
        let memory = upload(&[0u32; 4]);
        let poke = function(module(POKE), c"poke");
        let target = memory + 4;
        let mut list = [param(&target)];
        let v2 = kernel(poke, &mut list);
        let mut params = CUgraphNodeParams {
            type_: CU_GRAPH_NODE_TYPE_KERNEL,
            ..CUgraphNodeParams::default()
        };
        params.anonymous1.kernel = CUDA_KERNEL_NODE_PARAMS_v3 {
            func: v2.func,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            kernelParams: v2.kernelParams,
            ..CUDA_KERNEL_NODE_PARAMS_v3::default()
        };
        let first: CUgraphNode = get!(cuGraphAddNode_v2(graph, null(), null(), 0, &raw mut params));
        let mut params = CUgraphNodeParams {
            type_: CU_GRAPH_NODE_TYPE_MEMCPY,
            ..CUgraphNodeParams::default()
        };
        params.anonymous1.memcpy.copyParams = copy(memory, memory + 4, 4);
        let second: CUgraphNode = get!(cuGraphAddNode(graph, &raw const first, 1, &raw mut params));
        run(instantiate(graph), stream);
        assert_eq!(download::<u32>(memory, 4), [1, 1, 0, 0]);
        let mut back = CUgraphNodeParams::default();
        cu!(cuGraphNodeGetParams(second, &raw mut back));
        assert_eq!(back.type_, CU_GRAPH_NODE_TYPE_MEMCPY);
        // SAFETY: the type says so.
        assert_eq!(unsafe { back.anonymous1.memcpy.copyParams.WidthInBytes }, 4);
        let mut kind = CU_GRAPH_NODE_TYPE_EMPTY;
        cu!(cuGraphNodeGetType(first, &raw mut kind));
        assert_eq!(kind, CU_GRAPH_NODE_TYPE_KERNEL);
        for (kind, expected) in [
            (CU_GRAPH_NODE_TYPE_CONDITIONAL, CUDA_ERROR_NOT_SUPPORTED),
            (CUgraphNodeType(99), CUDA_ERROR_INVALID_VALUE),
        ] {
            let mut params = CUgraphNodeParams {
                type_: kind,
                ..CUgraphNodeParams::default()
            };
            assert_eq!(
                code!(cuGraphAddNode(&mut null_mut(), graph, null(), 0, &raw mut params)),
                expected
            );
        }
    });
}

#[test]
fn launch_attributes_travel_with_kernel_nodes() {
    alone("launch_attributes_travel_with_kernel_nodes", &[], || {
        start(0);
        let graph = graph();
        let poke = function(module(POKE), c"poke");
        let memory = upload(&[0u32]);
        let mut arguments = [param(&memory)];
        let params = kernel(poke, &mut arguments);
        let a: CUgraphNode = get!(cuGraphAddKernelNode_v2(graph, null(), 0, &raw const params));
        let b: CUgraphNode = get!(cuGraphAddKernelNode_v2(graph, null(), 0, &raw const params));
        let mut value = CUlaunchAttributeValue { priority: -2 };
        cu!(cuGraphKernelNodeSetAttribute(
            a,
            CU_LAUNCH_ATTRIBUTE_PRIORITY,
            &raw const value
        ));
        value = CUlaunchAttributeValue { cooperative: 1 };
        cu!(cuGraphKernelNodeSetAttribute(
            a,
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            &raw const value
        ));
        value = CUlaunchAttributeValue {
            programmaticStreamSerializationAllowed: 1,
        };
        let id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        cu!(cuGraphKernelNodeSetAttribute(a, id, &raw const value));
        cu!(cuGraphKernelNodeCopyAttributes(b, a));
        let mut back = CUlaunchAttributeValue::default();
        cu!(cuGraphKernelNodeGetAttribute(
            b,
            CU_LAUNCH_ATTRIBUTE_PRIORITY,
            &raw mut back
        ));
        // SAFETY: this attribute's value is this member.
        assert_eq!(unsafe { back.priority }, -2);
        cu!(cuGraphKernelNodeGetAttribute(
            b,
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            &raw mut back
        ));
        // SAFETY: as above.
        assert_eq!(unsafe { back.cooperative }, 1);
        assert_eq!(
            code!(cuGraphKernelNodeGetAttribute(
                b,
                CU_LAUNCH_ATTRIBUTE_MAX,
                &raw mut back
            )),
            CUDA_ERROR_INVALID_VALUE
        );
        run(instantiate(graph), stream());
        assert_eq!(download::<u32>(memory, 1), [1]);
    });
}

unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: the test passes a sender that lives as long as its process.
    let _ = unsafe { &*data.cast::<Sender<()>>() }.send(());
}

#[test]
fn user_objects_live_as_long_as_a_graph_needs_them() {
    alone("user_objects_live_as_long_as_a_graph_needs_them", &[], || {
        start(0);
        let (graph, (send, ended)) = (graph(), channel::<()>());
        let data: *mut Sender<()> = Box::leak(Box::new(send));
        let flag = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC.0;
        let object: CUuserObject = get!(cuUserObjectCreate(data.cast(), Some(count), 1, flag));
        cu!(cuGraphRetainUserObject(
            graph,
            object,
            1,
            CU_GRAPH_USER_OBJECT_MOVE.0
        ));
        let clone: CUgraph = get!(cuGraphClone(graph));
        cu!(cuGraphDestroy(graph));
        assert!(
            ended.recv_timeout(Duration::from_millis(50)).is_err(),
            "the clone has a reference"
        );
        cu!(cuGraphDestroy(clone));
        ended.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(code!(cuUserObjectRetain(object, 1)), CUDA_ERROR_INVALID_VALUE);
        let mut made = null_mut();
        assert_eq!(
            code!(cuUserObjectCreate(&raw mut made, data.cast(), Some(count), 1, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn bogus_arguments_are_found_out() {
    alone("bogus_arguments_are_found_out", &[], || {
        assert_eq!(
            code!(cuGraphCreate(&mut null_mut(), 0)),
            CUDA_ERROR_NOT_INITIALIZED
        );
        start(0);
        let (graph, stream) = (graph(), stream());
        let bogus = 0xdead_0000usize;
        assert_eq!(code!(cuGraphCreate(null_mut(), 0)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(code!(cuGraphCreate(&mut null_mut(), 1)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(code!(cuGraphDestroy(bogus as CUgraph)), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(
            code!(cuGraphLaunch(bogus as CUgraphExec, stream)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuGraphDestroyNode(bogus as CUgraphNode)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuGraphInstantiateWithFlags(&mut null_mut(), bogus as CUgraph, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuGraphInstantiateWithFlags(&mut null_mut(), graph, 1 << 40)),
            CUDA_ERROR_INVALID_VALUE
        );
        let node = add_empty(graph, &[]);
        let twice = [node, node];
        assert_eq!(
            code!(cuGraphAddEmptyNode(&mut null_mut(), graph, twice.as_ptr(), 2)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuGraphAddEmptyNode(&mut null_mut(), graph, null(), 1)),
            CUDA_ERROR_INVALID_VALUE
        );
        let params = fill(0x10, 1, 4);
        assert_eq!(
            code!(cuGraphAddMemsetNode(
                &mut null_mut(),
                graph,
                null(),
                0,
                &raw const params,
                null_mut()
            )),
            CUDA_ERROR_INVALID_VALUE
        );
        let memory = upload(&[0u8; 8]);
        let wide = CUDA_MEMSET_NODE_PARAMS {
            elementSize: 8,
            ..fill(memory, 1, 1)
        };
        assert_eq!(
            code!(cuGraphAddMemsetNode(
                &mut null_mut(),
                graph,
                null(),
                0,
                &raw const wide,
                null_mut()
            )),
            CUDA_ERROR_INVALID_VALUE
        );
        let (mut log, mut made, mut wrong) = ([1 as c_char; 64], null_mut(), null_mut());
        cu!(cuGraphInstantiate_v2(
            &raw mut made,
            graph,
            &raw mut wrong,
            log.as_mut_ptr(),
            64
        ));
        assert_eq!((log[0], wrong), (0, null_mut()));
        // What graphs look like can be drawn.
        let path = std::env::temp_dir().join(format!("graph-{}.dot", std::process::id()));
        let text = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        cu!(cuGraphDebugDotPrint(graph, text.as_ptr(), 1));
        let drawn = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(drawn.starts_with("digraph") && drawn.contains("EMPTY"), "{drawn}");
        let nowhere = c"/nowhere/at/all.dot";
        assert_eq!(
            code!(cuGraphDebugDotPrint(graph, nowhere.as_ptr(), 0)),
            CUDA_ERROR_OPERATING_SYSTEM
        );
    });
}
