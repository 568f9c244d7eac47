//! A slice of two devices on a machine of three. Each device's allocations are charged to its own account, whatever
//! order CUDA_VISIBLE_DEVICES gives them. The third device is refused.

mod support;

use std::sync::atomic::{AtomicI32, Ordering};

use divvy_abi::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUdevice,
    CUdeviceptr, CUresult, CUuuid, Table,
};
use divvy_ledger::{Policy, Terms};
use divvy_limiter::{TABLE, account, below};
use support::{MEMORY, Slice};

const GIB: u64 = 1 << 30;

/// The device of the current context; below 0 there is none.
static CURRENT: AtomicI32 = AtomicI32::new(-1);

/// Which device an ordinal means, as CUDA_VISIBLE_DEVICES=1,0,2 has it.
const ORDER: [u8; 3] = [1, 0, 2];

fn uuid_of(device: u8) -> [u8; 16] {
    [0xd0 + device; 16]
}

unsafe extern "C-unwind" fn current_device(out: *mut CUdevice) -> CUresult {
    let current = CURRENT.load(Ordering::Relaxed);
    if current < 0 {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    // SAFETY: the limiter gives a valid out-parameter.
    unsafe { out.write(current) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn uuid(out: *mut CUuuid, device: CUdevice) -> CUresult {
    let Some(&device) = usize::try_from(device)
        .ok()
        .and_then(|ordinal| ORDER.get(ordinal))
    else {
        return CUDA_ERROR_INVALID_DEVICE;
    };
    // SAFETY: the limiter gives a valid out-parameter.
    unsafe { out.cast::<[u8; 16]>().write(uuid_of(device)) };
    CUDA_SUCCESS
}

static DRIVER: Table = Table {
    cuCtxGetDevice: current_device,
    cuDeviceGetUuid_v2: uuid,
    ..MEMORY
};

fn allocate(bytes: u64) -> Result<CUdeviceptr, CUresult> {
    let mut pointer = 0;
    // SAFETY: a valid out-parameter.
    unsafe { (TABLE.cuMemAlloc_v2)(&raw mut pointer, bytes as usize) }.ok()?;
    Ok(pointer)
}

fn total(ordinal: CUdevice) -> u64 {
    let mut bytes = 0;
    // SAFETY: a valid out-parameter.
    let answer = unsafe { (TABLE.cuDeviceTotalMem_v2)(&raw mut bytes, ordinal) };
    assert_eq!(answer, CUDA_SUCCESS);
    bytes as u64
}

/// A process has one slice for life, so the scenarios of this process run one after the other.
#[test]
fn a_process_with_two_devices() {
    below::stand_on(&DRIVER);
    let slice = Slice::with(&[(GIB, uuid_of(0)), (2 * GIB, uuid_of(1))], Terms::default());
    slice.enter();
    let second = &slice.more[0];

    // Without a context the driver's own error is returned, and nothing is charged.
    assert_eq!(allocate(GIB), Err(CUDA_ERROR_INVALID_CONTEXT));
    // Ordinal 0 is device 1, which has two GiB.
    CURRENT.store(0, Ordering::Relaxed);
    let on_second = allocate(GIB + GIB / 2).expect("device 1 has room");
    assert_eq!((slice.used(), second.ledger.total_used()), (0, GIB + GIB / 2));
    assert_eq!(allocate(GIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
    CURRENT.store(1, Ordering::Relaxed);
    let on_first = allocate(GIB).expect("device 0 has room");
    assert_eq!((slice.used(), second.ledger.total_used()), (GIB, GIB + GIB / 2));
    assert_eq!(allocate(512), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!((total(0), total(1)), (2 * GIB, GIB));

    // A free gives back to the charged account, whatever device is current.
    for pointer in [on_second, on_first] {
        // SAFETY: the driver below checks the pointer.
        assert_eq!(unsafe { (TABLE.cuMemFree_v2)(pointer) }, CUDA_SUCCESS);
    }
    assert_eq!((slice.used(), second.ledger.total_used()), (0, 0));

    // The third device has no account here.
    assert_eq!(account::of_device(2).err(), Some(CUDA_ERROR_INVALID_DEVICE));
    assert_eq!(account::of_device(7).err(), Some(CUDA_ERROR_INVALID_DEVICE));
    CURRENT.store(2, Ordering::Relaxed);
    assert_eq!(allocate(512), Err(CUDA_ERROR_INVALID_DEVICE));

    // Unless the policy allows it: then its use is counted, and charged to no account.
    slice.pages.grant.set_terms(&Terms {
        policy: Policy::BestEffort,
        ..Terms::default()
    });
    allocate(8 * GIB).expect("nothing limits it");
    assert_eq!((slice.used(), second.ledger.total_used()), (0, 0));
}
