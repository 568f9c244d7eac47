//! Random work as a graph, as a captured stream and as a plain stream: the same bytes each time. And many launches
//! that leave nothing behind.

mod common;

use common::{
    VECTOR_ADD, alone, code, cu, download, function, get, launch, memory_info, module, param, start, upload,
};
use divvy_abi::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::ptr::{null, null_mut};

/// `to[i] = to[i] * factor + from[i]` for four words.
const MIX: &str = r#"
.version 7.0
.target sm_75
.address_size 64

.visible .entry mix(.param .u64 to, .param .u64 from, .param .u32 factor)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    ld.param.u32 %r1, [factor];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd3, %r2, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.u32 %r3, [%rd4];
    ld.global.u32 %r4, [%rd5];
    mad.lo.s32 %r5, %r3, %r1, %r4;
    st.global.u32 [%rd4], %r5;
    ret;
}
"#;

const CELLS: usize = 8;
const WORDS: usize = 4;
const CELL_BYTES: usize = WORDS * 4;

type Cells = [[u32; WORDS]; CELLS];

/// Work on cells of four words.
#[derive(Debug, Clone, Copy)]
enum Op {
    Copy { to: usize, from: usize },
    Fill { to: usize, value: u8 },
    Mix { to: usize, from: usize, factor: u32 },
    Host { to: usize },
}

impl Op {
    fn any() -> impl Strategy<Value = Op> {
        let cell = || 0..CELLS;
        prop_oneof![
            (cell(), cell()).prop_map(|(to, from)| Op::Copy { to, from }),
            (cell(), any::<u8>()).prop_map(|(to, value)| Op::Fill { to, value }),
            (cell(), cell(), 1..9u32).prop_map(|(to, from, factor)| Op::Mix { to, from, factor }),
            cell().prop_map(|to| Op::Host { to }),
        ]
    }

    fn writes(self) -> usize {
        match self {
            Op::Copy { to, .. } | Op::Fill { to, .. } | Op::Mix { to, .. } | Op::Host { to } => to,
        }
    }

    fn touches(self, cell: usize) -> bool {
        let reads = match self {
            Op::Copy { from, .. } | Op::Mix { from, .. } => Some(from),
            Op::Fill { .. } | Op::Host { .. } => None,
        };
        self.writes() == cell || reads == Some(cell)
    }

    /// Whether the order of the two matters.
    fn conflicts(self, other: Op) -> bool {
        self.touches(other.writes()) || other.touches(self.writes())
    }

    fn on_model(self, cells: &mut Cells) {
        match self {
            Op::Copy { to, from } => cells[to] = cells[from],
            Op::Fill { to, value } => cells[to] = [u32::from_ne_bytes([value; 4]); WORDS],
            Op::Mix { to, from, factor } => {
                let source = cells[from];
                for (word, other) in cells[to].iter_mut().zip(source) {
                    *word = word.wrapping_mul(factor).wrapping_add(other);
                }
            }
            Op::Host { to } => cells[to] = cells[to].map(|word| word.wrapping_add(1)),
        }
    }
}

/// Adds one to each word of a cell.
unsafe extern "C" fn increment(cell: *mut c_void) {
    // SAFETY: the test passes a cell in memory that the host reaches, and orders what else uses it.
    let words = unsafe { std::slice::from_raw_parts_mut(cell.cast::<u32>(), WORDS) };
    for word in words {
        *word = word.wrapping_add(1);
    }
}

/// The device's side of it: a kernel, and cells that host and device reach.
struct Bench {
    mix: CUfunction,
    cells: u64,
}

impl Bench {
    fn cell(&self, at: usize) -> u64 {
        self.cells + (at * CELL_BYTES) as u64
    }

    fn put(&self, values: &Cells) {
        // SAFETY: the memory holds all cells, and nothing of the device's uses it now.
        unsafe { (self.cells as *mut Cells).write(*values) };
    }

    fn take(&self) -> Cells {
        // SAFETY: as in `put`.
        unsafe { (self.cells as *const Cells).read() }
    }

