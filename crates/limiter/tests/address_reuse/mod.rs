//! The emulated driver, and a thread of the program that takes an address as soon as a context has left it, before any
//! other thread can look.

use std::sync::atomic::{AtomicU64, Ordering};

use divvy_abi::{CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CUcontext, CUdeviceptr, CUresult, Table, c_void};

const BYTES: usize = 2 << 20;

static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The driver.
pub static TABLE: Table = Table {
    cuCtxDestroy_v2: destroyed_and_taken,
    ..divvy_emulator::TABLE
};

/// The next context that ends frees this address, and it is taken.
pub fn at(pointer: CUdeviceptr) {
    TAKEN.store(pointer, Ordering::Relaxed);
}

unsafe extern "C-unwind" fn destroyed_and_taken(context: CUcontext) -> CUresult {
    let below = &divvy_emulator::TABLE;
    let first = TAKEN.swap(0, Ordering::Relaxed);
    let mut address = 0;
    // SAFETY: the argument is handed on as it came. The mapped memory is not the device's, but the device can reach it,
    // and no other code has it.
    unsafe {
        let result = (below.cuCtxDestroy_v2)(context);
        if first == 0 {
            return result;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let wanted = first as *mut c_void;
        let mapped = libc::mmap(wanted, BYTES, protection, flags, -1, 0);
        assert_eq!(mapped, wanted, "the address is free again");
        assert!((below.cuMemHostRegister_v2)(wanted, BYTES, 0).is_success());
        let attribute = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
        assert!((below.cuPointerGetAttribute)((&raw mut address).cast(), attribute, first).is_success());
        assert_eq!(address, first);
        result
    }
}
