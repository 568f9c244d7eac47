//! `DIVVY_CHECK`: launches that touch the same memory with nothing that orders them, and the same in order.

#[path = "common/checking.rs"]
mod checking;
mod common;

use checking::{checked, defects, of_kind, ptx};
use common::{code, cu, function, get, graph, launch, module, param};
use divvy_abi::*;

/// What stands between a launch that writes and one that reads.
struct Between {
    name: &'static str,
    /// Of the second stream: CU_STREAM_*.
    flags: u32,
    /// Given the first stream and the second.
    does: fn(CUstream, CUstream),
    is_ordered: bool,
}

extern "C" fn tell(data: *mut divvy_abi::c_void) {
    // SAFETY: the test gives a flag that outlives the function.
    let flag = unsafe { &*data.cast::<std::sync::atomic::AtomicBool>() };
    flag.store(true, std::sync::atomic::Ordering::Release);
}

const CASES: &[Between] = &[
    Between {
        name: "nothing",
        flags: 0,
        does: |_, _| {},
        is_ordered: false,
    },
    Between {
        name: "a wait for the other stream",
        flags: 0,
        does: |_, second| cu!(cuStreamSynchronize(second)),
        is_ordered: false,
    },
    Between {
        name: "an event that is recorded and not waited for",
        flags: 0,
        does: |first, _| {
            let event: CUevent = get!(cuEventCreate(0));
            cu!(cuEventRecord(event, first));
        },
        is_ordered: false,
    },
    Between {
        name: "the default stream, which one of them does not know",
        flags: 1,
        does: |_, _| {
            let memory: CUdeviceptr = get!(cuMemAlloc_v2(256));
            cu!(cuMemsetD8Async(memory, 0, 256, std::ptr::null_mut()));
        },
        is_ordered: false,
    },
    Between {
        name: "an event",
        flags: 1,
        does: |first, second| {
            let event: CUevent = get!(cuEventCreate(0));
            cu!(cuEventRecord(event, first));
            cu!(cuStreamWaitEvent(second, event, 0));
        },
        is_ordered: true,
    },
    Between {
        name: "the default stream",
        flags: 0,
        does: |_, _| {
            let memory: CUdeviceptr = get!(cuMemAlloc_v2(256));
            cu!(cuMemsetD8Async(memory, 0, 256, std::ptr::null_mut()));
        },
        is_ordered: true,
    },
    Between {
        name: "a wait for the stream",
        flags: 1,
        does: |first, _| cu!(cuStreamSynchronize(first)),
        is_ordered: true,
    },
    Between {
        name: "a question that is answered",
        flags: 1,
        does: |first, _| {
            while code!(cuStreamQuery(first)) != CUDA_SUCCESS {
                std::thread::yield_now();
            }
        },
        is_ordered: true,
    },
    Between {
        name: "a function of the host, which a thread waits for",
        flags: 1,
        does: |first, _| {
            let flag = std::sync::atomic::AtomicBool::new(false);
            let data = std::ptr::from_ref(&flag).cast_mut().cast();
            cu!(cuLaunchHostFunc(first, Some(tell), data));
            while !flag.load(std::sync::atomic::Ordering::Acquire) {
                std::thread::yield_now();
            }
        },
        is_ordered: true,
    },
];

/// A launch in each of two streams, the first of which writes; `reads`: the second one only reads.
fn two(case: &Between, first_body: &str, second_body: &str) {
    common::start(0);
    let memory: CUdeviceptr = get!(cuMemAlloc_v2(256));
    cu!(cuMemsetD8_v2(memory, 0, 256));
    let (first, second): (CUstream, CUstream) = (get!(cuStreamCreate(1)), get!(cuStreamCreate(case.flags)));
    // The first of them is one that the default stream waits for, where the second is.
    let first = if case.flags == 0 {
        get!(cuStreamCreate(0))
    } else {
        first
    };
    let writes = function(module(&ptx(first_body)), c"k");
    let other = function(module(&ptx(second_body)), c"k");
    assert_eq!(launch(writes, 1, 32, first, &mut [param(&memory)]), CUDA_SUCCESS);
    (case.does)(first, second);
    assert_eq!(launch(other, 1, 32, second, &mut [param(&memory)]), CUDA_SUCCESS);
    cu!(cuCtxSynchronize());
    // Behind the wait all is in order.
    assert_eq!(launch(other, 1, 32, first, &mut [param(&memory)]), CUDA_SUCCESS);
    cu!(cuCtxSynchronize());
}

