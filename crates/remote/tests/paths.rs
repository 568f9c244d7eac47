//! The paths of copies: which one a transfer takes, how often its bytes are copied, and what pinned memory is.

mod common;

use std::sync::atomic::Ordering;

use common::{alone, code, connect, connect_shared, cu, get, start};
use divvy_abi::*;
use divvy_remote::server::{Quota, Traffic};

const LARGE: usize = 3_000_001;

fn quota() -> Quota {
    Quota {
        message: 1 << 16,
        area: 1 << 26,
        ..Quota::default()
    }
}

/// There and back, once in order and once on a stream: what comes is what went.
fn there_and_back(to: &mut [u8], from: &[u8]) {
    let bytes = from.len();
    let memory: CUdeviceptr = get!(cuMemAlloc_v2(bytes.max(1)));
    let stream: CUstream = get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0));
    for on_stream in [false, true] {
        to.fill(0);
        if on_stream {
            cu!(cuMemcpyHtoDAsync_v2(memory, from.as_ptr().cast(), bytes, stream));
            cu!(cuMemcpyDtoHAsync_v2(
                to.as_mut_ptr().cast(),
                memory,
                bytes,
                stream
            ));
            cu!(cuStreamSynchronize(stream));
        } else {
            cu!(cuMemcpyHtoD_v2(memory, from.as_ptr().cast(), bytes));
            cu!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), memory, bytes));
        }
        assert!(to == from, "{bytes} bytes, on a stream: {on_stream}");
        cu!(cuMemsetD8_v2(memory, 9, bytes));
    }
    cu!(cuStreamDestroy_v2(stream));
    cu!(cuMemFree_v2(memory));
}

fn numbers(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Pinned memory of so many bytes, as a slice.
fn pinned(bytes: usize) -> &'static mut [u8] {
    let memory: *mut c_void = get!(cuMemHostAlloc(bytes, 0));
    // SAFETY: it is as long as was asked for, and this test frees it when it no longer uses the slice.
    unsafe { std::slice::from_raw_parts_mut(memory.cast(), bytes) }
}

#[test]
fn each_path_copies_as_often_as_it_says() {
    alone("each_path_copies_as_often_as_it_says", || {
        let (server, counts) = connect_shared(quota());
        start(0);
        let mut before = Traffic::default();
        let mut since = || {
            let now = server.traffic();
            let passed = Traffic {
                inline: now.inline - before.inline,
                staged: now.staged - before.staged,
                shared: now.shared - before.shared,
                bypass: now.bypass - before.bypass,
            };
            before = now;
            passed
        };
        let moved = 4 * LARGE as u64;

        let mut to = vec![0; LARGE];
        there_and_back(&mut to, &numbers(LARGE));
        let staged = since();
        assert_eq!(
            (staged.staged, staged.copies_per_byte()),
            (moved, 2.0),
            "{staged:?}"
        );

        let (from, to) = (pinned(LARGE), pinned(LARGE));
        from.copy_from_slice(&numbers(LARGE));
        counts.log.lock().unwrap().clear();
        there_and_back(to, from);
        let bypass = since();
        assert_eq!(
            (bypass.bypass, bypass.copies_per_byte()),
            (moved, 0.0),
            "{bypass:?}"
        );
        let messages = counts.log.lock().unwrap().len();
        assert!(messages < 12, "one for each copy: {messages}");

        there_and_back(&mut to[..100], &from[..100]);
        assert_eq!(since().bypass, 400, "also where it is small");
        there_and_back(&mut [0; 100], &numbers(100));
        assert_eq!(since().inline, 400);
        cu!(cuMemFreeHost(from.as_mut_ptr().cast()));
        cu!(cuMemFreeHost(to.as_mut_ptr().cast()));
    });
}

#[test]
fn memory_that_the_device_does_not_pin_is_copied_once() {
    alone("memory_that_the_device_does_not_pin_is_copied_once", || {
        let most = 1 << 20;
        let (server, _) = connect_shared(Quota {
            pinned: most,
            ..quota()
        });
        start(0);
        let within = pinned(most as usize);
        let (from, to) = (pinned(LARGE), pinned(LARGE));
        from.copy_from_slice(&numbers(LARGE));
        there_and_back(to, from);
        let traffic = server.traffic();
        assert_eq!(
            (traffic.shared, traffic.copies_per_byte()),
            (4 * LARGE as u64, 1.0),
            "{traffic:?}"
        );
        let mut device = 0;
        assert_eq!(
            code!(cuMemHostGetDevicePointer_v2(
                &raw mut device,
                from.as_mut_ptr().cast(),
                0
            )),
            CUDA_ERROR_NOT_SUPPORTED,
            "the device does not reach it"
        );
        cu!(cuMemFreeHost(within.as_mut_ptr().cast()));
        let again = pinned(100);
        cu!(cuMemHostGetDevicePointer_v2(
            &raw mut device,
            again.as_mut_ptr().cast(),
            0
        ));
    });
}

