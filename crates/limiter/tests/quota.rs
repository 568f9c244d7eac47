//! A process in a slice: what it may allocate, which sizes it sees, and what comes back.

mod support;

use std::ptr::null_mut;

use divvy_abi::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS,
    CUdeviceptr, CUresult,
};
use divvy_limiter::{TABLE, below};
use support::{DEVICE_BYTES, LIVE, MEMORY, NARROW_PITCH, PITCH, Slice, live_bytes};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn allocate(bytes: u64) -> Result<CUdeviceptr, CUresult> {
    let mut pointer = 0;
    // SAFETY: a valid out-parameter.
    unsafe { (TABLE.cuMemAlloc_v2)(&raw mut pointer, bytes as usize) }.ok()?;
    Ok(pointer)
}

fn free(pointer: CUdeviceptr) -> CUresult {
    // SAFETY: the driver below checks the pointer.
    unsafe { (TABLE.cuMemFree_v2)(pointer) }
}

fn free_async(pointer: CUdeviceptr) -> CUresult {
    // SAFETY: the driver below checks the pointer.
    unsafe { (TABLE.cuMemFreeAsync)(pointer, null_mut()) }
}

fn info() -> (u64, u64) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: valid out-parameters.
    let result = unsafe { (TABLE.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
    assert_eq!(result, CUDA_SUCCESS);
    (free as u64, total as u64)
}

/// A process has one slice for life, so the scenarios of this process run one after the other.
#[test]
fn a_process_in_a_slice() {
    below::stand_on(&MEMORY);
    let slice = Slice::new(GIB);
    slice.enter();
    every_way_to_allocate_is_charged_and_every_free_returns_it(&slice);
    the_older_interface_is_charged_and_shows_the_slice(&slice);
    over_the_limit_is_out_of_memory_and_touches_nothing(&slice);
    what_fails_below_is_rolled_back(&slice);
    the_slice_is_what_the_program_sees(&slice);
    bogus_frees_get_the_drivers_own_code(&slice);
    a_destroyed_context_returns_what_went_with_it(&slice);
    threads_racing_get_the_limit_exactly(&slice);
    a_forked_child_does_no_harm(&slice);
}

fn every_way_to_allocate_is_charged_and_every_free_returns_it(slice: &Slice) {
    let bytes = (3 * MIB) as usize;
    type Allocation = unsafe fn(*mut CUdeviceptr, usize) -> CUresult;
    let ways: [(&str, Allocation); 7] = [
        // SAFETY: a valid out-parameter; so below.
        ("cuMemAlloc_v2", |out, bytes| unsafe {
            (TABLE.cuMemAlloc_v2)(out, bytes)
        }),
        // SAFETY: as above.
        ("cuMemAllocManaged", |out, bytes| unsafe {
            (TABLE.cuMemAllocManaged)(out, bytes, 1)
        }),
        // SAFETY: as above.
        ("cuMemAllocAsync", |out, bytes| unsafe {
            (TABLE.cuMemAllocAsync)(out, bytes, null_mut())
        }),
        // SAFETY: as above.
        ("cuMemAllocAsync_ptsz", |out, bytes| unsafe {
            (TABLE.cuMemAllocAsync_ptsz)(out, bytes, null_mut())
        }),
        // SAFETY: as above.
        ("cuMemAllocFromPoolAsync", |out, bytes| unsafe {
            (TABLE.cuMemAllocFromPoolAsync)(out, bytes, null_mut(), null_mut())
        }),
        // SAFETY: as above.
        ("cuMemAllocFromPoolAsync_ptsz", |out, bytes| unsafe {
            (TABLE.cuMemAllocFromPoolAsync_ptsz)(out, bytes, null_mut(), null_mut())
        }),
        ("cuMemAllocPitch_v2", |out, bytes| {
            let mut pitch = 0;
            // SAFETY: as above.
            unsafe { (TABLE.cuMemAllocPitch_v2)(out, &raw mut pitch, bytes / 3, 3, 4) }
        }),
    ];
    for (name, way) in ways {
        for release in [free, free_async] {
            let mut pointer = 0;
            // SAFETY: a valid out-parameter.
            assert_eq!(unsafe { way(&raw mut pointer, bytes) }, CUDA_SUCCESS, "{name}");
            assert_eq!(slice.used(), 3 * MIB, "{name}");
            assert_eq!(slice.used(), live_bytes(), "{name}");
            assert_eq!(release(pointer), CUDA_SUCCESS, "{name}");
            assert_eq!((slice.used(), live_bytes()), (0, 0), "{name}");
        }
    }
    // The driver's own pitch is charged.
    let (mut pointer, mut pitch) = (0, 0);
    // SAFETY: valid out-parameters.
    let result = unsafe { (TABLE.cuMemAllocPitch_v2)(&raw mut pointer, &raw mut pitch, 100, 10, 4) };
    assert_eq!(result, CUDA_SUCCESS);
    assert_eq!(slice.used(), PITCH * 10);
    free(pointer);
    assert_eq!(slice.used(), 0);
}

fn the_older_interface_is_charged_and_shows_the_slice(slice: &Slice) {
    let (mut pointer, mut pitch, mut room, mut total) = (0, 0, 0, 0);
    // SAFETY: valid out-parameters, here and below.
    unsafe {
        assert_eq!((TABLE.cuMemAlloc)(&raw mut pointer, 3 * MIB as u32), CUDA_SUCCESS);
        assert_eq!(slice.used(), 3 * MIB);
        assert_eq!((TABLE.cuMemGetInfo)(&raw mut room, &raw mut total), CUDA_SUCCESS);
        assert_eq!((u64::from(room), u64::from(total)), (GIB - 3 * MIB, GIB));
        assert_eq!((TABLE.cuDeviceTotalMem)(&raw mut total, 0), CUDA_SUCCESS);
        assert_eq!(u64::from(total), GIB);
        // Freed through the newer interface.
        assert_eq!(free(pointer.into()), CUDA_SUCCESS);
        let result = (TABLE.cuMemAllocPitch)(&raw mut pointer, &raw mut pitch, 100, 40, 4);
        assert_eq!((result, u64::from(pitch)), (CUDA_SUCCESS, NARROW_PITCH));
        assert_eq!(slice.used(), NARROW_PITCH * 40);
        assert_eq!((TABLE.cuMemFree)(pointer), CUDA_SUCCESS);
    }
    assert_eq!(slice.used(), 0);
    // A size that does not fit 32 bits shows as their maximum.
    slice.pages.grant.set_memory_limit_bytes(DEVICE_BYTES);
    // SAFETY: as above.
    let result = unsafe { (TABLE.cuMemGetInfo)(&raw mut room, &raw mut total) };
    assert_eq!(result, CUDA_SUCCESS);
    assert_eq!((room, total), (u32::MAX, u32::MAX));
    slice.pages.grant.set_memory_limit_bytes(GIB);
}

fn over_the_limit_is_out_of_memory_and_touches_nothing(slice: &Slice) {
    let held = allocate(GIB - MIB).expect("it fits");
    let mut pointer = 0xdead_beef;
    for bytes in [MIB + 1, 2 * MIB, GIB, 1 << 40, u64::MAX - 511, u64::MAX] {
        // SAFETY: a valid out-parameter.
        let result = unsafe { (TABLE.cuMemAlloc_v2)(&raw mut pointer, bytes as usize) };
        assert_eq!(result, CUDA_ERROR_OUT_OF_MEMORY, "{bytes}");
        assert_eq!(pointer, 0xdead_beef);
    }
    let mut pitch = 1;
    // SAFETY: valid out-parameters.
    let result = unsafe {
        (TABLE.cuMemAllocPitch_v2)(
            &raw mut pointer,
            &raw mut pitch,
            usize::MAX / 2,
            usize::MAX / 2,
            4,
        )
    };
    assert_eq!(
        (result, pointer, pitch),
        (CUDA_ERROR_OUT_OF_MEMORY, 0xdead_beef, 1)
    );
    // It fits by the usual pitch, but not by the driver's: it is given back.
    // SAFETY: valid out-parameters.
    let result = unsafe { (TABLE.cuMemAllocPitch_v2)(&raw mut pointer, &raw mut pitch, 512, 2000, 4) };
    assert_eq!(result, CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!((slice.used(), live_bytes()), (GIB - MIB, GIB - MIB));
    let last = allocate(MIB).expect("exactly the rest");
    assert_eq!(free(last), CUDA_SUCCESS);
    assert_eq!(free(held), CUDA_SUCCESS);
    assert_eq!(slice.used(), 0);
}

fn what_fails_below_is_rolled_back(slice: &Slice) {
    assert_eq!(allocate(0), Err(CUDA_ERROR_INVALID_VALUE));
    slice.pages.grant.set_memory_limit_bytes(2 * DEVICE_BYTES);
    assert_eq!(allocate(DEVICE_BYTES + 512), Err(CUDA_ERROR_OUT_OF_MEMORY));
    slice.pages.grant.set_memory_limit_bytes(GIB);
    assert_eq!(slice.used(), 0);
}

fn the_slice_is_what_the_program_sees(slice: &Slice) {
    assert_eq!(info(), (GIB, GIB));
    let held = allocate(GIB / 4).expect("it fits");
    assert_eq!(info(), (GIB - GIB / 4, GIB));
    let mut total = 0;
    // SAFETY: a valid out-parameter.
    let result = unsafe { (TABLE.cuDeviceTotalMem_v2)(&raw mut total, 0) };
    assert_eq!(result, CUDA_SUCCESS);
    assert_eq!(total as u64, GIB);
    // A limit below the use: no free memory, and no underflow.
    slice.pages.grant.set_memory_limit_bytes(GIB / 8);
    assert_eq!(info(), (0, GIB / 8));
    assert_eq!(allocate(512), Err(CUDA_ERROR_OUT_OF_MEMORY));
    // The device's own free memory is less.
    slice.pages.grant.set_memory_limit_bytes(4 * DEVICE_BYTES);
    assert_eq!(info(), (DEVICE_BYTES - GIB / 4, DEVICE_BYTES));
    slice.pages.grant.set_memory_limit_bytes(GIB);
    free(held);
}

fn bogus_frees_get_the_drivers_own_code(slice: &Slice) {
    let held = allocate(MIB).expect("it fits");
    assert_eq!(free(0), CUDA_SUCCESS);
    assert_eq!(free(held + 512), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free(0x1234_5600), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(slice.used(), MIB);
    assert_eq!(free(held), CUDA_SUCCESS);
    assert_eq!(free(held), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(slice.used(), 0);
    // If the driver refuses a free, the charge stays.
    let held = allocate(MIB).expect("it fits");
    let hidden = LIVE.lock().expect("no test panics inside").remove(&held);
    assert_eq!(free(held), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(slice.used(), MIB);
    LIVE.lock()
        .expect("no test panics inside")
        .extend(hidden.map(|bytes| (held, bytes)));
    assert_eq!(free(held), CUDA_SUCCESS);
    assert_eq!(slice.used(), 0);
}

fn a_destroyed_context_returns_what_went_with_it(slice: &Slice) {
    for _ in 0..500 {
        allocate(MIB).expect("it fits");
    }
    assert_eq!(slice.used(), 500 * MIB);
    // SAFETY: the driver below looks at no context.
    assert_eq!(unsafe { (TABLE.cuCtxDestroy_v2)(null_mut()) }, CUDA_SUCCESS);
    assert_eq!(slice.used(), 0);
    // An address that comes back without a visible free is not charged twice.
    allocate(MIB).expect("it fits");
    LIVE.lock().expect("no test panics inside").clear();
    let again = allocate(2 * MIB).expect("it fits");
    assert_eq!(slice.used(), 2 * MIB);
    free(again);
    assert_eq!(slice.used(), 0);
}

fn threads_racing_get_the_limit_exactly(slice: &Slice) {
    for request in [MIB, 16 * MIB, 100 * MIB] {
        let granted: Vec<CUdeviceptr> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(move || std::iter::from_fn(|| allocate(request).ok()).collect::<Vec<_>>())
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        assert_eq!(granted.len() as u64, GIB / request);
        assert_eq!(slice.used(), live_bytes());
        for pointer in granted {
            assert_eq!(free_async(pointer), CUDA_SUCCESS);
        }
        assert_eq!(slice.used(), 0);
    }
}

fn a_forked_child_does_no_harm(slice: &Slice) {
    let held = allocate(MIB).expect("it fits");
    // SAFETY: the child calls nothing but the limiter and _exit; the lock of the driver below is free, as this is the
    // only thread that takes it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = allocate(MIB) == Err(CUDA_ERROR_NOT_INITIALIZED);
        let freed = free(held) == CUDA_SUCCESS;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(refused && freed))) };
    }
    let mut status = -1;
    // SAFETY: our own child; a valid out-parameter.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(slice.used(), MIB);
    assert_eq!(free(held), CUDA_SUCCESS);
    assert_eq!(slice.used(), 0);
}
