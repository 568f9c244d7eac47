//! What a failing kernel does to its context, and that it does nothing to others.

mod common;

use common::{
    POKE, VECTOR_ADD, alone, both, code, cu, download, function, get, launch, module, param, process, role,
    start, upload,
};
use divvy_abi::*;
use std::ptr::null_mut;

/// Stores far outside any allocation.
fn fail() {
    let poke = function(module(POKE), c"poke");
    let nowhere = 0x10u64;
    assert_eq!(
        launch(poke, 1, 1, null_mut(), &mut [param(&nowhere)]),
        CUDA_SUCCESS
    );
    assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
}

#[test]
fn an_illegal_address_is_sticky_for_its_context_alone() {
    alone("an_illegal_address_is_sticky_for_its_context_alone", &[], || {
        let other: CUcontext = {
            cu!(cuInit(0));
            get!(cuCtxCreate_v2(0, 0))
        };
        let kept = upload(&[5u32]);
        start(0);
        let stream: CUstream = get!(cuStreamCreate(0));
        let event: CUevent = get!(cuEventCreate(0));
        let memory = upload(&[0u32; 4]);
        fail();
        let sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
        let mut value = 0u32;
        assert_eq!(code!(cuMemAlloc_v2(&mut 0, 16)), sticky);
        assert_eq!(code!(cuMemFree_v2(memory)), sticky);
        assert_eq!(code!(cuMemcpyDtoH_v2((&raw mut value).cast(), memory, 4)), sticky);
        assert_eq!(code!(cuMemsetD8Async(memory, 0, 4, stream)), sticky);
        assert_eq!(code!(cuStreamSynchronize(stream)), sticky);
        assert_eq!(code!(cuStreamQuery(stream)), sticky);
        assert_eq!(code!(cuEventRecord(event, stream)), sticky);
        assert_eq!(code!(cuEventSynchronize(event)), sticky);
        assert_eq!(
            code!(cuModuleLoadData(&mut null_mut(), VECTOR_ADD.as_ptr().cast())),
            sticky
        );
        assert_eq!(code!(cuMemGetInfo_v2(&mut 0, &mut 0)), sticky);
        // Another context of the same process is untouched.
        cu!(cuCtxSetCurrent(other));
        assert_eq!(download::<u32>(kept, 1), [5]);
        // A new life of the primary context is clean.
        cu!(cuDevicePrimaryCtxReset_v2(0));
        start(0);
        assert_eq!(download::<u32>(upload(&[6u32]), 1), [6]);
        cu!(cuCtxSynchronize());
    });
}

#[test]
fn work_behind_a_failure_is_not_done() {
    alone("work_behind_a_failure_is_not_done", &[], || {
        start(0);
        let pinned: *mut c_void = get!(cuMemHostAlloc(4, 0));
        // SAFETY: the allocation has four bytes.
        unsafe { pinned.cast::<u32>().write(9) };
        let poke = function(module(POKE), c"poke");
        let nowhere = 0x10u64;
        let target = pinned as u64;
        assert_eq!(
            launch(poke, 1, 1, null_mut(), &mut [param(&nowhere)]),
            CUDA_SUCCESS
        );
        // This one would be legal, and is queued or refused, but never runs.
        let _ = launch(poke, 1, 1, null_mut(), &mut [param(&target)]);
        assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
        // SAFETY: as above; nothing writes to it any more.
        assert_eq!(unsafe { pinned.cast::<u32>().read() }, 9);
    });
}

#[test]
fn freed_memory_and_foreign_memory_are_out_of_bounds() {
    for what in ["freed", "end", "host", "peer"] {
        alone(
            "freed_memory_and_foreign_memory_are_out_of_bounds",
            &[("DIVVY_EMULATED", "l4*2"), ("CASE", what)],
            || {
                start(1);
                let peer = upload(&[0u32]);
                start(0);
                let memory = upload(&[0u32; 128]);
                let local = 0u32;
                let target = match what {
                    "freed" => {
                        cu!(cuMemFree_v2(memory));
                        memory
                    }
                    "end" => memory + 512,
                    "host" => &raw const local as u64,
                    _ => peer,
                };
                let poke = function(module(POKE), c"poke");
                assert_eq!(
                    launch(poke, 1, 1, null_mut(), &mut [param(&target)]),
                    CUDA_SUCCESS
                );
                assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS, "{what}");
            },
        );
    }
}

