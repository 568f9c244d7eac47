//! `DIVVY_CHECK`: each planted defect is found, with its kind and its place, and nothing in its corrected counterpart.

#[path = "common/checking.rs"]
mod checking;
mod common;

use checking::{checked, defects, found, of_kind, ptx};
use common::{alone, code, cu, function, get, launch, module, param};
use divvy_abi::*;

/// A kernel with a defect and the same without it. Bodies find `p0 + 4 * tid` in %rd4, `shared + 4 * tid` in %r5, the
/// thread in %r1, the block in %r2.
struct Planted {
    name: &'static str,
    grid: u32,
    block: u32,
    /// Of the allocation that the parameter points to.
    bytes: usize,
    wrong: &'static str,
    right: &'static str,
    /// The finding's kind, a part of its message, and the source line that it names.
    kind: &'static str,
    says: &'static str,
    at: &'static str,
}

const KERNELS: &[Planted] = &[
    Planted {
        name: "shared memory of another warp without a barrier",
        grid: 2,
        block: 64,
        bytes: 256,
        wrong: ".loc 1 10 0
            st.shared.u32 [%r5], %r1;
            xor.b32 %r6, %r4, 128;
            add.u32 %r6, %r6, %r3;
            .loc 1 20 0
            ld.shared.u32 %r7, [%r6];",
        right: "st.shared.u32 [%r5], %r1;
            bar.sync 0;
            xor.b32 %r6, %r4, 128;
            add.u32 %r6, %r6, %r3;
            ld.shared.u32 %r7, [%r6];",
        kind: "race",
        says: "two threads of a block, with no barrier between",
        at: "planted.cu:20",
    },
    Planted {
        name: "shared memory of another lane without a warp barrier",
        grid: 1,
        block: 32,
        bytes: 256,
        wrong: "st.shared.u32 [%r5], %r1;
            xor.b32 %r6, %r4, 4;
            add.u32 %r6, %r6, %r3;
            .loc 1 20 0
            ld.shared.u32 %r7, [%r6];",
        right: "st.shared.u32 [%r5], %r1;
            bar.warp.sync 0xffffffff;
            xor.b32 %r6, %r4, 4;
            add.u32 %r6, %r6, %r3;
            ld.shared.u32 %r7, [%r6];",
        kind: "race",
        says: "two threads of a warp, with no __syncwarp between",
        at: "planted.cu:20",
    },
    Planted {
        name: "read before write across a loop without its second barrier",
        grid: 1,
        block: 64,
        bytes: 256,
        wrong: "st.shared.u32 [%r5], %r1;
            bar.sync 0;
            xor.b32 %r6, %r4, 128;
            add.u32 %r6, %r6, %r3;
            ld.shared.u32 %r7, [%r6];
            add.u32 %r7, %r7, 1;
            .loc 1 20 0
            st.shared.u32 [%r5], %r7;",
        right: "st.shared.u32 [%r5], %r1;
            bar.sync 0;
            xor.b32 %r6, %r4, 128;
            add.u32 %r6, %r6, %r3;
            ld.shared.u32 %r7, [%r6];
            bar.sync 0;
            add.u32 %r7, %r7, 1;
            st.shared.u32 [%r5], %r7;",
        kind: "race",
        says: "write of 4 bytes at shared+",
        at: "planted.cu:20",
    },
    Planted {
        name: "different values into one word of shared memory",
        grid: 1,
        block: 32,
        bytes: 256,
        wrong: ".loc 1 20 0
            st.shared.u32 [s+8], %r1;",
        right: "st.shared.u32 [s+8], 7;",
        kind: "race",
        says: "races with a write by another thread",
        at: "planted.cu:20",
    },
    Planted {
        name: "a counter of all blocks without an atomic operation",
        grid: 4,
        block: 1,
        bytes: 4,
        wrong: "ld.global.u32 %r6, [%rd1];
            add.u32 %r6, %r6, 1;
            .loc 1 20 0
            st.global.u32 [%rd1], %r6;",
        right: "atom.global.add.u32 %r6, [%rd1], 1;",
        kind: "race",
        says: "threads of two blocks, with nothing that orders them",
        at: "planted.cu:20",
    },
    Planted {
        name: "global memory of another warp without a barrier",
        grid: 1,
        block: 64,
        bytes: 256,
        wrong: "st.global.u32 [%rd4], %r1;
            xor.b32 %r6, %r4, 128;
            cvt.u64.u32 %rd5, %r6;
            add.u64 %rd5, %rd5, %rd1;
            .loc 1 20 0
            ld.global.u32 %r7, [%rd5];",
        right: "st.global.u32 [%rd4], %r1;
            bar.sync 0;
            xor.b32 %r6, %r4, 128;
            cvt.u64.u32 %rd5, %r6;
            add.u64 %rd5, %rd5, %rd1;
            ld.global.u32 %r7, [%rd5];",
        kind: "race",
        says: "into an allocation of 256 bytes made by cuMemAlloc",
        at: "planted.cu:20",
    },
    Planted {
        name: "a block's result announced without a fence",
        grid: 4,
        block: 1,
        bytes: 64,
        wrong: "mul.wide.u32 %rd5, %r2, 4;
            add.u64 %rd5, %rd5, %rd1;
            st.global.u32 [%rd5+4], %r2;
            atom.global.add.u32 %r6, [%rd1], 1;
            setp.ne.u32 %p1, %r6, 3;
            @%p1 bra END;
            .loc 1 20 0
            ld.global.u32 %r7, [%rd1+4];
            END:",
        right: "mul.wide.u32 %rd5, %r2, 4;
            add.u64 %rd5, %rd5, %rd1;
            st.global.u32 [%rd5+4], %r2;
            membar.gl;
            atom.global.add.u32 %r6, [%rd1], 1;
            setp.ne.u32 %p1, %r6, 3;
            @%p1 bra END;
            ld.global.u32 %r7, [%rd1+4];
            END:",
        kind: "race",
        says: "read of 4 bytes",
        at: "planted.cu:20",
    },
    Planted {
        name: "a counter set to zero beside atomic operations",
        grid: 1,
        block: 64,
        bytes: 4,
        wrong: "setp.ne.u32 %p1, %r1, 40;
            @!%p1 st.shared.u32 [s], 1;
            .loc 1 20 0
            atom.shared.add.u32 %r6, [s], 1;",
        right: "setp.ne.u32 %p1, %r1, 40;
            @!%p1 st.shared.u32 [s], 1;
            bar.sync 0;
            atom.shared.add.u32 %r6, [s], 1;",
        kind: "race",
        says: "races with a",
        at: "",
    },
    Planted {
        name: "shared memory that nothing has written",
        grid: 1,
        block: 32,
        bytes: 4,
        wrong: ".loc 1 20 0
            ld.shared.u32 %r6, [%r5];",
        right: "st.shared.u32 [%r5], 0;
            ld.shared.u32 %r6, [%r5];",
        kind: "uninitialized",
        says: "at shared+0 of the block's shared memory, which nothing has written",
        at: "planted.cu:20",
    },
    Planted {
        name: "local memory that nothing has written",
        grid: 1,
        block: 32,
        bytes: 4,
        wrong: "st.local.u32 [l], 1;
            .loc 1 20 0
            ld.local.u32 %r6, [l+4];",
        right: "st.local.u32 [l+4], 1;
            ld.local.u32 %r6, [l+4];",
        kind: "uninitialized",
        says: "at local+4 of the thread's local memory",
        at: "planted.cu:20",
    },
    Planted {
        name: "a read past the end",
        grid: 1,
        block: 32,
        bytes: 4096,
        wrong: ".loc 1 20 0
            ld.global.u32 %r6, [%rd1+4108];",
        right: "ld.global.u32 %r6, [%rd1+4092];",
        kind: "out_of_bounds",
        says: "12 bytes past the end of an allocation of 4096 bytes made by cuMemAlloc",
        at: "planted.cu:20",
    },
    Planted {
        name: "a read in the rest of the last granule",
        grid: 1,
        block: 32,
        bytes: 100,
        wrong: ".loc 1 20 0
            ld.global.u32 %r6, [%rd4];",
        right: "setp.ge.u32 %p1, %r1, 25;
            @!%p1 ld.global.u32 %r6, [%rd4];",
        kind: "out_of_bounds",
        says: "0 bytes past the end of an allocation of 100 bytes",
        at: "planted.cu:20",
    },
    Planted {
        name: "a write before the begin",
        grid: 1,
        block: 1,
        bytes: 64,
        wrong: ".loc 1 20 0
            st.global.u32 [%rd1-8], %r1;",
        right: "st.global.u32 [%rd1], %r1;",
        kind: "out_of_bounds",
        says: "8 bytes before an allocation of 64 bytes",
        at: "planted.cu:20",
    },
    Planted {
        name: "a vector that is partly past the end",
        grid: 1,
        block: 1,
        bytes: 20,
        wrong: ".loc 1 20 0
            ld.global.v2.u32 {%r6, %r7}, [%rd1+16];",
        right: "ld.global.v2.u32 {%r6, %r7}, [%rd1+8];",
        kind: "out_of_bounds",
        says: "its last 4 bytes are past the end of an allocation of 20 bytes",
        at: "planted.cu:20",
    },
    Planted {
        name: "shared memory past its end",
        grid: 1,
        block: 32,
        bytes: 4,
        wrong: ".loc 1 20 0
            st.shared.u32 [s+1036], %r1;",
        right: "st.shared.u32 [s+1020], 1;",
        kind: "out_of_bounds",
        says: "12 bytes past the end of the block's 1024 bytes of shared memory",
        at: "planted.cu:20",
    },
    Planted {
        name: "local memory past its end",
        grid: 1,
        block: 32,
        bytes: 4,
        wrong: ".loc 1 20 0
            st.local.u32 [l+64], %r1;",
        right: "st.local.u32 [l+60], %r1;",
        kind: "out_of_bounds",
        says: "bytes of local memory",
        at: "planted.cu:20",
    },
    Planted {
        name: "a misaligned access",
        grid: 1,
        block: 1,
        bytes: 64,
        wrong: ".loc 1 20 0
            ld.global.u32 %r6, [%rd1+2];",
        right: "ld.global.u16 %r6, [%rd1+2];",
        kind: "misaligned",
        says: "which is not a multiple of 4",
        at: "planted.cu:20",
    },
    Planted {
        name: "a null pointer",
        grid: 1,
        block: 1,
        bytes: 64,
        wrong: "mov.u64 %rd5, 16;
            .loc 1 20 0
            ld.global.u32 %r6, [%rd5];",
        right: "ld.global.u32 %r6, [%rd1];",
        kind: "out_of_bounds",
        says: "read of 4 bytes at 0x10: a null pointer",
        at: "planted.cu:20",
    },
    Planted {
        name: "a barrier for half of a warp",
        grid: 1,
        block: 32,
        bytes: 4,
        wrong: "setp.ge.u32 %p1, %r1, 16;
            @%p1 bra END;
            .loc 1 20 0
            bar.sync 0;
            bra LAST;
            END:
            st.shared.u32 [%r5], %r1;
            LAST:",
        right: "setp.ge.u32 %p1, %r1, 16;
            @%p1 bra END;
            bar.sync 0;
            END:",
        kind: "barrier",
        says: "barrier 0 is reached by 16 of the warp's 32 threads, and 16 others went on without it",
        at: "planted.cu:20",
    },
    Planted {
        name: "two barriers for one warp",
        grid: 1,
        block: 32,
        bytes: 4,
        wrong: "setp.ge.u32 %p1, %r1, 8;
            @%p1 bra OTHER;
            .loc 1 20 0
            bar.sync 0;
            bra END;
            OTHER:
            .loc 1 30 0
            bar.sync 0;
            END:",
        right: "bar.sync 0;",
        kind: "barrier",
        says: "others of the warp are at the barrier at planted.cu:30",
        at: "planted.cu:20",
    },
    Planted {
        name: "a barrier for more threads than there are",
        grid: 1,
        block: 32,
        bytes: 4,
        wrong: ".loc 1 20 0
            bar.sync 1, 64;",
        right: "bar.sync 1, 32;",
        kind: "barrier",
        says: "barrier 1 awaits 64 threads, and the block has 32",
        at: "planted.cu:20",
    },
    Planted {
        name: "a barrier for a part of a warp",
        grid: 1,
        block: 64,
        bytes: 4,
        wrong: ".loc 1 20 0
            bar.sync 1, 48;",
        right: "bar.sync 1, 64;",
        kind: "barrier",
        says: "which is not a multiple of the warp's 32",
        at: "planted.cu:20",
    },
];

