//! `DIVVY_CHECK`: what the host does wrong, and what it does not give back.

#[path = "common/checking.rs"]
mod checking;
mod common;

use checking::{checked, defects, of_kind, ptx};
use common::{code, cu, function, get, launch, module, param};
use divvy_abi::*;

/// A defect that the host makes, and the same without it.
struct OfHost {
    name: &'static str,
    wrong: fn(),
    right: fn(),
    kind: &'static str,
    says: &'static str,
}

const READS: &str = "ld.global.u32 %r6, [%rd4];";

fn read(memory: CUdeviceptr) {
    let module = module(&ptx(READS));
    let function = function(module, c"k");
    let _outcome = launch(function, 1, 32, std::ptr::null_mut(), &mut [param(&memory)]);
    let _outcome = code!(cuCtxSynchronize());
}

const HOST: &[OfHost] = &[
    OfHost {
        name: "global memory that nothing has written",
        wrong: || read(get!(cuMemAlloc_v2(128))),
        right: || {
            let memory = get!(cuMemAlloc_v2(128));
            cu!(cuMemsetD32_v2(memory, 1, 32));
            read(memory);
        },
        kind: "uninitialized",
        says: "0 bytes into an allocation of 128 bytes made by cuMemAlloc, which nothing has written",
    },
    OfHost {
        name: "global memory that was half copied",
        wrong: || {
            let (from, to): (CUdeviceptr, CUdeviceptr) = (get!(cuMemAlloc_v2(128)), get!(cuMemAlloc_v2(128)));
            cu!(cuMemsetD32_v2(from, 1, 16));
            cu!(cuMemcpyDtoD_v2(to, from, 128));
            read(to);
        },
        right: || {
            let (from, to): (CUdeviceptr, CUdeviceptr) = (get!(cuMemAlloc_v2(128)), get!(cuMemAlloc_v2(128)));
            cu!(cuMemsetD32_v2(from, 1, 32));
            cu!(cuMemcpyDtoD_v2(to, from, 128));
            read(to);
        },
        kind: "uninitialized",
        says: "64 bytes into",
    },
    OfHost {
        name: "memory that is freed",
        wrong: || {
            let memory = common::upload(&[1u32; 32]);
            cu!(cuMemFree_v2(memory));
            let other = common::upload(&[1u32; 32]);
            read(memory);
            let _outcome = code!(cuMemFree_v2(other));
        },
        right: || {
            let memory = common::upload(&[1u32; 32]);
            read(memory);
            cu!(cuMemFree_v2(memory));
        },
        kind: "use_after_free",
        says: "in an allocation of 128 bytes made by cuMemAlloc that has been freed",
    },
    OfHost {
        name: "memory freed twice",
        wrong: || {
            let memory = common::upload(&[1u32; 32]);
            cu!(cuMemFree_v2(memory));
            assert_eq!(code!(cuMemFree_v2(memory)), CUDA_ERROR_INVALID_VALUE);
        },
        right: || cu!(cuMemFree_v2(common::upload(&[1u32; 32]))),
        kind: "invalid_free",
        says: "that was freed before",
    },
    OfHost {
        name: "a free of what is inside an allocation",
        wrong: || {
            let memory = common::upload(&[1u32; 32]);
            assert_eq!(code!(cuMemFree_v2(memory + 4)), CUDA_ERROR_INVALID_VALUE);
        },
        right: || cu!(cuMemFree_v2(common::upload(&[1u32; 32]))),
        kind: "invalid_free",
        says: "4 bytes behind the begin of an allocation of 128 bytes",
    },
    OfHost {
        name: "a copy past the end",
        wrong: || {
            let memory: CUdeviceptr = get!(cuMemAlloc_v2(1024));
            let bytes = [0u8; 4096];
            let outcome = code!(cuMemcpyHtoD_v2(memory, bytes.as_ptr().cast(), 4096));
            assert_eq!(outcome, CUDA_ERROR_INVALID_VALUE);
        },
        right: || {
            let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
            cu!(cuMemcpyHtoD_v2(memory, [0u8; 4096].as_ptr().cast(), 4096));
        },
        kind: "invalid_copy",
        says: "3072 bytes past the end of an allocation of 1024 bytes made by cuMemAlloc",
    },
    OfHost {
        name: "a fill of freed memory",
        wrong: || {
            let memory = common::upload(&[1u32; 32]);
            cu!(cuMemFree_v2(memory));
            assert_eq!(code!(cuMemsetD32_v2(memory, 1, 32)), CUDA_ERROR_INVALID_VALUE);
        },
        right: || cu!(cuMemsetD32_v2(common::upload(&[1u32; 32]), 1, 32)),
        kind: "use_after_free",
        says: "copy or fill of 128 bytes",
    },
];

#[test]
fn each_planted_defect_of_a_host_is_found_and_its_counterpart_is_clean() {
    const TEST: &str = "each_planted_defect_of_a_host_is_found_and_its_counterpart_is_clean";
    let is_child = common::role().is_some();
    let run = |body: fn()| {
        move || {
            common::start(0);
            body();
        }
    };
    for case in HOST {
        let wrong = checked(TEST, case.name, run(case.wrong));
        let right = checked(TEST, &format!("right: {}", case.name), run(case.right));
        if is_child {
            continue;
        }
        assert!(
            of_kind(&wrong, case.kind, case.says).is_some(),
            "{}: not found in {wrong:#?}",
            case.name
        );
        assert!(defects(&right).is_empty(), "{}: {right:#?}", case.name);
    }
}

#[test]
fn what_is_never_given_back_is_told_at_the_end() {
    const TEST: &str = "what_is_never_given_back_is_told_at_the_end";
    let is_child = common::role().is_some();
    let leaks = checked(TEST, "leaks", || {
        cu!(cuInit(0));
        let context: CUcontext = get!(cuCtxCreate_v2(0, 0));
        cu!(cuCtxSetCurrent(context));
        let _memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        let _module = module(&ptx(READS));
        let _streams: [CUstream; 2] = [get!(cuStreamCreate(0)), get!(cuStreamCreate(0))];
        let _event: CUevent = get!(cuEventCreate(0));
    });
    let in_context = checked(TEST, "in a context", || {
        cu!(cuInit(0));
        let context: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let _memory: CUdeviceptr = get!(cuMemAlloc_v2(640));
        cu!(cuCtxDestroy_v2(context));
    });
    let clean = checked(TEST, "clean", || {
        cu!(cuInit(0));
        let context: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        let module = module(&ptx(READS));
        let stream: CUstream = get!(cuStreamCreate(0));
        cu!(cuStreamDestroy_v2(stream));
        cu!(cuModuleUnload(module));
        cu!(cuMemFree_v2(memory));
        cu!(cuCtxDestroy_v2(context));
    });
    if is_child {
        return;
    }
    for says in [
        "an allocation of 4096 bytes made by cuMemAlloc was never freed",
        "1 context made by cuCtxCreate was never destroyed",
        "1 module made by cuModuleLoad was never destroyed",
        "2 streams made by cuStreamCreate were never destroyed",
        "1 event made by cuEventCreate was never destroyed",
    ] {
        assert!(of_kind(&leaks, "leak", says).is_some(), "{says}: {leaks:#?}");
    }
    let before = "640 bytes made by cuMemAlloc was not freed before its context was destroyed";
    assert!(of_kind(&in_context, "leak", before).is_some(), "{in_context:#?}");
    assert!(clean.is_empty(), "{clean:#?}");
}
