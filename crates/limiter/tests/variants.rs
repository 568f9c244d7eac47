//! cuGetProcAddress over drivers that hand out functions that they do not export, or that are newer than our table.

mod support;

use std::ffi::CStr;

use divvy_abi::{
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, CUDA_ERROR_NOT_FOUND, CUDA_SUCCESS, CUDA_VERSION,
    CUdriverProcAddressQueryResult, CUresult, Symbol, Table, c_char, c_void,
};
use divvy_ledger::{Bypass, Policy, Terms};
use divvy_limiter::hooks::unknown_addresses;
use divvy_limiter::{TABLE, below};
use support::Slice;

static NOT_AN_EXPORT: u8 = 0;

fn theirs() -> *mut c_void {
    (&raw const NOT_AN_EXPORT).cast_mut().cast()
}

unsafe extern "C-unwind" fn hand_out(
    _: *const c_char,
    out: *mut *mut c_void,
    _: i32,
    _: u64,
    _: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the test gives a valid out-parameter.
    unsafe { out.write(theirs()) };
    CUDA_SUCCESS
}

fn ask(name: &CStr, version: i32, flags: u64) -> *mut c_void {
    let mut address = std::ptr::null_mut();
    // SAFETY: a C string and valid out-parameters.
    let result = unsafe {
        (TABLE.cuGetProcAddress_v2)(
            name.as_ptr(),
            &raw mut address,
            version,
            flags,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(result, CUDA_SUCCESS);
    address
}

#[test]
fn what_is_charged_is_never_handed_out_uncharged() {
    let driver = Table {
        cuGetProcAddress_v2: hand_out,
        ..Table::UNSUPPORTED
    };
    below::stand_on(&driver);
    let ours = |symbol: Symbol| TABLE.address(symbol).cast_mut();
    assert_eq!(ask(c"cuMemAlloc", 12_000, 0), ours(Symbol::cuMemAlloc_v2));
    assert_eq!(ask(c"cuMemAlloc", 3_000, 0), ours(Symbol::cuMemAlloc));
    assert_eq!(ask(c"cuMemAllocAsync", 12_000, 1), ours(Symbol::cuMemAllocAsync));
    assert_eq!(
        ask(c"cuMemAllocAsync", 12_000, 2),
        ours(Symbol::cuMemAllocAsync_ptsz)
    );
    assert_eq!(ask(c"cuModuleGetFunction", 12_000, 0), theirs());
    assert_eq!(unknown_addresses(), 0);
    // A name of a future version, and a variant of one: only the driver knows their parameters.
    assert_eq!(ask(c"cuTomorrow", 12_000, 0), theirs());
    assert_eq!(ask(c"cuMemAlloc", CUDA_VERSION as i32 + 10, 0), theirs());
    assert_eq!(unknown_addresses(), 2);
    // In a slice, a function that would bypass the limiter is not found; one that is only new still is.
    let slice = Slice::new(1 << 30);
    slice.enter();
    let newer = CUDA_VERSION as i32 + 10;
    assert_eq!(
        query(c"cuMemAlloc", newer),
        (
            CUDA_ERROR_NOT_FOUND,
            std::ptr::null_mut(),
            CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
        )
    );
    assert_eq!(ask(c"cuTomorrow", newer, 0), theirs());
    assert_eq!(ask(c"cuModuleGetFunction", newer, 0), theirs());
    assert_eq!(ask(c"cuMemAlloc", 12_000, 0), ours(Symbol::cuMemAlloc_v2));
    // Unless the slice's policy is to count it.
    slice.pages.grant.set_terms(&Terms {
        policy: Policy::BestEffort,
        ..Terms::default()
    });
    assert_eq!(ask(c"cuMemAlloc", newer, 0), theirs());
    assert_eq!(slice.pages.ledger.bypasses(Bypass::UnknownEntryPoint), 1);
}

fn query(name: &CStr, version: i32) -> (CUresult, *mut c_void, CUdriverProcAddressQueryResult) {
    let (mut address, mut status) = (theirs(), CUdriverProcAddressQueryResult::default());
    // SAFETY: a C string and valid out-parameters.
    let result =
        unsafe { (TABLE.cuGetProcAddress_v2)(name.as_ptr(), &raw mut address, version, 0, &raw mut status) };
    (result, address, status)
}
