//! Memory in stream order: charged while a stream holds it, and for memory that a pool keeps.

mod emulated;
mod support;

use std::ptr::null_mut;

use divvy_abi::*;
use emulated::{Gate, alone, code, context, cu, get, held};

const MIB: u64 = 1 << 20;
const MOMENT: std::time::Duration = std::time::Duration::from_micros(50);
const GIB: u64 = 1 << 30;

fn stream() -> CUstream {
    get!(cuStreamCreate(CU_STREAM_NON_BLOCKING.0))
}

#[test]
fn what_a_stream_has_not_freed_yet_is_still_charged() {
    alone("what_a_stream_has_not_freed_yet_is_still_charged", GIB, |slice| {
        static GATE: Gate = Gate::new();
        context();
        let stream = stream();
        let pointers: Vec<CUdeviceptr> = (0..4).map(|_| get!(cuMemAlloc_v2(200 << 20))).collect();
        GATE.block(stream);
        for pointer in &pointers {
            cu!(cuMemFreeAsync(*pointer, stream));
        }
        assert_eq!((slice.used(), held()), (800 * MIB, 800 * MIB));
        let mut other = 0;
        assert_eq!(
            code!(cuMemAlloc_v2(&raw mut other, 400 << 20)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        let (mut free, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!((free as u64, total as u64), (224 * MIB, GIB));
        // An allocation waits for frees that are about to happen.
        let opener = std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            GATE.open();
        });
        other = get!(cuMemAlloc_v2(400 << 20));
        opener.join().expect("no panic");
        cu!(cuStreamSynchronize(stream));
        assert_eq!((slice.used(), held()), (400 * MIB, 400 * MIB));
        cu!(cuMemFree_v2(other));
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

#[test]
fn a_loop_of_frees_behind_long_work_stays_within_the_slice() {
    alone(
        "a_loop_of_frees_behind_long_work_stays_within_the_slice",
        GIB,
        |slice| {
            static GATE: Gate = Gate::new();
            context();
            let stream = stream();
            GATE.block(stream);
            let mut granted = 0;
            for _ in 0..5 {
                let mut pointer = 0;
                if code!(cuMemAlloc_v2(&raw mut pointer, 256 << 20)) == CUDA_SUCCESS {
                    granted += 1;
                    cu!(cuMemFreeAsync(pointer, stream));
                }
                assert!(held() <= GIB);
                assert_eq!(slice.used(), held());
            }
            assert_eq!(granted, 4);
            GATE.open();
            cu!(cuCtxSynchronize());
            assert_eq!((slice.used(), held()), (0, 0));
        },
    );
}

#[test]
fn a_pool_is_charged_for_what_it_keeps() {
    alone("a_pool_is_charged_for_what_it_keeps", GIB, |slice| {
        context();
        let stream = stream();
        let pool: CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
        let mut all = u64::MAX;
        cu!(cuMemPoolSetAttribute(
            pool,
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            (&raw mut all).cast()
        ));
        let first: CUdeviceptr = get!(cuMemAllocAsync(500 << 20, stream));
        assert_eq!((slice.used(), held()), (500 * MIB, 500 * MIB));
        cu!(cuMemFreeAsync(first, stream));
        cu!(cuStreamSynchronize(stream));
        assert_eq!((slice.used(), held()), (500 * MIB, 500 * MIB), "kept");
        let again: CUdeviceptr = get!(cuMemAllocAsync(400 << 20, stream));
        assert_eq!((slice.used(), held()), (500 * MIB, 500 * MIB), "used again");
        // Freed at once, with the other kind of free.
        cu!(cuMemFree_v2(again));
        assert_eq!((slice.used(), held()), (500 * MIB, 500 * MIB));
        // If the pool might grow beyond the limit, it first gives up the memory that it keeps.
        let large: CUdeviceptr = get!(cuMemAllocAsync(700 << 20, stream));
        assert_eq!((slice.used(), held()), (700 * MIB, 700 * MIB));
        cu!(cuMemFree_v2(large));
        // Unused memory of a pool is released for an allocation that needs it.
        let other: CUdeviceptr = get!(cuMemAlloc_v2(800 << 20));
        assert_eq!((slice.used(), held()), (800 * MIB, 800 * MIB));
        cu!(cuMemFree_v2(other));
        let third: CUdeviceptr = get!(cuMemAllocAsync(100 << 20, stream));
        cu!(cuMemFreeAsync(third, stream));
        cu!(cuStreamSynchronize(stream));
        assert_eq!(slice.used(), 100 * MIB);
        cu!(cuMemPoolTrimTo(pool, 0));
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

#[test]
fn a_pool_of_the_programs_own_cannot_pass_the_limit() {
    alone("a_pool_of_the_programs_own_cannot_pass_the_limit", GIB, |slice| {
        context();
        let stream = stream();
        let mut properties = CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            ..Default::default()
        };
        properties.location.type_ = CU_MEM_LOCATION_TYPE_DEVICE;
        let pool: CUmemoryPool = get!(cuMemPoolCreate(&raw const properties));
        let mut pointer = 0;
        assert_eq!(
            code!(cuMemAllocFromPoolAsync(&raw mut pointer, 8 << 30, pool, stream)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        assert_eq!((slice.used(), held()), (0, 0));
        let held_one: CUdeviceptr = get!(cuMemAllocFromPoolAsync(1 << 30, pool, stream));
        assert_eq!(slice.used(), GIB);
        let mut one_more = 0;
        assert_eq!(
            code!(cuMemAllocFromPoolAsync_ptsz(
                &raw mut one_more,
                512,
                pool,
                null_mut()
            )),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        // A destroyed pool keeps the memory in use.
        cu!(cuMemPoolDestroy(pool));
        assert_eq!((slice.used(), held()), (GIB, GIB));
        cu!(cuMemFreeAsync(held_one, stream));
        cu!(cuStreamSynchronize(stream));
        assert_eq!((slice.used(), held()), (0, 0));
    });
}

#[test]
fn streams_and_contexts_that_end_leave_nothing_behind() {
    alone(
        "streams_and_contexts_that_end_leave_nothing_behind",
        GIB,
        |slice| {
            static GATES: [Gate; 3] = [Gate::new(), Gate::new(), Gate::new()];
            let first = context();
            // A destroyed stream still has its earlier frees to do.
            let gone = stream();
            GATES[0].block(gone);
            let pointer: CUdeviceptr = get!(cuMemAlloc_v2(64 << 20));
            cu!(cuMemFreeAsync(pointer, gone));
            cu!(cuStreamDestroy_v2(gone));
            assert_eq!((slice.used(), held()), (64 * MIB, 64 * MIB));
            GATES[0].open();
            cu!(cuCtxSynchronize());
            assert_eq!((slice.used(), held()), (0, 0));
            // Default streams: the common one, and each thread's own.
            GATES[1].block(null_mut());
            let pointer: CUdeviceptr = get!(cuMemAllocAsync(64 << 20, null_mut()));
            cu!(cuMemFreeAsync(pointer, null_mut()));
            let pointer: CUdeviceptr = get!(cuMemAllocAsync_ptsz(64 << 20, null_mut()));
            cu!(cuMemFreeAsync_ptsz(pointer, null_mut()));
            assert!(slice.used() >= 64 * MIB);
            assert!(slice.used() >= held());
            GATES[1].open();
            cu!(cuCtxSynchronize());
            assert_eq!((slice.used(), held()), (0, 0));
            // From another context and another thread; and then the context ends.
            let other = stream();
            let second = context();
            assert_ne!(first, second);
            let pointer: CUdeviceptr = get!(cuMemAllocAsync(64 << 20, other));
            cu!(cuMemFreeAsync(pointer, other));
            cu!(cuStreamSynchronize(other));
            assert_eq!((slice.used(), held()), (0, 0));
            let pooled: CUdeviceptr = get!(cuMemAllocAsync(64 << 20, null_mut()));
            let direct: CUdeviceptr = get!(cuMemAlloc_v2(32 << 20));
            let freed: CUdeviceptr = get!(cuMemAlloc_v2(16 << 20));
            cu!(cuMemFreeAsync(freed, null_mut()));
            assert_ne!(pooled, direct);
            cu!(cuCtxDestroy_v2(second));
            cu!(cuCtxSetCurrent(first));
            // A pool belongs to the device, and outlives a context.
            assert_eq!((slice.used(), held()), (64 * MIB, 64 * MIB));
            cu!(cuMemFree_v2(pooled));
            assert_eq!((slice.used(), held()), (0, 0));
            let last: CUdeviceptr = get!(cuMemAllocAsync(1 << 20, null_mut()));
            cu!(cuMemFreeAsync(last, null_mut()));
            cu!(cuCtxDestroy_v2(first));
            assert_eq!(slice.used(), 0);
        },
    );
}

#[test]
fn threads_in_stream_order_get_the_limit_and_no_more() {
    alone(
        "threads_in_stream_order_get_the_limit_and_no_more",
        GIB,
        |slice| {
            let context = context();
            let context = context as usize;
            std::thread::scope(|scope| {
                for thread in 0..4u64 {
                    scope.spawn(move || {
                        cu!(cuCtxSetCurrent(context as CUcontext));
                        let stream = stream();
                        let mut mine: Vec<CUdeviceptr> = Vec::new();
                        for round in 0..200u64 {
                            let bytes = ((thread * 7919 + round * 104_729) % 90 + 1) << 20;
                            let mut pointer = 0;
                            match code!(cuMemAllocAsync(&raw mut pointer, bytes as usize, stream)) {
                                CUDA_SUCCESS => mine.push(pointer),
                                code => assert_eq!(code, CUDA_ERROR_OUT_OF_MEMORY),
                            }
                            assert!(slice.used() <= GIB);
                            // The emulated pool counts memory as given up a moment before the device has it back.
                            assert!((0..10_000).any(|_| {
                                std::thread::sleep(MOMENT);
                                held() <= GIB
                            }));
                            if mine.len() > 3 {
                                cu!(cuMemFreeAsync(mine.remove(0), stream));
                            }
                        }
                        for pointer in mine {
                            cu!(cuMemFreeAsync(pointer, stream));
                        }
                    });
                }
            });
            cu!(cuCtxSynchronize());
            assert_eq!((slice.used(), held()), (0, 0));
        },
    );
}

#[test]
fn what_lies_beyond_the_share_is_freed_by_any_free() {
    alone("what_lies_beyond_the_share_is_freed_by_any_free", GIB, |slice| {
        let mut terms = slice.pages.grant.terms();
        terms.spill_limit_bytes = GIB;
        slice.pages.grant.set_terms(&terms);
        context();
        let all: [CUdeviceptr; 6] = [(); 6].map(|()| get!(cuMemAlloc_v2(300 << 20)));
        for pointer in all {
            cu!(cuMemFreeAsync(pointer, null_mut()));
        }
        cu!(cuCtxSynchronize());
        assert_eq!((slice.used(), held()), (0, 0));
        let again: [CUdeviceptr; 6] = [(); 6].map(|()| get!(cuMemAlloc_v2(300 << 20)));
        for pointer in again {
            cu!(cuMemFree_v2(pointer));
        }
        assert_eq!((slice.used(), held()), (0, 0));
    });
}