    fn add(&self, graph: CUgraph, op: Op) -> CUgraphNode {
        match op {
            Op::Copy { to, from } => {
                let params = CUDA_MEMCPY3D {
                    srcMemoryType: CU_MEMORYTYPE_UNIFIED,
                    srcDevice: self.cell(from),
                    dstMemoryType: CU_MEMORYTYPE_UNIFIED,
                    dstDevice: self.cell(to),
                    WidthInBytes: CELL_BYTES,
                    Height: 1,
                    Depth: 1,
                    ..CUDA_MEMCPY3D::default()
                };
                get!(cuGraphAddMemcpyNode(
                    graph,
                    null(),
                    0,
                    &raw const params,
                    null_mut()
                ))
            }
            Op::Fill { to, value } => {
                let params = CUDA_MEMSET_NODE_PARAMS {
                    dst: self.cell(to),
                    value: u32::from(value),
                    elementSize: 1,
                    width: CELL_BYTES,
                    height: 1,
                    ..CUDA_MEMSET_NODE_PARAMS::default()
                };
                get!(cuGraphAddMemsetNode(
                    graph,
                    null(),
                    0,
                    &raw const params,
                    null_mut()
                ))
            }
            Op::Mix { to, from, factor } => {
                let (to, from) = (self.cell(to), self.cell(from));
                let mut list = [param(&to), param(&from), param(&factor)];
                let params = CUDA_KERNEL_NODE_PARAMS {
                    func: self.mix,
                    gridDimX: 1,
                    gridDimY: 1,
                    gridDimZ: 1,
                    blockDimX: WORDS as u32,
                    blockDimY: 1,
                    blockDimZ: 1,
                    kernelParams: list.as_mut_ptr(),
                    ..CUDA_KERNEL_NODE_PARAMS::default()
                };
                get!(cuGraphAddKernelNode_v2(graph, null(), 0, &raw const params))
            }
            Op::Host { to } => {
                let params = CUDA_HOST_NODE_PARAMS {
                    fn_: Some(increment),
                    userData: self.cell(to) as *mut c_void,
                };
                get!(cuGraphAddHostNode(graph, null(), 0, &raw const params))
            }
        }
    }

    fn enqueue(&self, stream: CUstream, op: Op) {
        match op {
            Op::Copy { to, from } => cu!(cuMemcpyAsync(self.cell(to), self.cell(from), CELL_BYTES, stream)),
            Op::Fill { to, value } => cu!(cuMemsetD8Async(self.cell(to), value, CELL_BYTES, stream)),
            Op::Mix { to, from, factor } => {
                let (to, from) = (self.cell(to), self.cell(from));
                let mut list = [param(&to), param(&from), param(&factor)];
                assert_eq!(launch(self.mix, 1, WORDS as u32, stream, &mut list), CUDA_SUCCESS);
            }
            Op::Host { to } => cu!(cuLaunchHostFunc(
                stream,
                Some(increment),
                self.cell(to) as *mut c_void
            )),
        }
    }
}

fn run(graph: CUgraph, stream: CUstream, launches: usize) {
    let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
    for _ in 0..launches {
        cu!(cuGraphLaunch(exec, stream));
    }
    cu!(cuStreamSynchronize(stream));
    cu!(cuGraphExecDestroy(exec));
    cu!(cuGraphDestroy(graph));
}

