//! Stream memory operations: waiting for words of memory and writing them.

mod common;

use common::{alone, code, cu, download, get, start, upload};
use divvy_abi::*;
use std::ptr::null_mut;

const GEQ: u32 = CU_STREAM_WAIT_VALUE_GEQ.0;
const EQ: u32 = CU_STREAM_WAIT_VALUE_EQ.0;
const AND: u32 = CU_STREAM_WAIT_VALUE_AND.0;
const NOR: u32 = CU_STREAM_WAIT_VALUE_NOR.0;

fn stream() -> CUstream {
    get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0))
}

fn is_idle(stream: CUstream) -> bool {
    code!(cuStreamQuery(stream)) == CUDA_SUCCESS
}

#[test]
fn a_stream_waits_for_another_by_words() {
    alone("a_stream_waits_for_another_by_words", &[], || {
        start(0);
        let (one, two) = (stream(), stream());
        let words = upload(&[0u32; 8]);
        cu!(cuStreamWaitValue32_v2(one, words, 5, GEQ));
        cu!(cuMemsetD32Async(words + 4, 1, 1, one));
        assert!(!is_idle(one));
        cu!(cuStreamWriteValue32_v2(two, words, 4, 0));
        cu!(cuStreamSynchronize(two));
        assert!(!is_idle(one));
        cu!(cuStreamWriteValue32_ptsz(two, words, 5, 0));
        cu!(cuStreamSynchronize(one));
        assert_eq!(download::<u32>(words, 2), [5, 1]);
        // By the host, in memory that both reach.
        let shared: *mut c_void = get!(cuMemAllocHost_v2(8));
        let shared: *mut u64 = shared.cast();
        // SAFETY: the driver gave eight bytes.
        unsafe { shared.write(0) };
        cu!(cuStreamWaitValue64(one, shared as u64, 1 << 40, EQ));
        assert!(!is_idle(one));
        // SAFETY: as above; the device reads the word as one.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(shared) }
            .store(1 << 40, std::sync::atomic::Ordering::Release);
        cu!(cuStreamSynchronize(one));
    });
}