const READS: &str = "ld.global.u32 %r6, [%rd4];";

fn read(memory: CUdeviceptr) {
    let module = module(&ptx(READS));
    let function = function(module, c"k");
    let _outcome = launch(function, 1, 32, std::ptr::null_mut(), &mut [param(&memory)]);
    let _outcome = code!(cuCtxSynchronize());
}

fn run_kernel(body: &str, case: &Planted) {
    common::start(0);
    let module = module(&ptx(body));
    let function = function(module, c"k");
    let memory: CUdeviceptr = get!(cuMemAlloc_v2(case.bytes));
    cu!(cuMemsetD8_v2(memory, 0, case.bytes));
    let _outcome = launch(
        function,
        case.grid,
        case.block,
        std::ptr::null_mut(),
        &mut [param(&memory)],
    );
    // A defect may end the context's work, as on hardware.
    let _outcome = code!(cuCtxSynchronize());
    let _outcome = code!(cuMemFree_v2(memory));
    let _outcome = code!(cuModuleUnload(module));
}

#[test]
fn each_planted_defect_of_a_kernel_is_found_and_its_counterpart_is_clean() {
    const TEST: &str = "each_planted_defect_of_a_kernel_is_found_and_its_counterpart_is_clean";
    let is_child = common::role().is_some();
    for case in KERNELS {
        let wrong = checked(TEST, case.name, || {
            run_kernel(case.wrong, case);
        });
        let right = checked(TEST, &format!("right: {}", case.name), || {
            run_kernel(case.right, case);
        });
        if is_child {
            continue;
        }
        let line = of_kind(&wrong, case.kind, case.says);
        let line = line.unwrap_or_else(|| panic!("{}: not found in {wrong:#?}", case.name));
        assert!(line.contains(case.at), "{}: {line}", case.name);
        assert!(defects(&right).is_empty(), "{}: {right:#?}", case.name);
    }
}

