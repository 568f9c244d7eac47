//! Memory that graphs allocate: addresses, bytes, which graph frees it, and what the device is charged.

mod common;

use common::{alone, code, cu, download, get, memory_info, start};
use divvy_abi::*;
use std::ptr::{null, null_mut};

const PAGE: u64 = 2 << 20;

fn stream() -> CUstream {
    get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0))
}

fn figure(attribute: CUgraphMem_attribute) -> u64 {
    let mut value = 0u64;
    cu!(cuDeviceGetGraphMemAttribute(
        0,
        attribute,
        (&raw mut value).cast()
    ));
    value
}

fn used() -> u64 {
    figure(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
}

fn reserved() -> u64 {
    figure(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
}

fn on_device(bytes: usize) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation {
                type_: CU_MEM_LOCATION_TYPE_DEVICE,
                ..CUmemLocation::default()
            },
            ..CUmemPoolProps::default()
        },
        bytesize: bytes,
        ..CUDA_MEM_ALLOC_NODE_PARAMS::default()
    }
}

fn add_alloc(graph: CUgraph, after: &[CUgraphNode], bytes: usize) -> (CUgraphNode, CUdeviceptr) {
    let mut params = on_device(bytes);
    let node = get!(cuGraphAddMemAllocNode(
        graph,
        after.as_ptr(),
        after.len(),
        &raw mut params
    ));
    (node, params.dptr)
}

fn add_free(graph: CUgraph, after: &[CUgraphNode], pointer: CUdeviceptr) -> CUgraphNode {
    get!(cuGraphAddMemFreeNode(graph, after.as_ptr(), after.len(), pointer))
}

fn add_fill(
    graph: CUgraph,
    after: &[CUgraphNode],
    pointer: CUdeviceptr,
    value: u8,
    bytes: usize,
) -> CUgraphNode {
    let params = CUDA_MEMSET_NODE_PARAMS {
        dst: pointer,
        value: u32::from(value),
        elementSize: 1,
        width: bytes,
        height: 1,
        ..CUDA_MEMSET_NODE_PARAMS::default()
    };
    get!(cuGraphAddMemsetNode(
        graph,
        after.as_ptr(),
        after.len(),
        &raw const params,
        null_mut()
    ))
}

fn launch(exec: CUgraphExec, stream: CUstream) {
    cu!(cuGraphLaunch(exec, stream));
    cu!(cuStreamSynchronize(stream));
}

