//! Memory of graphs: no charge while they are made or captured, and the driver's reservation once they are launched.

mod emulated;
mod support;

use std::ptr::null_mut;

use divvy_abi::*;
use emulated::{alone, code, context, cu, get, held};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn stream() -> CUstream {
    get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0))
}

/// Adds an allocation node, and a free node behind it if requested.
fn allocation(graph: CUgraph, bytes: usize, freed: bool) -> CUdeviceptr {
    let mut wanted = CUDA_MEM_ALLOC_NODE_PARAMS::default();
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.bytesize = bytes;
    let node: CUgraphNode = get!(cuGraphAddMemAllocNode(
        graph,
        std::ptr::null(),
        0,
        &raw mut wanted
    ));
    if freed {
        let _free: CUgraphNode = get!(cuGraphAddMemFreeNode(graph, &raw const node, 1, wanted.dptr));
    }
    wanted.dptr
}

#[test]
fn a_graph_is_charged_when_it_is_launched() {
    alone("a_graph_is_charged_when_it_is_launched", GIB, |slice| {
        context();
        let stream = stream();
        let graph: CUgraph = get!(cuGraphCreate(0));
        allocation(graph, 600 << 20, true);
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        assert_eq!((slice.used(), held()), (0, 0), "no memory yet");
        cu!(cuGraphLaunch(exec, stream));
        assert_eq!((slice.used(), held()), (600 * MIB, 600 * MIB));
        // Repeatedly, with the same memory, although it would not fit twice.
        for _ in 0..3 {
            cu!(cuGraphLaunch(exec, stream));
        }
        cu!(cuStreamSynchronize(stream));
        assert_eq!(
            (slice.used(), held()),
            (600 * MIB, 600 * MIB),
            "kept until it is trimmed"
        );
        // Another graph, in another stream: the first one's memory is reused.
        cu!(cuGraphExecDestroy(exec));
        let second: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        let other = self::stream();
        cu!(cuGraphLaunch(second, other));
        cu!(cuStreamSynchronize(other));
        assert!(slice.used() <= GIB);
        assert_eq!(slice.used(), held());
        cu!(cuGraphExecDestroy(second));
        cu!(cuDeviceGraphMemTrim(0));
        assert_eq!((slice.used(), held()), (0, 0));
        // If kept memory stands in the way, trimming frees it.
        let third: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        cu!(cuGraphUpload(third, stream));
        cu!(cuStreamSynchronize(stream));
        assert_eq!((slice.used(), held()), (600 * MIB, 600 * MIB));
        let direct: CUdeviceptr = get!(cuMemAlloc_v2(800 << 20));
        assert_eq!((slice.used(), held()), (800 * MIB, 800 * MIB));
        assert_eq!(code!(cuGraphLaunch(third, stream)), CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!((slice.used(), held()), (800 * MIB, 800 * MIB));
        cu!(cuMemFree_v2(direct));
        cu!(cuGraphLaunch(third, stream));
        cu!(cuStreamSynchronize(stream));
        cu!(cuGraphExecDestroy(third));
        cu!(cuGraphDestroy(graph));
        cu!(cuDeviceGraphMemTrim(0));
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

#[test]
fn a_graph_that_cannot_fit_is_refused_before_the_driver_sees_it() {
    alone(
        "a_graph_that_cannot_fit_is_refused_before_the_driver_sees_it",
        GIB,
        |slice| {
            context();
            let stream = stream();
            for freed in [true, false] {
                let graph: CUgraph = get!(cuGraphCreate(0));
                allocation(graph, 700 << 20, freed);
                allocation(graph, 700 << 20, freed);
                let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
                assert_eq!(code!(cuGraphLaunch(exec, stream)), CUDA_ERROR_OUT_OF_MEMORY);
                assert_eq!(code!(cuGraphUpload(exec, stream)), CUDA_ERROR_OUT_OF_MEMORY);
                let mut uploaded = CUDA_GRAPH_INSTANTIATE_PARAMS {
                    flags: CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0.into(),
                    hUploadStream: stream,
                    ..Default::default()
                };
                let mut second = null_mut();
                assert_eq!(
                    code!(cuGraphInstantiateWithParams(
                        &raw mut second,
                        graph,
                        &raw mut uploaded
                    )),
                    CUDA_ERROR_OUT_OF_MEMORY
                );
                assert_eq!((slice.used(), held()), (0, 0));
                cu!(cuGraphExecDestroy(exec));
                cu!(cuGraphDestroy(graph));
            }
        },
    );
}

#[test]
fn what_outlives_a_launch_is_charged_until_it_is_freed_and_trimmed() {
    alone(
        "what_outlives_a_launch_is_charged_until_it_is_freed_and_trimmed",
        GIB,
        |slice| {
            context();
            let stream = stream();
            let graph: CUgraph = get!(cuGraphCreate(0));
            let pointer = allocation(graph, 300 << 20, false);
            let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
            cu!(cuGraphLaunch(exec, stream));
            cu!(cuStreamSynchronize(stream));
            assert_eq!((slice.used(), held()), (300 * MIB, 300 * MIB));
            cu!(cuDeviceGraphMemTrim(0));
            assert_eq!((slice.used(), held()), (300 * MIB, 300 * MIB), "it is in use");
            cu!(cuMemFreeAsync(pointer, stream));
            cu!(cuStreamSynchronize(stream));
            cu!(cuDeviceGraphMemTrim(0));
            assert_eq!((slice.used(), held()), (0, 0));
            cu!(cuGraphExecDestroy(exec));
            cu!(cuGraphDestroy(graph));
        },
    );
}

#[test]
fn a_capture_allocates_nothing_and_is_not_disturbed() {
    alone("a_capture_allocates_nothing_and_is_not_disturbed", GIB, |slice| {
        let context = context() as usize;
        let (captured, other) = (stream(), stream());
        cu!(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
        // More than the slice has, and nothing is taken.
        let pointer: CUdeviceptr = get!(cuMemAllocAsync(400 << 20, captured));
        assert_eq!((slice.used(), held()), (0, 0));
        // Another thread continues meanwhile, in the only mode that allows it.
        std::thread::spawn(move || {
            cu!(cuCtxSetCurrent(context as CUcontext));
            let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
            cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
            let other_thread = stream();
            for _ in 0..20 {
                let pointer: CUdeviceptr = get!(cuMemAllocAsync(64 << 20, other_thread));
                cu!(cuMemFreeAsync(pointer, other_thread));
            }
            cu!(cuStreamSynchronize(other_thread));
            let mut now = CU_STREAM_CAPTURE_MODE_GLOBAL;
            cu!(cuThreadExchangeStreamCaptureMode(&raw mut now));
            assert_eq!(now, CU_STREAM_CAPTURE_MODE_RELAXED, "left as it was");
        })
        .join()
        .expect("no panic");
        cu!(cuMemFreeAsync(pointer, captured));
        let mut graph: CUgraph = null_mut();
        cu!(cuStreamEndCapture(captured, &raw mut graph));
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        cu!(cuGraphLaunch(exec, other));
        cu!(cuStreamSynchronize(other));
        assert_eq!((slice.used(), held()), (400 * MIB, 400 * MIB));
        cu!(cuGraphExecDestroy(exec));
        cu!(cuGraphDestroy(graph));
        cu!(cuDeviceGraphMemTrim(0));
        assert_eq!((slice.used(), held()), (0, 0));
    });
}
