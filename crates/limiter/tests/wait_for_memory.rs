//! A slice that waits for memory: in the slice, on the device, and no longer than its terms allow.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use divvy_abi::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUdeviceptr, CUresult, Table};
use divvy_ledger::Terms;
use divvy_ledger::attach::connect;
use divvy_limiter::{TABLE, below};
use support::{MEMORY, Slice};

const MIB: u64 = 1 << 20;

/// Whether the device below is full, whatever the slice shows; and how often it was asked.
static FULL: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn scarce(out: *mut CUdeviceptr, bytes: usize) -> CUresult {
    ASKED.fetch_add(1, Ordering::SeqCst);
    if FULL.load(Ordering::SeqCst) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    // SAFETY: the arguments are handed on as they came.
    unsafe { (MEMORY.cuMemAlloc_v2)(out, bytes) }
}

static DRIVER: Table = Table {
    cuMemAlloc_v2: scarce,
    ..MEMORY
};

fn allocate(bytes: u64) -> Result<CUdeviceptr, CUresult> {
    let mut pointer = 0;
    // SAFETY: a valid out-parameter.
    unsafe { (TABLE.cuMemAlloc_v2)(&raw mut pointer, bytes as usize) }.ok()?;
    Ok(pointer)
}

fn free(pointer: CUdeviceptr) {
    // SAFETY: the driver below checks the pointer.
    assert_eq!(unsafe { (TABLE.cuMemFree_v2)(pointer) }, CUDA_SUCCESS);
}

fn waiting(slice: &Slice, on_oom_wait: Duration) {
    slice.pages.grant.set_terms(&Terms {
        on_oom_wait,
        ..Terms::default()
    });
}

/// A process has one slice for life, so the scenarios of this process run one after the other.
#[test]
fn a_process_that_waits() {
    below::stand_on(&DRIVER);
    let slice = Slice::new(100 * MIB);
    slice.enter();
    room_in_the_slice_is_waited_for(&slice);
    a_raised_limit_is_room(&slice);
    room_on_the_device_is_waited_for(&slice);
    the_wait_ends(&slice);
    after_a_death_the_driver_is_asked_again(&slice);
}

/// Runs `change` once a process of the slice waits; then the allocation of `bytes` must succeed.
fn waits_until(slice: &Slice, bytes: u64, change: impl FnOnce()) {
    std::thread::scope(|scope| {
        let waited = scope.spawn(move || allocate(bytes).expect("after a wait"));
        while slice.pages.ledger.waiting() == 0 {
            assert!(!waited.is_finished(), "it has to wait");
            std::thread::yield_now();
        }
        change();
        free(waited.join().expect("it succeeds"));
    });
    assert_eq!(slice.pages.ledger.waiting(), 0);
}

fn room_in_the_slice_is_waited_for(slice: &Slice) {
    waiting(slice, Duration::from_secs(600));
    let first = allocate(60 * MIB).expect("it fits");
    waits_until(slice, 50 * MIB, || free(first));
    assert_eq!(slice.used(), 0);
}

fn a_raised_limit_is_room(slice: &Slice) {
    let first = allocate(60 * MIB).expect("it fits");
    waits_until(slice, 50 * MIB, || {
        slice.pages.grant.set_memory_limit_bytes(110 * MIB);
    });
    slice.pages.grant.set_memory_limit_bytes(100 * MIB);
    free(first);
}

fn room_on_the_device_is_waited_for(slice: &Slice) {
    FULL.store(true, Ordering::SeqCst);
    waits_until(slice, 50 * MIB, || {
        // Memory that the device lacks is not charged.
        let asked = ASKED.load(Ordering::SeqCst);
        while ASKED.load(Ordering::SeqCst) < asked + 3 {
            std::thread::yield_now();
        }
        FULL.store(false, Ordering::SeqCst);
    });
    assert_eq!(slice.used(), 0);
}

fn the_wait_ends(slice: &Slice) {
    waiting(slice, Duration::from_millis(30));
    let first = allocate(60 * MIB).expect("it fits");
    assert_eq!(allocate(50 * MIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
    free(first);
    FULL.store(true, Ordering::SeqCst);
    assert_eq!(allocate(50 * MIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(slice.used(), 0);
    // A request that can never fit does not wait.
    waiting(slice, Duration::from_secs(600));
    FULL.store(false, Ordering::SeqCst);
    assert_eq!(allocate(101 * MIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(slice.pages.ledger.waiting(), 0);
}

fn after_a_death_the_driver_is_asked_again(slice: &Slice) {
    waiting(slice, Duration::ZERO);
    FULL.store(true, Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(110));
    let before = ASKED.load(Ordering::SeqCst);
    assert_eq!(allocate(MIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(ASKED.load(Ordering::SeqCst), before + 1);
    // A busy machine may miss the moment: then it is tried once more.
    let again = (0..50).any(|_| {
        let dead = connect(&slice.socket, 0).expect("the server answers");
        dead.reserve(MIB).expect("it fits");
        drop(dead);
        assert_eq!(slice.pages.ledger.reap().expect("reap").bytes, MIB);
        let before = ASKED.load(Ordering::SeqCst);
        assert_eq!(allocate(MIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
        ASKED.load(Ordering::SeqCst) > before + 1
    });
    assert!(again, "it may be on its way back");
    assert_eq!(slice.used(), 0);
    FULL.store(false, Ordering::SeqCst);
}