#[test]
fn bytes_come_with_the_launch_and_stay_reserved_until_trimmed() {
    alone(
        "bytes_come_with_the_launch_and_stay_reserved_until_trimmed",
        &[],
        || {
            start(0);
            let (graph, stream): (CUgraph, CUstream) = (get!(cuGraphCreate(0)), stream());
            let (free, _) = memory_info();
            let bytes = 3 * PAGE as usize;
            let (alloc, pointer) = add_alloc(graph, &[], bytes);
            let filled = add_fill(graph, &[alloc], pointer, 7, bytes);
            let _ = add_free(graph, &[filled], pointer);
            let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
            assert_eq!((used(), reserved(), memory_info().0), (0, 0, free));
            assert_eq!(
                code!(cuMemcpyDtoH_v2([0u8; 1].as_mut_ptr().cast(), pointer, 1)),
                CUDA_ERROR_INVALID_VALUE
            );
            for _ in 0..3 {
                launch(exec, stream);
                assert_eq!((used(), reserved()), (3 * PAGE, 3 * PAGE));
                assert_eq!(memory_info().0, free - bytes);
            }
            assert_eq!(
                code!(cuMemFree_v2(pointer)),
                CUDA_ERROR_INVALID_VALUE,
                "the graph frees it"
            );
            // Uploading elsewhere moves it there, and a trim gives it back: the next launch takes it again.
            cu!(cuGraphUpload(exec, null_mut()));
            assert_eq!(reserved(), 3 * PAGE);
            cu!(cuCtxSynchronize());
            cu!(cuDeviceGraphMemTrim(0));
            assert_eq!((used(), reserved(), memory_info().0), (0, 0, free));
            launch(exec, stream);
            assert_eq!(reserved(), 3 * PAGE);
            cu!(cuGraphExecDestroy(exec));
            assert_eq!((used(), reserved()), (0, 3 * PAGE), "kept for other graphs");
            let high = figure(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH);
            assert_eq!(high, 3 * PAGE);
            let mut zero = 0u64;
            cu!(cuDeviceSetGraphMemAttribute(
                0,
                CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
                (&raw mut zero).cast()
            ));
            assert_eq!(figure(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 0);
            zero = 1;
            for attribute in [
                CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
                CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
            ] {
                let refused = code!(cuDeviceSetGraphMemAttribute(0, attribute, (&raw mut zero).cast()));
                assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
            }
            cu!(cuDeviceGraphMemTrim(0));
            assert_eq!((reserved(), memory_info().0), (0, free));
            assert_eq!(code!(cuDeviceGraphMemTrim(9)), CUDA_ERROR_INVALID_DEVICE);
        },
    );
}

#[test]
fn graphs_of_one_stream_share_and_those_of_two_do_not() {
    alone("graphs_of_one_stream_share_and_those_of_two_do_not", &[], || {
        start(0);
        let (one, two) = (stream(), stream());
        let make = |bytes: usize| {
            let graph: CUgraph = get!(cuGraphCreate(0));
            let (alloc, pointer) = add_alloc(graph, &[], bytes);
            add_free(graph, &[alloc], pointer);
            let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
            exec
        };
        let (small, large) = (make(PAGE as usize), make(4 * PAGE as usize));
        launch(small, one);
        launch(large, one);
        assert_eq!(reserved(), 4 * PAGE);
        launch(small, two);
        assert_eq!(reserved(), 5 * PAGE);
        launch(small, one);
        assert_eq!((used(), reserved()), (4 * PAGE, 5 * PAGE));
        // Within one graph, an allocation takes over what was freed before it.
        let graph: CUgraph = get!(cuGraphCreate(0));
        let mut after = Vec::new();
        for _ in 0..5 {
            let (alloc, pointer) = add_alloc(graph, &after, 2 * PAGE as usize);
            after = vec![add_free(graph, &[alloc], pointer)];
        }
        cu!(cuCtxSynchronize());
        cu!(cuDeviceGraphMemTrim(0));
        launch(get!(cuGraphInstantiateWithFlags(graph, 0)), one);
        assert_eq!(reserved(), 2 * PAGE);
    });
}

#[test]
fn what_a_graph_leaves_is_freed_by_another() {
    alone("what_a_graph_leaves_is_freed_by_another", &[], || {
        start(0);
        let stream = stream();
        let graph: CUgraph = get!(cuGraphCreate(0));
        let (alloc, pointer) = add_alloc(graph, &[], 100);
        add_fill(graph, &[alloc], pointer, 7, 100);
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        assert_eq!(
            code!(cuMemFree_v2(pointer)),
            CUDA_ERROR_INVALID_VALUE,
            "not launched yet"
        );
        cu!(cuGraphLaunch(exec, stream));
        // Its address serves calls at once, before the launch is over.
        let mut seen = [0u8; 100];
        cu!(cuMemcpyDtoHAsync_v2(
            seen.as_mut_ptr().cast(),
            pointer,
            100,
            stream
        ));
        cu!(cuStreamSynchronize(stream));
        assert_eq!(seen, [7; 100]);
        assert_eq!(
            code!(cuGraphLaunch(exec, stream)),
            CUDA_ERROR_INVALID_VALUE,
            "not freed yet"
        );
        assert_eq!((used(), reserved()), (PAGE, PAGE));
        cu!(cuMemFreeAsync(pointer, stream));
        assert_eq!(
            code!(cuMemFreeAsync(pointer, stream)),
            CUDA_ERROR_INVALID_VALUE,
            "twice"
        );
        cu!(cuGraphLaunch(exec, stream));
        cu!(cuStreamSynchronize(stream));
        cu!(cuMemFree_v2(pointer));
        assert_eq!((used(), reserved()), (0, PAGE));
        assert_eq!(
            code!(cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), pointer, 1)),
            CUDA_ERROR_INVALID_VALUE
        );
        // Another graph frees it.
        let other: CUgraph = get!(cuGraphCreate(0));
        add_free(other, &[], pointer);
        let freeing: CUgraphExec = get!(cuGraphInstantiateWithFlags(other, 0));
        assert_eq!(
            code!(cuGraphLaunch(freeing, stream)),
            CUDA_ERROR_INVALID_VALUE,
            "nothing to free"
        );
        launch(exec, stream);
        launch(freeing, stream);
        launch(exec, stream);
        // The graph and what was made of it may go: the memory stays until it is freed.
        cu!(cuGraphExecDestroy(exec));
        cu!(cuGraphExecDestroy(freeing));
        cu!(cuGraphDestroy(graph));
        cu!(cuGraphDestroy(other));
        assert_eq!(download::<u8>(pointer, 100), [7; 100]);
        cu!(cuDeviceGraphMemTrim(0));
        assert_eq!(download::<u8>(pointer, 100), [7; 100]);
        cu!(cuMemFree_v2(pointer));
        cu!(cuDeviceGraphMemTrim(0));
        assert_eq!(reserved(), 0);
    });
}