const WRITES: &str = ".loc 1 10 0\n st.global.u32 [%rd4], %r1;";
const READS: &str = ".loc 1 20 0\n ld.global.u32 %r6, [%rd4];";
const UPDATES: &str = ".loc 1 20 0\n ld.global.u32 %r6, [%rd4];\n add.u32 %r6, %r6, 1;\n .loc 1 21 0\n st.global.u32 [%rd4], %r6;";

#[test]
fn launches_of_two_streams_race_unless_something_orders_them() {
    const TEST: &str = "launches_of_two_streams_race_unless_something_orders_them";
    let is_child = common::role().is_some();
    for case in CASES {
        let lines = checked(TEST, case.name, || two(case, WRITES, READS));
        if is_child {
            continue;
        }
        if case.is_ordered {
            assert!(defects(&lines).is_empty(), "{}: {lines:#?}", case.name);
            continue;
        }
        let says = "by a launch of k in another stream: no event, no wait between";
        let line = of_kind(&lines, "race", says).unwrap_or_else(|| panic!("{}: {lines:#?}", case.name));
        // Streams run as they like: either may have been first.
        assert!(
            line.contains("planted.cu:20") && line.contains("planted.cu:10"),
            "{}: {line}",
            case.name
        );
        let others = defects(&lines)
            .into_iter()
            .filter(|line| !line.contains(r#""number":0,"#));
        assert_eq!(others.count(), 0, "{}: {lines:#?}", case.name);
    }
}

#[test]
fn a_write_behind_reads_of_another_stream_races_and_reads_do_not() {
    const TEST: &str = "a_write_behind_reads_of_another_stream_races_and_reads_do_not";
    let is_child = common::role().is_some();
    let nothing = &CASES[0];
    let updates = checked(TEST, "updates", || two(nothing, READS, UPDATES));
    let reads = checked(TEST, "reads", || two(nothing, READS, READS));
    let adds = "atom.global.add.u32 %r6, [%rd1], 1;";
    let atomic = checked(TEST, "atomic", || two(nothing, adds, adds));
    if is_child {
        return;
    }
    let says = "by a launch of k in another stream";
    assert!(of_kind(&updates, "race", says).is_some(), "{updates:#?}");
    assert!(
        defects(&reads).is_empty() && defects(&atomic).is_empty(),
        "{reads:#?} {atomic:#?}"
    );
}

/// Two branches of a graph.
#[test]
fn branches_of_a_graph_race_and_its_chains_do_not() {
    const TEST: &str = "branches_of_a_graph_race_and_its_chains_do_not";
    let is_child = common::role().is_some();
    let run = |is_chain: bool| {
        common::start(0);
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(256));
        cu!(cuMemsetD8_v2(memory, 0, 256));
        let graph: CUgraph = get!(cuGraphCreate(0));
        let mut before: Vec<CUgraphNode> = Vec::new();
        for body in [WRITES, READS] {
            let mut params = [param(&memory)];
            let node = graph::kernel(function(module(&ptx(body)), c"k"), &mut params);
            let mut made: CUgraphNode = std::ptr::null_mut();
            cu!(cuGraphAddKernelNode_v2(
                &raw mut made,
                graph,
                before.as_ptr(),
                before.len(),
                &node
            ));
            if is_chain {
                before = vec![made];
            }
        }
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        cu!(cuGraphLaunch(exec, std::ptr::null_mut()));
        cu!(cuGraphLaunch(exec, std::ptr::null_mut()));
        cu!(cuCtxSynchronize());
    };
    let branches = checked(TEST, "branches", || run(false));
    let chain = checked(TEST, "chain", || run(true));
    if is_child {
        return;
    }
    assert!(
        of_kind(&branches, "race", "by a launch of k").is_some(),
        "{branches:#?}"
    );
    assert!(defects(&chain).is_empty(), "{chain:#?}");
}