#[test]
fn every_condition_is_what_it_says() {
    alone("every_condition_is_what_it_says", &[], || {
        start(0);
        let word = upload(&[0u64]);
        let holds = |have: u64, condition: u32, value: u64, wide: bool| {
            let stream = stream();
            cu!(cuMemcpyHtoD_v2(word, (&raw const have).cast(), 8));
            if wide {
                cu!(cuStreamWaitValue64_v2(stream, word, value, condition));
            } else {
                cu!(cuStreamWaitValue32(stream, word, value as u32, condition));
            }
            // Give the wait its chance; one that cannot hold never ends.
            for _ in 0..200 {
                if is_idle(stream) {
                    return true;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            cu!(cuStreamDestroy_v2(stream));
            false
        };
        assert!(holds(7, GEQ, 7, false) && holds(8, GEQ, 7, false) && !holds(6, GEQ, 7, false));
        assert!(
            holds(2, GEQ, u64::from(u32::MAX), false),
            "by distance around the circle"
        );
        assert!(holds(2, GEQ, u64::MAX, true) && !holds(u64::MAX, GEQ, 2, true));
        assert!(holds(7, EQ, 7, false) && !holds(8, EQ, 7, false));
        assert!(holds(0xff00_0000_0007, EQ, 7, false), "32 bits of it");
        assert!(!holds(0xff00_0000_0007, EQ, 7, true));
        assert!(holds(6, AND, 2, false) && !holds(6, AND, 9, false));
        assert!(holds(0, NOR, 1, false) && !holds(u64::MAX, NOR, 0, false));
        assert!(holds(1 << 40, NOR, 0, true) && !holds(u64::MAX, NOR, 5, true));
    });
}

#[test]
fn batches_run_in_order() {
    alone("batches_run_in_order", &[], || {
        start(0);
        let (stream, other) = (stream(), stream());
        let words = upload(&[0u32; 8]);
        let mut list = [CUstreamBatchMemOpParams::default(); 4];
        list[0].writeValue = CUstreamMemOpWriteValueParams_st {
            operation: CU_STREAM_MEM_OP_WRITE_VALUE_32,
            address: words,
            anonymous1: CUstreamMemOpWriteValueParams_st_anonymous1 { value64: 11 },
            ..CUstreamMemOpWriteValueParams_st::default()
        };
        list[1].waitValue = CUstreamMemOpWaitValueParams_st {
            operation: CU_STREAM_MEM_OP_WAIT_VALUE_32,
            address: words + 4,
            anonymous1: CUstreamMemOpWaitValueParams_st_anonymous1 { value64: 1 },
            flags: EQ,
            ..CUstreamMemOpWaitValueParams_st::default()
        };
        list[2].memoryBarrier = CUstreamMemOpMemoryBarrierParams_st {
            operation: CU_STREAM_MEM_OP_BARRIER,
            flags: 0,
        };
        list[3].atomicReduction = CUstreamMemOpAtomicReductionParams_st {
            operation: CU_STREAM_MEM_OP_ATOMIC_REDUCTION,
            reductionOp: CU_STREAM_ATOMIC_REDUCTION_OP_ADD,
            dataType: CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32,
            address: words,
            value: 4,
            ..CUstreamMemOpAtomicReductionParams_st::default()
        };
        cu!(cuStreamBatchMemOp_v2(stream, 4, list.as_mut_ptr(), 0));
        while download::<u32>(words, 1) == [0] {}
        assert_eq!(download::<u32>(words, 1), [11], "the sum has to wait");
        cu!(cuStreamWriteValue32(other, words + 4, 1, 0));
        cu!(cuStreamSynchronize(stream));
        assert_eq!(download::<u32>(words, 1), [15]);
        for (count, flags) in [(0, 0), (4, 1), (256, 0)] {
            let refused = code!(cuStreamBatchMemOp(stream, count, list.as_mut_ptr(), flags));
            assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
        }
        // The same as a node of a graph, whose values can be changed.
        let graph: CUgraph = get!(cuGraphCreate(0));
        let describe = |list: &mut [CUstreamBatchMemOpParams; 4]| CUDA_BATCH_MEM_OP_NODE_PARAMS {
            count: 4,
            paramArray: list.as_mut_ptr(),
            ..CUDA_BATCH_MEM_OP_NODE_PARAMS::default()
        };
        let params = describe(&mut list);
        let node: CUgraphNode = get!(cuGraphAddBatchMemOpNode(
            graph,
            std::ptr::null(),
            0,
            &raw const params
        ));
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        list[0].writeValue.anonymous1.value64 = 100;
        let params = describe(&mut list);
        cu!(cuGraphExecBatchMemOpNodeSetParams(exec, node, &raw const params));
        cu!(cuGraphLaunch(exec, stream));
        cu!(cuStreamSynchronize(stream));
        assert_eq!(download::<u32>(words, 1), [104]);
        list[0].memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
        let params = describe(&mut list);
        assert_eq!(
            code!(cuGraphExecBatchMemOpNodeSetParams(exec, node, &raw const params)),
            CUDA_ERROR_INVALID_VALUE
        );
        let mut back = CUDA_BATCH_MEM_OP_NODE_PARAMS::default();
        cu!(cuGraphBatchMemOpNodeGetParams(node, &raw mut back));
        // SAFETY: the driver lends a list of four, and the first is a write.
        let written = unsafe { (*back.paramArray).writeValue.address };
        assert_eq!((back.count, written), (4, words));
    });
}

#[test]
fn waits_end_with_their_stream_or_context() {
    alone("waits_end_with_their_stream_or_context", &[], || {
        start(0);
        // The case that this test is about would hang it.
        std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_secs(60));
            std::process::abort();
        });
        let word = upload(&[0u32, 0]);
        let lost = stream();
        cu!(cuStreamWaitValue32(lost, word, 1, EQ));
        cu!(cuMemsetD32Async(word + 4, 3, 1, lost));
        cu!(cuStreamDestroy_v2(lost));
        // The same in a graph, which ends with the stream it was launched into.
        let (graph, lost) = (get!(cuGraphCreate(0)), stream());
        let mut wait = CUstreamBatchMemOpParams::default();
        wait.waitValue = CUstreamMemOpWaitValueParams_st {
            operation: CU_STREAM_MEM_OP_WAIT_VALUE_32,
            address: word,
            anonymous1: CUstreamMemOpWaitValueParams_st_anonymous1 { value64: 1 },
            flags: EQ,
            ..CUstreamMemOpWaitValueParams_st::default()
        };
        let params = CUDA_BATCH_MEM_OP_NODE_PARAMS {
            count: 1,
            paramArray: &raw mut wait,
            ..CUDA_BATCH_MEM_OP_NODE_PARAMS::default()
        };
        let _: CUgraphNode = get!(cuGraphAddBatchMemOpNode(
            graph,
            std::ptr::null(),
            0,
            &raw const params
        ));
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        cu!(cuGraphLaunch(exec, lost));
        cu!(cuStreamDestroy_v2(lost));
        // Nothing waits for ever: not the context, nor the memory that the stream used.
        cu!(cuCtxSynchronize());
        let mut context = null_mut();
        cu!(cuCtxCreate_v2(&raw mut context, 0, 0));
        let own = stream();
        cu!(cuStreamWaitValue32(own, word, 1, EQ));
        cu!(cuCtxDestroy_v2(context));
        cu!(cuMemFree_v2(word));
    });
}

#[test]
fn words_must_be_known_aligned_and_not_managed() {
    alone("words_must_be_known_aligned_and_not_managed", &[], || {
        start(0);
        let stream = stream();
        let word = upload(&[0u32; 2]);
        let managed: CUdeviceptr = get!(cuMemAllocManaged(64, CU_MEM_ATTACH_GLOBAL.0));
        for wrong in [0, 2 + word, 0xdead_0000, managed] {
            assert_eq!(
                code!(cuStreamWriteValue32(stream, wrong, 1, 0)),
                CUDA_ERROR_INVALID_VALUE
            );
            assert_eq!(
                code!(cuStreamWaitValue32(stream, wrong, 1, 0)),
                CUDA_ERROR_INVALID_VALUE
            );
        }
        assert_eq!(
            code!(cuStreamWaitValue64(stream, word + 4, 1, 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuStreamWaitValue32(stream, word, 1, 9)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuStreamWriteValue32(stream, word, 1, 2)),
            CUDA_ERROR_INVALID_VALUE
        );
        let flush = CU_STREAM_WAIT_VALUE_FLUSH.0;
        assert_eq!(
            code!(cuStreamWaitValue32(stream, word, 1, flush)),
            CUDA_ERROR_NOT_SUPPORTED
        );
        let mut can = 0;
        cu!(cuDeviceGetAttribute(
            &raw mut can,
            CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
            0
        ));
        assert_eq!(can, 1);
        assert!(code!(cuStreamQuery(stream)) == CUDA_SUCCESS);
    });
}