#[test]
fn pinned_memory_is_the_programs_and_the_devices() {
    alone("pinned_memory_is_the_programs_and_the_devices", || {
        let (server, _) = connect_shared(quota());
        let mut nothing = std::ptr::null_mut();
        cu!(cuInit(0));
        assert_eq!(
            code!(cuMemHostAlloc(&raw mut nothing, 100, 0)),
            CUDA_ERROR_INVALID_CONTEXT
        );
        start(0);
        let memory = pinned(10_000);
        let at = memory.as_mut_ptr();
        let device: CUdeviceptr = get!(cuMemHostGetDevicePointer_v2(at.wrapping_add(5).cast(), 0));
        cu!(cuMemsetD8_v2(device, 0x5a, 3));
        cu!(cuCtxSynchronize());
        // SAFETY: the device wrote these bytes, and no reference to them is used meanwhile.
        assert_eq!(unsafe { at.add(5).cast::<[u8; 3]>().read_volatile() }, [0x5a; 3]);
        assert_eq!(
            code!(cuMemsetD8_v2(device, 0, 12_289)),
            CUDA_ERROR_INVALID_VALUE,
            "beyond its pages"
        );
        let flags: u32 = get!(cuMemHostGetFlags(at.cast()));
        assert_eq!(flags, CU_MEMHOSTALLOC_DEVICEMAP);
        let inside = at.wrapping_add(5).cast();
        assert_eq!(
            code!(cuMemFreeHost(inside)),
            CUDA_ERROR_INVALID_VALUE,
            "not its beginning"
        );
        cu!(cuMemFreeHost(at.cast()));
        assert_eq!(code!(cuMemFreeHost(at.cast())), CUDA_ERROR_INVALID_VALUE, "once");
        assert_eq!(
            code!(cuMemsetD8_v2(device, 0, 1)),
            CUDA_ERROR_INVALID_VALUE,
            "it is gone"
        );
        assert_eq!(server.held().1, 0);
        let next = pinned(10_000);
        assert!(
            next.iter().all(|byte| *byte == 0),
            "what was freed is not handed out"
        );
        assert_eq!(
            code!(cuMemHostAlloc(&raw mut nothing, 1 << 27, 0)),
            CUDA_ERROR_OUT_OF_MEMORY,
            "more than the area"
        );
        assert_eq!(
            code!(cuMemHostAlloc(&raw mut nothing, 1, 0x80)),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn memory_of_the_program_is_registered_once_and_stays_where_it_is() {
    alone(
        "memory_of_the_program_is_registered_once_and_stays_where_it_is",
        || {
            connect_shared(quota());
            start(0);
            let mut own = numbers(100_000);
            let at: *mut c_void = own.as_mut_ptr().cast();
            cu!(cuMemHostRegister_v2(at, 100_000, 0));
            assert_eq!(
                code!(cuMemHostRegister_v2(at.wrapping_byte_add(10), 10, 0)),
                CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
            );
            let mut to = vec![0; 100_000];
            there_and_back(&mut to, &own);
            let mut device = 0;
            assert_eq!(
                code!(cuMemHostGetDevicePointer_v2(&raw mut device, at, 0)),
                CUDA_ERROR_NOT_SUPPORTED
            );
            cu!(cuMemHostUnregister(at));
            assert_eq!(
                code!(cuMemHostUnregister(at)),
                CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
            );
            assert_eq!(
                code!(cuMemHostRegister_v2(at, 10, CU_MEMHOSTREGISTER_DEVICEMAP)),
                CUDA_ERROR_NOT_SUPPORTED
            );
        },
    );
}

#[test]
fn addresses_of_either_kind_are_copied_by_what_they_are() {
    alone("addresses_of_either_kind_are_copied_by_what_they_are", || {
        connect_shared(quota());
        start(0);
        let (own, mut to) = (numbers(50_000), vec![0; 50_000]);
        let (first, second): (CUdeviceptr, CUdeviceptr) =
            (get!(cuMemAlloc_v2(50_000)), get!(cuMemAlloc_v2(50_000)));
        let address = |at: *const u8| at.expose_provenance() as CUdeviceptr;
        cu!(cuMemcpy(first, address(own.as_ptr()), 50_000));
        cu!(cuMemcpyAsync(second, first, 50_000, std::ptr::null_mut()));
        cu!(cuMemcpy(address(to.as_mut_ptr()), second, 50_000));
        assert!(to == own);
        to.fill(0);
        cu!(cuMemcpy(address(to.as_mut_ptr()), address(own.as_ptr()), 50_000));
        assert!(to == own);
    });
}

/// The driver below gives addresses of this process's own memory, as a hostile server could. A copy that took them for the
/// program's would be made here, and the server would not hear of it.
#[test]
fn device_memory_is_not_the_programs_whatever_the_server_says() {
    alone(
        "device_memory_is_not_the_programs_whatever_the_server_says",
        || {
            let (server, counts) = connect_shared(quota());
            start(0);
            counts.denies.store(true, Ordering::Relaxed);
            let (own, mut to) = (numbers(50_000), vec![0; 50_000]);
            let address = |at: *const u8| at.expose_provenance() as CUdeviceptr;
            let device: CUdeviceptr = get!(cuMemAlloc_v2(50_000));
            cu!(cuMemcpy(device, address(own.as_ptr()), 50_000));
            assert_eq!(server.traffic().bytes(), 50_000);
            cu!(cuMemcpy(address(to.as_mut_ptr()), device + 10_000, 40_000));
            assert_eq!(server.traffic().bytes(), 90_000);
            assert!(to[..40_000] == own[10_000..]);
            let second: CUdeviceptr = get!(cuMemAllocAsync(50_000, std::ptr::null_mut()));
            cu!(cuMemcpyAsync(second + 100, device, 40_000, std::ptr::null_mut()));
            assert!(
                counts
                    .log
                    .lock()
                    .unwrap()
                    .iter()
                    .any(|line| line.contains("cuMemcpyDtoDAsync"))
            );
            // What is freed may be the program's own next time.
            cu!(cuMemFree_v2(device));
            cu!(cuMemFreeAsync(second, std::ptr::null_mut()));
            counts.denies.store(false, Ordering::Relaxed);
            cu!(cuMemcpy(address(to.as_mut_ptr()), address(own.as_ptr()), 50_000));
            assert!(to == own);
        },
    );
}

#[test]
fn without_shared_memory_copies_go_in_messages_and_nothing_is_pinned() {
    alone(
        "without_shared_memory_copies_go_in_messages_and_nothing_is_pinned",
        || {
            let (server, _) = connect(5000);
            start(0);
            let mut to = vec![0; 40_000];
            there_and_back(&mut to, &numbers(40_000));
            assert_eq!(server.traffic().inline, 160_000);
            // What a program asks to be pinned is plain memory, and its copies go in messages too.
            let memory = pinned(40_000);
            there_and_back(memory, &numbers(40_000));
            assert_eq!(server.traffic().inline, 320_000);
            let mut device = 0;
            let start = memory.as_mut_ptr().cast();
            assert_eq!(
                code!(cuMemHostGetDevicePointer_v2(&raw mut device, start, 0)),
                CUDA_ERROR_NOT_SUPPORTED
            );
            cu!(cuMemFreeHost(start));
            assert_eq!(code!(cuMemFreeHost(start)), CUDA_ERROR_INVALID_VALUE);
        },
    );
}

/// As numba-cuda does when it resets a device.
#[test]
fn pinned_memory_is_freed_without_a_current_context() {
    alone("pinned_memory_is_freed_without_a_current_context", || {
        let (server, _) = connect_shared(quota());
        start(0);
        let memory = pinned(10_000);
        cu!(cuCtxSetCurrent(std::ptr::null_mut()));
        cu!(cuMemFreeHost(memory.as_mut_ptr().cast()));
        assert_eq!(server.held().1, 0);
        let context: CUcontext = get!(cuCtxGetCurrent());
        assert!(context.is_null(), "none is current still");

        // The context that it was made in is gone, and nothing is registered any more.
        let context: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let memory = pinned(10_000);
        cu!(cuCtxDestroy_v2(context));
        cu!(cuCtxSetCurrent(std::ptr::null_mut()));
        cu!(cuMemFreeHost(memory.as_mut_ptr().cast()));
    });
}