#[test]
fn any_order_that_the_edges_allow_gives_the_same_bytes() {
    alone("any_order_that_the_edges_allow_gives_the_same_bytes", &[], || {
        start(0);
        let memory: *mut c_void = get!(cuMemAllocHost_v2(size_of::<Cells>()));
        let bench = Bench {
            mix: function(module(MIX), c"mix"),
            cells: memory as u64,
        };
        let stream: CUstream = get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0));
        let mut first: Cells = [[0; WORDS]; CELLS];
        for (at, cell) in first.iter_mut().enumerate() {
            *cell = [1, 2, 3, 5].map(|word| word * (at as u32 + 1));
        }
        let ops = prop::collection::vec((Op::any(), any::<u64>()), 1..24);
        let mut runner = TestRunner::new(Config {
            cases: 96,
            failure_persistence: None,
            ..Config::default()
        });
        let outcome = runner.run(&(ops, 1..4usize), |(ops, launches)| {
            let mut expected = first;
            for _ in 0..launches {
                ops.iter().for_each(|(op, _)| op.on_model(&mut expected));
            }
            // As a graph whose nodes are made in any order, with the edges that matter and some that do not.
            let graph: CUgraph = get!(cuGraphCreate(0));
            let mut made: Vec<usize> = (0..ops.len()).collect();
            made.sort_by_key(|&at| ops[at].1);
            let mut nodes = vec![null_mut(); ops.len()];
            for at in made {
                nodes[at] = bench.add(graph, ops[at].0);
            }
            for (later, &(op, bits)) in ops.iter().enumerate() {
                for (earlier, &(other, _)) in ops[..later].iter().enumerate() {
                    if op.conflicts(other) || bits >> (earlier % 64) & 7 == 0 {
                        cu!(cuGraphAddDependencies(
                            graph,
                            &raw const nodes[earlier],
                            &raw const nodes[later],
                            1
                        ));
                    }
                }
            }
            bench.put(&first);
            run(graph, stream, launches);
            prop_assert_eq!(bench.take(), expected);
            // As a captured stream.
            let mut graph = null_mut();
            cu!(cuStreamBeginCapture_v2(
                stream,
                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            ));
            ops.iter().for_each(|(op, _)| bench.enqueue(stream, *op));
            cu!(cuStreamEndCapture(stream, &raw mut graph));
            bench.put(&first);
            run(graph, stream, launches);
            prop_assert_eq!(bench.take(), expected);
            // And as it is.
            bench.put(&first);
            for _ in 0..launches {
                ops.iter().for_each(|(op, _)| bench.enqueue(stream, *op));
            }
            cu!(cuStreamSynchronize(stream));
            prop_assert_eq!(bench.take(), expected);
            Ok(())
        });
        outcome.unwrap();
    });
}

/// Bytes of this process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn ten_thousand_launches_leave_nothing() {
    alone("ten_thousand_launches_leave_nothing", &[], || {
        start(0);
        let (free, _) = memory_info();
        let add = function(module(VECTOR_ADD), c"add");
        let stream: CUstream = get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0));
        let (a, n) = (upload(&[1f32; 8]), 8u32);
        let (mut graph, mut temporary) = (null_mut(), 0);
        cu!(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        cu!(cuMemAllocAsync(&raw mut temporary, 32, stream));
        let mut list = [param(&a), param(&a), param(&temporary), param(&n)];
        assert_eq!(launch(add, 1, 8, stream, &mut list), CUDA_SUCCESS);
        cu!(cuMemcpyDtoDAsync_v2(a, temporary, 4, stream));
        cu!(cuMemsetD32Async(a, 0x3f80_0000, 1, stream));
        cu!(cuMemFreeAsync(temporary, stream));
        cu!(cuStreamEndCapture(stream, &raw mut graph));
        let exec: CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
        let launches = |count: usize| {
            for at in 0..count {
                cu!(cuGraphLaunch(exec, stream));
                if at % 100 == 0 {
                    cu!(cuStreamSynchronize(stream));
                }
            }
            cu!(cuStreamSynchronize(stream));
            resident()
        };
        let before = launches(1000);
        let after = launches(10_000);
        assert!(after < before + (8 << 20), "{before} {after}");
        assert_eq!(download::<f32>(a, 8), [1.0; 8]);
        // Graphs that are made, launched and dropped leave nothing either.
        let mut last = 0;
        for round in 0..2000 {
            let copy: CUgraph = get!(cuGraphCreate(0));
            let params = CUDA_MEMSET_NODE_PARAMS {
                dst: a,
                value: 0x3f80_0000,
                elementSize: 4,
                width: 8,
                height: 1,
                ..CUDA_MEMSET_NODE_PARAMS::default()
            };
            let _: CUgraphNode = get!(cuGraphAddMemsetNode(
                copy,
                null(),
                0,
                &raw const params,
                null_mut()
            ));
            run(copy, stream, 1);
            if round == 500 {
                last = resident();
            }
        }
        assert!(resident() < last + (8 << 20), "{last} {}", resident());
        cu!(cuGraphExecDestroy(exec));
        cu!(cuGraphDestroy(graph));
        cu!(cuDeviceGraphMemTrim(0));
        cu!(cuMemFree_v2(a));
        assert_eq!(memory_info().0, free);
        let refused = code!(cuGraphLaunch(exec, stream));
        assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
    });
}
