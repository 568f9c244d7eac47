//! Stream capture: what becomes a node, how streams fork and join, and what spoils a capture.

mod common;

use common::{
    POKE, VECTOR_ADD, alone, code, cu, download, function, get, launch, module, param, start, upload,
};
use divvy_abi::*;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

const GLOBAL: CUstreamCaptureMode = CU_STREAM_CAPTURE_MODE_GLOBAL;
const LOCAL: CUstreamCaptureMode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: CUstreamCaptureMode = CU_STREAM_CAPTURE_MODE_RELAXED;

fn stream(flags: CUstream_flags) -> CUstream {
    get!(cuStreamCreate(flags.0))
}

fn free() -> CUstream {
    stream(CU_STREAM_NON_BLOCKING)
}

fn event() -> CUevent {
    get!(cuEventCreate(CU_EVENT_DISABLE_TIMING.0))
}

fn status(stream: CUstream) -> CUstreamCaptureStatus {
    let mut status = CUstreamCaptureStatus(9);
    cu!(cuStreamIsCapturing(stream, &raw mut status));
    status
}

fn end(stream: CUstream) -> CUgraph {
    let mut graph = null_mut();
    cu!(cuStreamEndCapture(stream, &raw mut graph));
    graph
}

/// Ends a capture that was spoilt.
fn end_spoilt(stream: CUstream) {
    assert_eq!(status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    let mut graph = 1 as CUgraph;
    assert_eq!(
        code!(cuStreamEndCapture(stream, &raw mut graph)),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );
    assert!(graph.is_null());
    assert_eq!(status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

fn kinds(graph: CUgraph) -> Vec<CUgraphNodeType> {
    let mut count = 0;
    cu!(cuGraphGetNodes(graph, null_mut(), &raw mut count));
    let mut nodes = vec![null_mut(); count];
    cu!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count));
    let kind = |node: CUgraphNode| {
        let mut kind = CUgraphNodeType(99);
        cu!(cuGraphNodeGetType(node, &raw mut kind));
        kind
    };
    nodes.into_iter().map(kind).collect()
}

fn edges(graph: CUgraph) -> usize {
    let mut count = 0;
    cu!(cuGraphGetEdges_v2(
        graph,
        null_mut(),
        null_mut(),
        null_mut(),
        &raw mut count
    ));
    count
}

fn run(graph: CUgraph, stream: CUstream) {
    let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
    cu!(cuGraphLaunch(exec, stream));
    cu!(cuStreamSynchronize(stream));
    cu!(cuGraphExecDestroy(exec));
}

unsafe extern "C" fn tell(data: *mut c_void) {
    // SAFETY: each test passes a leaked sender.
    let _ = unsafe { &*data.cast::<Sender<()>>() }.send(());
}

#[test]
fn all_that_a_stream_takes_becomes_nodes() {
    alone("all_that_a_stream_takes_becomes_nodes", &[], || {
        start(0);
        let stream = free();
        let (poke, add) = (
            function(module(POKE), c"poke"),
            function(module(VECTOR_ADD), c"add"),
        );
        let memory = upload(&[0u32; 8]);
        let (a, b, c) = (upload(&[1f32; 32]), upload(&[2f32; 32]), upload(&[0f32; 32]));
        let pinned: *mut c_void = get!(cuMemAllocHost_v2(16));
        let (send, told) = channel::<()>();
        let send: *mut Sender<()> = Box::leak(Box::new(send));
        cu!(cuStreamBeginCapture_v2(stream, GLOBAL));
        assert_eq!(status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
        cu!(cuMemsetD32Async(memory, 5, 8, stream));
        assert_eq!(launch(poke, 1, 1, stream, &mut [param(&memory)]), CUDA_SUCCESS);
        let n = 32u32;
        let mut list = [param(&a), param(&b), param(&c), param(&n)];
        let mut attribute = CUlaunchAttribute {
            id: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            ..CUlaunchAttribute::default()
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 32,
            blockDimY: 1,
            blockDimZ: 1,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: 1,
            ..CUlaunchConfig::default()
        };
        cu!(cuLaunchKernelEx(
            &raw const config,
            add,
            list.as_mut_ptr(),
            null_mut()
        ));
        let shape = [1u32; 6];
        let [x, y, z, bx, by, bz] = shape;
        let target = memory + 4;
        cu!(cuLaunchCooperativeKernel(
            poke,
            x,
            y,
            z,
            bx,
            by,
            bz,
            0,
            stream,
            [param(&target)].as_mut_ptr()
        ));
        cu!(cuMemcpyDtoDAsync_v2(memory + 16, memory, 8, stream));
        cu!(cuMemcpyDtoHAsync_v2(pinned, memory + 16, 8, stream));
        cu!(cuMemcpyAsync(memory + 24, pinned as u64, 8, stream));
        cu!(cuMemsetD2D8Async(memory + 8, 4, 9, 1, 2, stream));
        cu!(cuMemsetD8Async(memory, 0, 0, stream)); // nothing
        cu!(cuLaunchHostFunc(stream, Some(tell), send.cast()));
        cu!(cuStreamWriteValue32_v2(stream, memory + 12, 77, 0));
        let graph = end(stream);
        assert_eq!(status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
        assert_eq!(download::<u32>(memory, 8), [0; 8], "nothing has run");
        assert!(told.try_recv().is_err());
        let expected = [
            CU_GRAPH_NODE_TYPE_MEMSET,
            CU_GRAPH_NODE_TYPE_KERNEL,
            CU_GRAPH_NODE_TYPE_KERNEL,
            CU_GRAPH_NODE_TYPE_KERNEL,
            CU_GRAPH_NODE_TYPE_MEMCPY,
            CU_GRAPH_NODE_TYPE_MEMCPY,
            CU_GRAPH_NODE_TYPE_MEMCPY,
            CU_GRAPH_NODE_TYPE_MEMSET,
            CU_GRAPH_NODE_TYPE_HOST,
            CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        ];
        assert_eq!(kinds(graph), expected);
        assert_eq!(edges(graph), expected.len() - 1);
        // The launch that may start early made an annotated edge.
        let (mut from, mut to, mut count) = ([null_mut(); 9], [null_mut(); 9], 9);
        assert_eq!(
            code!(cuGraphGetEdges(
                graph,
                from.as_mut_ptr(),
                to.as_mut_ptr(),
                &raw mut count
            )),
            CUDA_ERROR_LOSSY_QUERY
        );
        for _ in 0..2 {
            cu!(cuMemsetD8_v2(memory, 0, 32));
            run(graph, stream);
            told.recv_timeout(Duration::from_secs(30)).unwrap();
            assert_eq!(download::<u32>(memory, 8), [1, 1, 9, 77, 1, 1, 1, 1]);
            assert_eq!(download::<f32>(c, 32), [3.0; 32]);
        }
        // A launch into a captured stream becomes a child.
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        cu!(cuStreamBeginCapture_v2(stream, RELAXED));
        cu!(cuGraphLaunch(exec, stream));
        let outer = end(stream);
        assert_eq!(kinds(outer), [CU_GRAPH_NODE_TYPE_GRAPH]);
        cu!(cuMemsetD8_v2(memory, 0, 32));
        run(outer, stream);
        assert_eq!(download::<u32>(memory, 4), [1, 1, 9, 77]);
    });
}

#[test]
fn streams_fork_and_join_by_events() {
    alone("streams_fork_and_join_by_events", &[], || {
        start(0);
        let (main, side) = (free(), free());
        let (fork, join) = (event(), event());
        let memory = upload(&[0u8; 12]);
        cu!(cuStreamBeginCapture_v2(main, GLOBAL));
        cu!(cuMemsetD8Async(memory, 1, 12, main));
        cu!(cuEventRecord(fork, main));
        cu!(cuStreamWaitEvent(side, fork, 0));
        assert_eq!(status(side), CU_STREAM_CAPTURE_STATUS_ACTIVE);
        cu!(cuMemsetD8Async(memory, 2, 4, side));
        cu!(cuMemsetD8Async(memory + 4, 3, 4, main));
        // Only the stream where it began can end it.
        assert_eq!(
            code!(cuStreamEndCapture(side, &mut null_mut())),
            CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        );
        let (mut ids, mut one, mut state) = ([0u64; 2], null_mut(), CUstreamCaptureStatus(9));
        cu!(cuStreamGetCaptureInfo(main, &raw mut state, &raw mut ids[0]));
        cu!(cuStreamGetCaptureInfo_v2(
            side,
            &raw mut state,
            &raw mut ids[1],
            &raw mut one,
            null_mut(),
            null_mut()
        ));
        assert!(ids[0] == ids[1] && ids[0] != 0 && !one.is_null());
        cu!(cuEventRecord(join, side));
        cu!(cuStreamWaitEvent(main, join, 0));
        // A stream that was joined may go.
        cu!(cuStreamDestroy_v2(side));
        let (mut nodes, mut count) = (null(), 0);
        cu!(cuStreamGetCaptureInfo_v2(
            main,
            &raw mut state,
            null_mut(),
            null_mut(),
            &raw mut nodes,
            &raw mut count
        ));
        assert_eq!(count, 2, "the next node comes after both");
        cu!(cuMemcpyDtoDAsync_v2(memory + 8, memory + 2, 4, main));
        let graph = end(main);
        assert_eq!(graph, one);
        assert_eq!((kinds(graph).len(), edges(graph)), (4, 4));
        run(graph, main);
        assert_eq!(download::<u8>(memory, 12), [2, 2, 2, 2, 3, 3, 3, 3, 2, 2, 3, 3]);
        // A captured event marks no work that runs.
        assert_eq!(code!(cuEventQuery(fork)), CUDA_ERROR_CAPTURED_EVENT);
        assert_eq!(code!(cuEventSynchronize(fork)), CUDA_ERROR_CAPTURED_EVENT);
        cu!(cuEventRecord(fork, main));
        cu!(cuEventSynchronize(fork));
    });
}

#[test]
fn a_fork_that_is_not_joined_fails() {
    alone("a_fork_that_is_not_joined_fails", &[], || {
        start(0);
        let (main, side, fork) = (free(), free(), event());
        let memory = upload(&[0u8; 4]);
        cu!(cuStreamBeginCapture_v2(main, GLOBAL));
        cu!(cuEventRecord(fork, main));
        cu!(cuStreamWaitEvent(side, fork, 0));
        cu!(cuMemsetD8Async(memory, 2, 4, side));
        let mut graph = 1 as CUgraph;
        assert_eq!(
            code!(cuStreamEndCapture(main, &raw mut graph)),
            CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        );
        assert!(graph.is_null());
        assert_eq!(
            (status(main), status(side)),
            (CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_NONE)
        );
        // A fork that did nothing needs no join.
        cu!(cuStreamBeginCapture_v2(main, GLOBAL));
        cu!(cuMemsetD8Async(memory, 1, 4, main));
        cu!(cuEventRecord(fork, main));
        cu!(cuStreamWaitEvent(side, fork, 0));
        cu!(cuGraphDestroy(end(main)));
    });
}

#[test]
fn what_a_capture_would_not_see_spoils_it() {
    alone("what_a_capture_would_not_see_spoils_it", &[], || {
        start(0);
        let stream = free();
        let (memory, mark) = (upload(&[0u8; 4]), event());
        cu!(cuEventRecord(mark, stream));
        let refused = |attempt: &dyn Fn() -> CUresult, expected: CUresult| {
            cu!(cuStreamBeginCapture_v2(stream, GLOBAL));
            assert_eq!(attempt(), expected);
            // From here on everything in the stream fails.
            assert_eq!(
                code!(cuMemsetD8Async(memory, 1, 1, stream)),
                CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            );
            end_spoilt(stream);
        };
        let unsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        refused(&|| code!(cuMemAlloc_v2(&mut 0, 64)), unsupported);
        refused(&|| code!(cuMemFree_v2(memory)), unsupported);
        refused(&|| code!(cuMemAllocHost_v2(&mut null_mut(), 64)), unsupported);
        refused(
            &|| code!(cuMemAllocManaged(&mut 0, 64, CU_MEM_ATTACH_GLOBAL.0)),
            unsupported,
        );
        refused(&|| code!(cuStreamSynchronize(stream)), unsupported);
        refused(&|| code!(cuStreamQuery(stream)), unsupported);
        refused(&|| code!(cuCtxSynchronize()), unsupported);
        refused(&|| code!(cuEventQuery(mark)), unsupported);
        refused(&|| code!(cuEventSynchronize(mark)), unsupported);
        refused(
            &|| code!(cuMemcpyDtoH_v2([0u8; 4].as_mut_ptr().cast(), memory, 4)),
            unsupported,
        );
        refused(
            &|| code!(cuStreamWaitEvent(stream, mark, 0)),
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        );
        let captured = event();
        let query = || {
            cu!(cuEventRecord(captured, stream));
            code!(cuEventQuery(captured))
        };
        refused(&query, CUDA_ERROR_CAPTURED_EVENT);
        cu!(cuStreamBeginCapture_v2(stream, GLOBAL));
        assert_eq!(
            code!(cuStreamBeginCapture_v2(stream, GLOBAL)),
            CUDA_ERROR_ILLEGAL_STATE
        );
        assert_eq!(status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
        cu!(cuGraphDestroy(end(stream)));
        // Nothing of all this was done.
        assert_eq!(download::<u8>(memory, 4), [0; 4]);
        assert_eq!(
            code!(cuStreamEndCapture(stream, &mut null_mut())),
            CUDA_ERROR_ILLEGAL_STATE
        );
        assert_eq!(
            code!(cuStreamBeginCapture_v2(stream, CUstreamCaptureMode(7))),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn the_legacy_stream_is_out_of_use_while_a_blocking_stream_is_captured() {
    alone(
        "the_legacy_stream_is_out_of_use_while_a_blocking_stream_is_captured",
        &[],
        || {
            start(0);
            let (blocking, other) = (stream(CU_STREAM_DEFAULT), free());
            let memory = upload(&[0u8; 4]);
            assert_eq!(
                code!(cuStreamBeginCapture_v2(null_mut(), GLOBAL)),
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            );
            cu!(cuStreamBeginCapture_v2(blocking, RELAXED));
            // Asking is harmless.
            assert_eq!(
                code!(cuStreamIsCapturing(null_mut(), &mut CUstreamCaptureStatus(9))),
                CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            );
            assert_eq!(status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
            cu!(cuMemsetD8Async(memory, 1, 1, other));
            cu!(cuStreamSynchronize(other));
            assert_eq!(
                code!(cuMemsetD8Async(memory, 1, 1, null_mut())),
                CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            );
            end_spoilt(blocking);
            cu!(cuMemsetD8Async(memory, 1, 1, null_mut()));
            // A thread's own stream can be captured, and is a blocking stream.
            cu!(cuStreamBeginCapture_v2_ptsz(null_mut(), RELAXED));
            cu!(cuMemsetD8Async_ptsz(memory, 3, 4, null_mut()));
            assert_eq!(
                code!(cuStreamSynchronize(null_mut())),
                CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            );
            end_spoilt(CU_STREAM_PER_THREAD);
        },
    );
}

#[test]
fn modes_say_which_threads_a_capture_minds() {
    alone("modes_say_which_threads_a_capture_minds", &[], || {
        let context = start(0) as usize;
        let stream = free();
        let allocate = || code!(cuMemAlloc_v2(&mut 0, 64));
        let elsewhere = |mode: CUstreamCaptureMode| {
            let work = move || {
                cu!(cuCtxSetCurrent(context as CUcontext));
                let mut old = mode;
                cu!(cuThreadExchangeStreamCaptureMode(&raw mut old));
                assert_eq!(old, GLOBAL, "a thread's first mode");
                code!(cuMemAlloc_v2(&mut 0, 64))
            };
            std::thread::spawn(work).join().unwrap()
        };
        cu!(cuStreamBeginCapture_v2(stream, GLOBAL));
        assert_eq!(
            (elsewhere(RELAXED), elsewhere(LOCAL)),
            (CUDA_SUCCESS, CUDA_SUCCESS)
        );
        assert_eq!(elsewhere(GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        end_spoilt(stream);
        cu!(cuStreamBeginCapture_v2(stream, LOCAL));
        assert_eq!(elsewhere(GLOBAL), CUDA_SUCCESS);
        let mut mode = RELAXED;
        cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!(allocate(), CUDA_SUCCESS);
        cu!(cuThreadExchangeStreamCaptureMode(&raw mut mode));
        assert_eq!(allocate(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        end_spoilt(stream);
        cu!(cuStreamBeginCapture_v2(stream, RELAXED));
        assert_eq!((allocate(), elsewhere(GLOBAL)), (CUDA_SUCCESS, CUDA_SUCCESS));
        // A relaxed capture may be ended by another thread, others may not.
        let raw = stream as usize;
        let end_elsewhere = move || code!(cuStreamEndCapture(raw as CUstream, &mut null_mut()));
        assert_eq!(std::thread::spawn(end_elsewhere).join().unwrap(), CUDA_SUCCESS);
        cu!(cuStreamBeginCapture_v2(stream, LOCAL));
        let ended = std::thread::spawn(end_elsewhere).join().unwrap();
        assert_eq!(ended, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        cu!(cuGraphDestroy(end(stream)));
    });
}

#[test]
fn captures_do_not_merge() {
    alone("captures_do_not_merge", &[], || {
        start(0);
        let (one, two, mark) = (free(), free(), event());
        let memory = upload(&[0u8; 4]);
        cu!(cuStreamBeginCapture_v2(one, RELAXED));
        cu!(cuStreamBeginCapture_v2(two, RELAXED));
        cu!(cuMemsetD8Async(memory, 1, 1, one));
        cu!(cuEventRecord(mark, one));
        assert_eq!(
            code!(cuStreamWaitEvent(two, mark, 0)),
            CUDA_ERROR_STREAM_CAPTURE_MERGE
        );
        end_spoilt(one);
        end_spoilt(two);
        // The capture of that event is over: nothing can wait for it any more.
        assert_eq!(
            code!(cuStreamWaitEvent(two, mark, 0)),
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        );
    });
}

#[test]
fn external_events_become_nodes() {
    alone("external_events_become_nodes", &[], || {
        start(0);
        let (stream, mark) = (free(), event());
        let (record, wait) = (CU_EVENT_RECORD_EXTERNAL.0, CU_EVENT_WAIT_EXTERNAL.0);
        assert_eq!(
            code!(cuEventRecordWithFlags(mark, stream, record)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuStreamWaitEvent(stream, mark, wait)),
            CUDA_ERROR_INVALID_VALUE
        );
        cu!(cuStreamBeginCapture_v2(stream, GLOBAL));
        cu!(cuStreamWaitEvent(stream, mark, wait));
        cu!(cuEventRecordWithFlags(mark, stream, record));
        let graph = end(stream);
        assert_eq!(
            kinds(graph),
            [CU_GRAPH_NODE_TYPE_WAIT_EVENT, CU_GRAPH_NODE_TYPE_EVENT_RECORD]
        );
        run(graph, stream);
        cu!(cuEventSynchronize(mark));
    });
}

#[test]
fn the_next_nodes_place_can_be_moved() {
    alone("the_next_nodes_place_can_be_moved", &[], || {
        start(0);
        let stream = free();
        let memory = upload(&[0u8; 4]);
        assert_eq!(
            code!(cuStreamUpdateCaptureDependencies(stream, null_mut(), 0, 1)),
            CUDA_ERROR_ILLEGAL_STATE
        );
        let graph: CUgraph = get!(cuGraphCreate(0));
        let root: CUgraphNode = get!(cuGraphAddEmptyNode(graph, null(), 0));
        cu!(cuStreamBeginCaptureToGraph(
            stream,
            graph,
            &raw const root,
            null(),
            1,
            GLOBAL
        ));
        assert_eq!(
            code!(cuGraphInstantiateWithFlags(&mut null_mut(), graph, 0)),
            CUDA_ERROR_ILLEGAL_STATE,
            "not while it grows"
        );
        cu!(cuMemsetD8Async(memory, 1, 2, stream));
        // The program adds a node of its own and goes on behind that.
        let mut own: CUgraphNode = get!(cuGraphAddEmptyNode(graph, &raw const root, 1));
        cu!(cuStreamUpdateCaptureDependencies(
            stream,
            &raw mut own,
            1,
            CU_STREAM_SET_CAPTURE_DEPENDENCIES.0
        ));
        cu!(cuMemsetD8Async(memory + 2, 2, 2, stream));
        assert_eq!(end(stream), graph, "what was left behind needs no join");
        assert_eq!((kinds(graph).len(), edges(graph)), (4, 3));
        run(graph, stream);
        assert_eq!(download::<u8>(memory, 4), [1, 1, 2, 2]);
    });
}

#[test]
fn streams_and_contexts_may_go_while_captured() {
    alone("streams_and_contexts_may_go_while_captured", &[], || {
        start(0);
        let memory = upload(&[0u8; 4]);
        let stream = free();
        cu!(cuStreamBeginCapture_v2(stream, GLOBAL));
        cu!(cuMemsetD8Async(memory, 1, 2, stream));
        cu!(cuStreamDestroy_v2(stream));
        let _: CUdeviceptr = get!(cuMemAlloc_v2(64));
        let mut context = null_mut();
        cu!(cuCtxCreate_v2(&raw mut context, 0, 0));
        let stream = free();
        cu!(cuStreamBeginCapture_v2(stream, GLOBAL));
        cu!(cuCtxDestroy_v2(context));
        let _: CUdeviceptr = get!(cuMemAlloc_v2(64));
    });
}

#[test]
fn copies_to_and_from_arrays_become_nodes() {
    alone("copies_to_and_from_arrays_become_nodes", &[], || {
        start(0);
        let stream = free();
        // Rows of 8 bytes; the run starts and ends inside a row.
        let descriptor = CUDA_ARRAY_DESCRIPTOR {
            Width: 8,
            Height: 4,
            Format: CU_AD_FORMAT_UNSIGNED_INT8,
            NumChannels: 1,
        };
        let array: CUarray = get!(cuArrayCreate_v2(&raw const descriptor));
        let (source, mut back): (Vec<u8>, _) = ((1..=21).collect(), vec![0u8; 21]);
        let mut graph = null_mut();
        cu!(cuStreamBeginCapture_v2(stream, GLOBAL));
        cu!(cuMemcpyHtoAAsync_v2(array, 5, source.as_ptr().cast(), 21, stream));
        cu!(cuMemcpyAtoHAsync_v2(
            back.as_mut_ptr().cast(),
            array,
            5,
            21,
            stream
        ));
        cu!(cuStreamEndCapture(stream, &raw mut graph));
        assert_eq!(kinds(graph), [CU_GRAPH_NODE_TYPE_MEMCPY; 6]);
        run(graph, stream);
        assert_eq!(back, source);
        let mut whole = vec![0u8; 32];
        cu!(cuMemcpyAtoH_v2(whole.as_mut_ptr().cast(), array, 0, 32));
        assert_eq!(whole[5..26], source);
        assert_eq!(
            code!(cuMemcpyHtoAAsync_v2(
                array,
                30,
                source.as_ptr().cast(),
                21,
                stream
            )),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}