#[test]
fn a_graph_can_free_at_each_launch_what_it_left_at_the_last() {
    alone(
        "a_graph_can_free_at_each_launch_what_it_left_at_the_last",
        &[],
        || {
            start(0);
            let stream = stream();
            let graph: CUgraph = get!(cuGraphCreate(0));
            let (alloc, pointer) = add_alloc(graph, &[], 100);
            add_fill(graph, &[alloc], pointer, 7, 100);
            let flag = u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0);
            let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, flag));
            let mut flags = 0;
            cu!(cuGraphExecGetFlags(exec, &raw mut flags));
            assert_eq!(flags, flag);
            for _ in 0..100 {
                cu!(cuGraphLaunch(exec, stream));
            }
            cu!(cuStreamSynchronize(stream));
            assert_eq!(download::<u8>(pointer, 100), [7; 100]);
            assert_eq!((used(), reserved()), (PAGE, PAGE));
            cu!(cuMemFree_v2(pointer));
            assert_eq!(used(), 0);
        },
    );
}

#[test]
fn captured_allocations_become_nodes() {
    alone("captured_allocations_become_nodes", &[], || {
        start(0);
        let (stream, mut pointer, mut kept) = (stream(), 0, 0);
        let ordinary: CUdeviceptr = get!(cuMemAlloc_v2(64));
        cu!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        cu!(cuMemAllocAsync(&raw mut pointer, 1000, stream));
        cu!(cuMemAllocAsync(&raw mut kept, 1000, stream));
        cu!(cuMemsetD8Async(pointer, 9, 1000, stream));
        cu!(cuMemcpyDtoDAsync_v2(kept, pointer, 1000, stream));
        cu!(cuMemFreeAsync(pointer, stream));
        assert_eq!(
            code!(cuMemFreeAsync(pointer, stream)),
            CUDA_ERROR_INVALID_VALUE,
            "freed already"
        );
        assert_eq!(
            code!(cuMemFreeAsync(ordinary, stream)),
            CUDA_ERROR_INVALID_VALUE,
            "not a graph's"
        );
        let mut graph = null_mut();
        cu!(cuStreamEndCapture(stream, &raw mut graph));
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        launch(exec, stream);
        assert_eq!(download::<u8>(kept, 1000), [9; 1000]);
        let mut kind = CUmemorytype(0);
        cu!(cuPointerGetAttribute(
            (&raw mut kind).cast(),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            kept
        ));
        assert_eq!(kind, CU_MEMORYTYPE_DEVICE);
        cu!(cuMemFreeAsync(kept, stream));
        launch(exec, stream);
        cu!(cuMemFreeAsync(kept, stream));
        cu!(cuStreamSynchronize(stream));
        assert_eq!(code!(cuMemFreeAsync(kept, stream)), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn graphs_with_memory_are_not_copied_taken_apart_or_instantiated_twice() {
    alone(
        "graphs_with_memory_are_not_copied_taken_apart_or_instantiated_twice",
        &[],
        || {
            start(0);
            let (graph, parent): (CUgraph, CUgraph) = (get!(cuGraphCreate(0)), get!(cuGraphCreate(0)));
            let (alloc, pointer) = add_alloc(graph, &[], 100);
            let free = add_free(graph, &[alloc], pointer);
            let mut made = null_mut();
            for again in [pointer, pointer + 8, 0] {
                let refused = code!(cuGraphAddMemFreeNode(&raw mut made, graph, null(), 0, again));
                assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
            }
            assert_eq!(
                code!(cuGraphAddMemFreeNode(&raw mut made, parent, null(), 0, pointer)),
                CUDA_ERROR_INVALID_VALUE,
                "its own graph frees it"
            );
            assert_eq!(
                code!(cuGraphClone(&mut null_mut(), graph)),
                CUDA_ERROR_NOT_SUPPORTED
            );
            assert_eq!(
                code!(cuGraphAddChildGraphNode(&raw mut made, parent, null(), 0, graph)),
                CUDA_ERROR_NOT_SUPPORTED
            );
            assert_eq!(code!(cuGraphDestroyNode(free)), CUDA_ERROR_INVALID_VALUE);
            assert_eq!(
                code!(cuGraphRemoveDependencies(
                    graph,
                    &raw const alloc,
                    &raw const free,
                    1
                )),
                CUDA_ERROR_INVALID_VALUE
            );
            let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
            assert_eq!(
                code!(cuGraphInstantiateWithFlags(&mut null_mut(), graph, 0)),
                CUDA_ERROR_INVALID_VALUE
            );
            cu!(cuGraphExecDestroy(exec));
            let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
            launch(exec, stream());
            cu!(cuGraphExecDestroy(exec));
            // The node's parameters can be read, and not changed.
            let mut back = CUDA_MEM_ALLOC_NODE_PARAMS::default();
            cu!(cuGraphMemAllocNodeGetParams(alloc, &raw mut back));
            assert_eq!((back.dptr, back.bytesize), (pointer, 100));
            let mut found = 0;
            cu!(cuGraphMemFreeNodeGetParams(free, &raw mut found));
            assert_eq!(found, pointer);
            // Moved into a parent, it may keep its memory.
            let mut params = CUgraphNodeParams {
                type_: CU_GRAPH_NODE_TYPE_GRAPH,
                ..CUgraphNodeParams::default()
            };
            params.anonymous1.graph = CUDA_CHILD_GRAPH_NODE_PARAMS {
                graph,
                ownership: CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE,
            };
            cu!(cuGraphAddNode(&raw mut made, parent, null(), 0, &raw mut params));
            launch(get!(cuGraphInstantiateWithFlags(parent, 0)), stream());
            assert_eq!(
                code!(cuGraphDestroy(graph)),
                CUDA_ERROR_INVALID_VALUE,
                "the node's now"
            );
            cu!(cuGraphDestroy(parent));
            for wrong in [
                on_device(0),
                CUDA_MEM_ALLOC_NODE_PARAMS {
                    bytesize: 8,
                    ..on_device(0)
                },
            ] {
                let mut wrong = wrong;
                if wrong.bytesize != 0 {
                    wrong.poolProps.allocType = CUmemAllocationType(0);
                }
                let graph: CUgraph = get!(cuGraphCreate(0));
                let refused = code!(cuGraphAddMemAllocNode(
                    &raw mut made,
                    graph,
                    null(),
                    0,
                    &raw mut wrong
                ));
                assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
            }
        },
    );
}

#[test]
fn a_launch_that_does_not_fit_takes_nothing() {
    alone("a_launch_that_does_not_fit_takes_nothing", &[], || {
        start(0);
        let stream = stream();
        let (free, total) = memory_info();
        let graph: CUgraph = get!(cuGraphCreate(0));
        let half = total / 2;
        let (first, _) = add_alloc(graph, &[], half);
        let (_, _) = add_alloc(graph, &[first], half);
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        let hog: CUdeviceptr = get!(cuMemAlloc_v2(64 << 20));
        assert_eq!(code!(cuGraphLaunch(exec, stream)), CUDA_ERROR_OUT_OF_MEMORY);
        cu!(cuStreamSynchronize(stream));
        cu!(cuDeviceGraphMemTrim(0));
        assert_eq!((used(), reserved()), (0, 0));
        cu!(cuMemFree_v2(hog));
        assert_eq!(memory_info().0, free);
        let mut huge = on_device(total + 1);
        assert_eq!(
            code!(cuGraphAddMemAllocNode(
                &mut null_mut(),
                graph,
                null(),
                0,
                &raw mut huge
            )),
            CUDA_ERROR_OUT_OF_MEMORY
        );
    });
}