/// A finding at one place is one, with the lanes and the launches counted.
/// Each of so many blocks writes a word of 4 KiB of its own.
fn touch(blocks: usize) {
    const BODY: &str = "mul.wide.u32 %rd5, %r2, 4096; add.u64 %rd6, %rd1, %rd5; st.global.u32 [%rd6], %r2;";
    common::start(0);
    let module = module(&ptx(BODY));
    let function = function(module, c"k");
    let memory: CUdeviceptr = get!(cuMemAlloc_v2(blocks * 4096));
    let blocks = u32::try_from(blocks).expect("few");
    for _ in 0..2 {
        assert_eq!(
            launch(function, blocks, 1, std::ptr::null_mut(), &mut [param(&memory)]),
            CUDA_SUCCESS
        );
        cu!(cuCtxSynchronize());
    }
    cu!(cuMemFree_v2(memory));
    cu!(cuModuleUnload(module));
}

#[test]
fn a_kernel_that_touches_more_than_is_looked_at_is_told_of_once() {
    const TEST: &str = "a_kernel_that_touches_more_than_is_looked_at_is_told_of_once";
    let is_child = common::role().is_some();
    // 32 MiB are looked at, to the byte.
    for (case, blocks, told) in [("all", 8192, 0), ("more", 8193, 1)] {
        let lines = checked(TEST, case, || touch(blocks));
        if is_child {
            continue;
        }
        assert_eq!(defects(&lines).len(), told, "{case}: {lines:#?}");
        let said = of_kind(&lines, "unchecked", "more than 32 MiB");
        assert_eq!(said.is_some(), told == 1, "{case}: {lines:#?}");
    }
}

