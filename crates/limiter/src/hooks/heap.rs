//! cuCtxSetLimit: the heaps in which kernels allocate, print and keep their local variables.
#![allow(non_snake_case)]

use divvy_abi::{
    CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    CU_LIMIT_MALLOC_HEAP_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_STACK_SIZE, CUcontext, CUdevice_attribute,
    CUlimit, CUresult, guard,
};
use divvy_charges::HeapSize;

use crate::account;
use crate::below::{ask, forward};
use crate::charges::CHARGES;

pub(super) unsafe extern "C-unwind" fn cuCtxSetLimit(which: CUlimit, value: usize) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuCtxSetLimit(which, value) };
        let account = match account::current() {
            Ok(Some(account)) if account::keeps_charges() => account,
            Ok(_) => return call(),
            Err(code) => return code,
        };
        let Some(each) = times(which) else { return call() };
        let set = || size(which).map_or(0, |size| size.saturating_mul(each));
        let wanted = (value as u64).saturating_mul(each);
        let size = HeapSize {
            context: ask::current_context() as CUcontext,
            which,
            before: set(),
            wanted,
        };
        CHARGES.set_heap(account, size, call, set)
    })
}

/// How many times the device allocates the value of a limit; for local memory, once for every thread that may be
/// resident. `None` for limits that take no memory.
fn times(which: CUlimit) -> Option<u64> {
    match which {
        CU_LIMIT_MALLOC_HEAP_SIZE | CU_LIMIT_PRINTF_FIFO_SIZE => Some(1),
        CU_LIMIT_STACK_SIZE => Some(
            attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
                * attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR),
        ),
        _ => None,
    }
}

fn attribute(which: CUdevice_attribute) -> u64 {
    let Some(device) = ask::current_device() else {
        return 0;
    };
    let mut value = 0;
    // SAFETY: a valid out-parameter.
    let result = unsafe { forward::cuDeviceGetAttribute(&raw mut value, which, device) };
    if result.is_success() {
        u64::try_from(value).unwrap_or(0)
    } else {
        0
    }
}

fn size(which: CUlimit) -> Option<u64> {
    let mut value = 0;
    // SAFETY: a valid out-parameter.
    let result = unsafe { forward::cuCtxGetLimit(&raw mut value, which) };
    result.is_success().then_some(value as u64)
}