#[test]
fn peers_reach_each_other_when_asked_to() {
    alone(
        "peers_reach_each_other_when_asked_to",
        &[("DIVVY_EMULATED", "l4*2")],
        || {
            let other = start(1);
            let target = upload(&[0u32]);
            let own = start(0);
            let can: i32 = get!(cuDeviceCanAccessPeer(0, 1));
            assert_eq!(can, 1);
            cu!(cuCtxEnablePeerAccess(other, 0));
            assert_eq!(
                code!(cuCtxEnablePeerAccess(other, 0)),
                CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
            );
            assert_eq!(code!(cuCtxEnablePeerAccess(own, 0)), CUDA_ERROR_INVALID_DEVICE);
            let poke = function(module(POKE), c"poke");
            assert_eq!(
                launch(poke, 1, 1, null_mut(), &mut [param(&target)]),
                CUDA_SUCCESS
            );
            cu!(cuCtxSynchronize());
            assert_eq!(download::<u32>(target, 1), [1]);
        },
    );
}

#[test]
fn a_trap_and_a_misaligned_store_have_codes_of_their_own() {
    for (case, instruction, expected) in [
        ("trap", "trap;", CUDA_ERROR_LAUNCH_FAILED),
        (
            "misaligned",
            "add.u64 %rd1, %rd1, 1;",
            CUDA_ERROR_MISALIGNED_ADDRESS,
        ),
    ] {
        alone(
            "a_trap_and_a_misaligned_store_have_codes_of_their_own",
            &[("CASE", case)],
            || {
                start(0);
                let text = POKE.replace("mov.u32 %r1, 1;", &format!("mov.u32 %r1, 1;\n    {instruction}"));
                let poke = function(module(&text), c"poke");
                let target = upload(&[0u32; 4]);
                assert_eq!(
                    launch(poke, 1, 1, null_mut(), &mut [param(&target)]),
                    CUDA_SUCCESS
                );
                assert_eq!(code!(cuCtxSynchronize()), expected);
            },
        );
    }
}

#[test]
fn other_processes_go_on() {
    let test = "other_processes_go_on";
    match role().as_deref() {
        Some("failing") => {
            start(0);
            return fail();
        }
        Some(_) => {}
        None => return alone(test, &[], || {}),
    }
    let directory = std::env::var("DIVVY_RUN_DIR").unwrap();
    start(0);
    let memory = upload(&[1.0f32; 64]);
    let output = process(test, "failing", &directory).output().unwrap();
    assert!(output.status.success(), "{}", both(&output));
    assert!(
        both(&output).contains("CUDA_ERROR_ILLEGAL_ADDRESS: illegal write at 0x10 in kernel `poke`"),
        "{}",
        both(&output)
    );
    let add = function(module(VECTOR_ADD), c"add");
    let n = 64u32;
    let mut params = [param(&memory), param(&memory), param(&memory), param(&n)];
    assert_eq!(launch(add, 1, 64, null_mut(), &mut params), CUDA_SUCCESS);
    assert_eq!(download::<f32>(memory, 64), [2.0; 64]);
}

