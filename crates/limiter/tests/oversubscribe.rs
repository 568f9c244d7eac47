//! A slice that may go beyond its share. An allocation that no longer fits becomes managed memory that prefers the
//! host. It is charged to a table of its own, shown as free memory, and reported when kernels run on it.

mod support;

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use divvy_abi::{
    CU_DEVICE_CPU, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUfunction, CUmem_advise, CUresult,
    CUstream, Table, c_void,
};
use divvy_ledger::Terms;
use divvy_ledger::attach::connect;
use divvy_limiter::{TABLE, below};
use support::{DEVICE_BYTES, MEMORY, Slice};

const MIB: u64 = 1 << 20;

/// Managed allocations made, and the pointers whose memory was placed on the host and mapped into the device.
static MANAGED: AtomicU32 = AtomicU32::new(0);
static AT_HOST: AtomicU64 = AtomicU64::new(0);
static MAPPED: AtomicU64 = AtomicU64::new(0);
static LAUNCHED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn managed(out: *mut CUdeviceptr, bytes: usize, flags: u32) -> CUresult {
    MANAGED.fetch_add(1, Ordering::Relaxed);
    assert_eq!(flags, 1, "attached globally");
    // SAFETY: the arguments are handed on as they came.
    unsafe { (MEMORY.cuMemAlloc_v2)(out, bytes) }
}

unsafe extern "C-unwind" fn advise(
    pointer: CUdeviceptr,
    _: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> CUresult {
    match (advice, device) {
        (CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU) => AT_HOST.store(pointer, Ordering::Relaxed),
        (CU_MEM_ADVISE_SET_ACCESSED_BY, 0) => MAPPED.store(pointer, Ordering::Relaxed),
        other => panic!("{other:?}"),
    }
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn first_device(out: *mut CUdevice) -> CUresult {
    // SAFETY: the limiter gives a valid out-parameter.
    unsafe { out.write(0) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn launched(
    _: CUfunction,
    x: u32,
    y: u32,
    z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    _: CUstream,
    _: *mut *mut c_void,
    _: *mut *mut c_void,
) -> CUresult {
    assert_eq!(
        [x, y, z, block_x, block_y, block_z, shared],
        [1, 2, 3, 4, 5, 6, 7]
    );
    LAUNCHED.fetch_add(1, Ordering::Relaxed);
    CUDA_SUCCESS
}

static DRIVER: Table = Table {
    cuMemAllocManaged: managed,
    cuMemAdvise: advise,
    cuCtxGetDevice: first_device,
    cuLaunchKernel: launched,
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

fn launch() {
    // SAFETY: the driver below looks at nothing but the numbers.
    let answer = unsafe {
        (TABLE.cuLaunchKernel)(
            null_mut(),
            1,
            2,
            3,
            4,
            5,
            6,
            7,
            null_mut(),
            null_mut(),
            null_mut(),
        )
    };
    assert_eq!(answer, CUDA_SUCCESS);
}

fn info() -> (u64, u64) {
    let (mut free, mut total) = (0, 0);
    // SAFETY: valid out-parameters.
    let result = unsafe { (TABLE.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
    assert_eq!(result, CUDA_SUCCESS);
    (free as u64, total as u64)
}

fn usage(slice: &Slice) -> (u64, u64) {
    let ledger = &slice.pages.ledger;
    (ledger.total_used() / MIB, ledger.total_spilled() / MIB)
}

/// A process has one slice for life, so the scenarios of this process run one after the other.
#[test]
fn a_process_beyond_its_share() {
    below::stand_on(&DRIVER);
    let slice = Slice::with(
        &[(100 * MIB, [7; 16])],
        Terms {
            spill_limit_bytes: 100 * MIB,
            ..Terms::default()
        },
    );
    slice.enter();
    assert_eq!(info(), (200 * MIB, 200 * MIB));

    // Within the share there is no difference.
    let within = allocate(60 * MIB).expect("it fits");
    launch();
    assert_eq!((usage(&slice), MANAGED.load(Ordering::Relaxed)), ((60, 0), 0));
    assert_eq!(slice.pages.ledger.thrash().pressure, 0);

    // Beyond it, memory prefers the host, and the device maps it.
    let beyond = allocate(60 * MIB).expect("there is the host");
    assert_eq!((usage(&slice), MANAGED.load(Ordering::Relaxed)), ((60, 60), 1));
    assert_eq!(AT_HOST.load(Ordering::Relaxed), beyond);
    assert_eq!(MAPPED.load(Ordering::Relaxed), beyond);
    assert_eq!(info(), (80 * MIB, 200 * MIB));
    let small = allocate(40 * MIB).expect("the share still has room for that");
    assert_eq!(usage(&slice), (100, 60));
    assert_eq!(allocate(41 * MIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(usage(&slice), (100, 60));

    // Three eighths of it lie beyond the share, and kernels run.
    assert!(slice.pages.ledger.thrash().lasting.is_none(), "nothing runs yet");
    for _ in 0..100 {
        launch();
    }
    assert_eq!(LAUNCHED.load(Ordering::Relaxed), 101);
    let thrash = slice.pages.ledger.thrash();
    assert!(thrash.lasting.is_some(), "{thrash:?}");
    assert_eq!((thrash.pressure, thrash.episodes), (3_750, 1));

    // Memory beyond the share goes back to its own table, and thrashing is over.
    free(beyond);
    assert_eq!(usage(&slice), (100, 0));
    assert_eq!(slice.pages.ledger.thrash().lasting, None);
    assert_eq!(slice.pages.ledger.thrash().pressure, 0);
    free(small);
    free(within);
    assert_eq!(usage(&slice), (0, 0));

    // The device itself may be full before the share is.
    slice.pages.grant.set_memory_limit_bytes(2 * DEVICE_BYTES);
    let all = allocate(DEVICE_BYTES - 10 * MIB).expect("all of the device");
    assert_eq!(
        allocate(11 * MIB),
        Err(CUDA_ERROR_OUT_OF_MEMORY),
        "this driver's host is as full"
    );
    assert_eq!(slice.pages.ledger.total_spilled(), 0);
    free(all);
    slice.pages.grant.set_memory_limit_bytes(100 * MIB);

    // A process that dies returns both.
    let dead = connect(&slice.socket, 0).expect("the server answers");
    dead.reserve(50 * MIB).expect("it fits");
    dead.slot().reserve_spill(30 * MIB, 100 * MIB).expect("it fits");
    assert_eq!(usage(&slice), (50, 30));
    drop(dead);
    slice.pages.ledger.reap().expect("reap");
    assert_eq!(usage(&slice), (0, 0));
}
