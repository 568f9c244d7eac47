//! A slice of one device: no allocation looks its device up, until another device's use is allowed and counted.

mod support;

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use divvy_abi::{CUDA_SUCCESS, CUdevice, CUresult, CUuuid, Table};
use divvy_ledger::{Bypass, Policy, Terms};
use divvy_limiter::{TABLE, account, below};
use support::{MEMORY, Slice};

const MIB: u64 = 1 << 20;
static CURRENT: AtomicI32 = AtomicI32::new(0);
static LOOKS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn current_device(out: *mut CUdevice) -> CUresult {
    LOOKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the limiter gives a valid out-parameter.
    unsafe { out.write(CURRENT.load(Ordering::Relaxed)) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn uuid(out: *mut CUuuid, device: CUdevice) -> CUresult {
    // SAFETY: the limiter gives a valid out-parameter.
    unsafe { out.cast::<[u8; 16]>().write([0xd0 + device as u8; 16]) };
    CUDA_SUCCESS
}

static DRIVER: Table = Table {
    cuCtxGetDevice: current_device,
    cuDeviceGetUuid: uuid,
    ..MEMORY
};

fn allocate(bytes: u64) {
    let mut pointer = 0;
    // SAFETY: a valid out-parameter.
    let answer = unsafe { (TABLE.cuMemAlloc_v2)(&raw mut pointer, bytes as usize) };
    assert_eq!(answer, CUDA_SUCCESS);
}

#[test]
fn a_device_is_looked_up_only_when_it_matters() {
    below::stand_on(&DRIVER);
    let terms = Terms {
        policy: Policy::BestEffort,
        ..Terms::default()
    };
    let slice = Slice::with(&[(64 * MIB, [0xd0; 16])], terms);
    slice.enter();
    assert!(account::of_device(0).expect("its own").is_some());
    for _ in 0..10 {
        allocate(MIB);
    }
    assert_eq!(LOOKS.load(Ordering::Relaxed), 0);
    assert_eq!(slice.used(), 10 * MIB);

    // Creating a context looks the device up.
    assert!(account::of_device(1).expect("let through").is_none());
    assert_eq!(slice.pages.ledger.bypasses(Bypass::ForeignDevice), 1);
    assert!(account::of_device(1).expect("let through").is_none());
    assert_eq!(slice.pages.ledger.bypasses(Bypass::ForeignDevice), 1);
    CURRENT.store(1, Ordering::Relaxed);
    allocate(128 * MIB);
    assert_eq!(slice.used(), 10 * MIB);
    CURRENT.store(0, Ordering::Relaxed);
    allocate(MIB);
    assert_eq!((slice.used(), LOOKS.load(Ordering::Relaxed)), (11 * MIB, 2));
}