#[test]
fn bogus_handles_are_found_out() {
    alone("bogus_handles_are_found_out", &[], || {
        start(0);
        let module = module(POKE);
        let stream: CUstream = get!(cuStreamCreate(0));
        cu!(cuStreamDestroy_v2(stream));
        for bogus in [
            3usize,
            0x7fff_dead_beef,
            usize::MAX,
            module as usize,
            stream as usize,
        ] {
            let pointer = bogus as *mut c_void;
            assert_eq!(
                code!(cuStreamSynchronize(pointer.cast())),
                CUDA_ERROR_INVALID_HANDLE,
                "{bogus:#x}"
            );
            assert_eq!(
                code!(cuStreamDestroy_v2(pointer.cast())),
                CUDA_ERROR_INVALID_HANDLE
            );
            assert_eq!(code!(cuEventQuery(pointer.cast())), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(
                code!(cuEventDestroy_v2(pointer.cast())),
                CUDA_ERROR_INVALID_HANDLE
            );
            assert_eq!(code!(cuCtxSetCurrent(pointer.cast())), CUDA_ERROR_INVALID_CONTEXT);
            assert_eq!(
                code!(cuCtxPushCurrent_v2(pointer.cast())),
                CUDA_ERROR_INVALID_CONTEXT
            );
            assert_eq!(code!(cuLibraryUnload(pointer.cast())), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(code!(cuLinkDestroy(pointer.cast())), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(code!(cuMemPoolDestroy(pointer.cast())), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(
                launch(pointer.cast(), 1, 1, null_mut(), &mut []),
                CUDA_ERROR_INVALID_HANDLE
            );
            let name = c"poke".as_ptr();
            let found = code!(cuModuleGetFunction(&mut null_mut(), pointer.cast(), name));
            let expected = if bogus == module as usize {
                CUDA_SUCCESS
            } else {
                CUDA_ERROR_INVALID_HANDLE
            };
            assert_eq!(found, expected);
        }
        // A function of one context is none of another's.
        let poke = function(module, c"poke");
        let _own: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let zero = 0u64;
        assert_eq!(
            launch(poke, 1, 1, null_mut(), &mut [param(&zero)]),
            CUDA_ERROR_INVALID_HANDLE
        );
    });
}

/// A context that is destroyed ends the kernel that it runs, and another context goes on.
#[test]
fn destroying_a_context_ends_a_kernel_that_never_ends() {
    const SPIN: &str = r"
.version 8.0
.target sm_80
.address_size 64
.visible .entry spin() { LOOP: bra LOOP; }
";
    alone("destroying_a_context_ends_a_kernel_that_never_ends", &[], || {
        cu!(cuInit(0));
        let other: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let kept = upload(&[5u32]);
        let spinning: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let spin = function(module(SPIN), c"spin");
        assert_eq!(launch(spin, 1, 1, null_mut(), &mut []), CUDA_SUCCESS);
        assert_eq!(launch(spin, 300, 64, null_mut(), &mut []), CUDA_SUCCESS);
        cu!(cuCtxDestroy_v2(spinning));
        cu!(cuCtxSetCurrent(other));
        assert_eq!(download::<u32>(kept, 1), [5]);
        // The primary context too.
        start(0);
        let spin = function(module(SPIN), c"spin");
        assert_eq!(launch(spin, 1, 1, null_mut(), &mut []), CUDA_SUCCESS);
        cu!(cuDevicePrimaryCtxReset_v2(0));
        start(0);
        assert_eq!(download::<u32>(upload(&[6u32]), 1), [6]);
        cu!(cuCtxSynchronize());
    });
}

/// A failed assertion has a code of its own.
#[test]
fn a_failed_assertion_is_710() {
    const ASSERT: &str = r"
.version 8.0
.target sm_80
.address_size 64
.global .align 1 .b8 what[2] = {120, 0};
.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);
.visible .entry fails()
{
 .reg .b64 %x;
 { .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 n; .param .b64 s;
   mov.u64 %x, what; st.param.b64 [m], %x; st.param.b64 [f], %x; st.param.b32 [l], 47; st.param.b64 [n], %x;
   st.param.b64 [s], 1; call __assertfail, (m, f, l, n, s); }
 ret;
}
";
    alone("a_failed_assertion_is_710", &[], || {
        start(0);
        let fails = function(module(ASSERT), c"fails");
        assert_eq!(launch(fails, 1, 1, null_mut(), &mut []), CUDA_SUCCESS);
        assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ASSERT);
        assert_eq!(CUDA_ERROR_ASSERT.0, 710);
    });
}