#[test]
fn repeated_findings_are_counted() {
    const TEST: &str = "repeated_findings_are_counted";
    let is_child = common::role().is_some();
    let lines = checked(TEST, "repeated", || {
        common::start(0);
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(128));
        read(memory);
        read(memory);
    });
    if is_child {
        return;
    }
    let last = defects(&lines).last().copied().expect("a finding").clone();
    assert!(last.contains(r#""count":64"#), "{lines:#?}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains(r#""number":0"#) || line.contains("leak")),
        "{lines:#?}"
    );
}

/// What orders accesses of several threads is known: flags, atomic operations, mbarriers, named barriers.
#[test]
fn ordered_accesses_are_no_races() {
    const TEST: &str = "ordered_accesses_are_no_races";
    let is_child = common::role().is_some();
    let named = "setp.ge.u32 %p1, %r1, 32;
        @%p1 bra TAKE;
        st.shared.u32 [%r5], %r1;
        bar.arrive 1, 64;
        bra END;
        TAKE:
        bar.sync 1, 64;
        ld.shared.u32 %r6, [%r5-128];
        END:";
    let flag = "setp.ne.u32 %p1, %r1, 0;
        @%p1 bra TAKE;
        st.global.u32 [%rd1+8], 5;
        membar.cta;
        st.volatile.global.u32 [%rd1], 1;
        bra END;
        TAKE:
        setp.ne.u32 %p2, %r1, 32;
        @%p2 bra END;
        WAIT:
        ld.volatile.global.u32 %r6, [%rd1];
        setp.eq.u32 %p3, %r6, 0;
        @%p3 bra WAIT;
        ld.global.u32 %r7, [%rd1+8];
        END:";
    let object = "setp.ne.u32 %p1, %r1, 0;
        @!%p1 mbarrier.init.shared.b64 [s+512], 64;
        bar.sync 0;
        st.shared.u32 [%r5], %r1;
        mbarrier.arrive.shared.b64 %rd6, [s+512];
        WAIT:
        mbarrier.test_wait.shared.b64 %p2, [s+512], %rd6;
        @!%p2 bra WAIT;
        xor.b32 %r6, %r4, 128;
        add.u32 %r6, %r6, %r3;
        ld.shared.u32 %r7, [%r6];";
    let release = "setp.ne.u32 %p1, %r2, 0;
        @%p1 bra TAKE;
        st.global.u32 [%rd1+8], 5;
        st.release.gpu.global.u32 [%rd1], 1;
        bra END;
        TAKE:
        ld.acquire.gpu.global.u32 %r6, [%rd1];
        setp.eq.u32 %p3, %r6, 0;
        @%p3 bra TAKE;
        ld.global.u32 %r7, [%rd1+8];
        END:";
    let swap = "ld.global.u32 %r6, [%rd1];
        AGAIN:
        add.u32 %r7, %r6, 1;
        mov.u32 %r8, %r6;
        atom.global.cas.b32 %r6, [%rd1], %r8, %r7;
        setp.ne.u32 %p1, %r6, %r8;
        @%p1 bra AGAIN;";
    let ended = "setp.ge.u32 %p1, %r1, 4;
        st.shared.u32 [%r5], %r1;
        @%p1 bra END;
        bar.sync 0;
        ld.shared.u32 %r6, [%r5+128];
        END:";
    for (name, body, grid, block) in [
        ("swap", swap, 2, 64),
        ("ended", ended, 1, 64),
        ("named", named, 1, 64),
        ("flag", flag, 1, 64),
        ("object", object, 1, 64),
        ("release", release, 2, 1),
    ] {
        let lines = checked(TEST, name, || {
            common::start(0);
            let memory: CUdeviceptr = get!(cuMemAlloc_v2(256));
            cu!(cuMemsetD8_v2(memory, 0, 256));
            let function = function(module(&ptx(body)), c"k");
            let outcome = launch(function, grid, block, std::ptr::null_mut(), &mut [param(&memory)]);
            assert_eq!(outcome, CUDA_SUCCESS);
            cu!(cuCtxSynchronize());
        });
        assert!(is_child || defects(&lines).is_empty(), "{name}: {lines:#?}");
    }
}

/// Without the setting nothing is written, and a program is told of less memory.
#[test]
fn a_process_that_is_not_checked_writes_nothing() {
    const TEST: &str = "a_process_that_is_not_checked_writes_nothing";
    let folder = tempfile::tempdir().expect("a folder");
    alone(TEST, &[], || {
        common::start(0);
        read(get!(cuMemAlloc_v2(128)));
        cu!(cuCtxSynchronize());
    });
    assert!(found(folder.path()).is_empty());
}
