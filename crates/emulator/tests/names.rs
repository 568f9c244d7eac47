//! cuGetProcAddress and what a runtime asks for at its start.

mod common;

use common::{alone, code, cu, get};
use divvy_abi::*;
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

fn lookup(name: &str, version: i32, flags: u64) -> (CUresult, *mut c_void, CUdriverProcAddressQueryResult) {
    let name = CString::new(name).unwrap();
    let (mut function, mut status) = (
        std::ptr::dangling_mut::<c_void>(),
        CUdriverProcAddressQueryResult(9),
    );
    let code = code!(cuGetProcAddress_v2(
        name.as_ptr(),
        &raw mut function,
        version,
        flags,
        &raw mut status
    ));
    (code, function, status)
}

#[test]
fn the_exact_variant_is_handed_out() {
    let table = divvy_emulator::TABLE;
    let address = |symbol| table.address(symbol).cast_mut();
    let found = |name, version, flags| {
        let (code, function, status) = lookup(name, version, flags);
        assert_eq!(
            (code, status),
            (CUDA_SUCCESS, CU_GET_PROC_ADDRESS_SUCCESS),
            "{name}"
        );
        function
    };
    assert_eq!(found("cuMemAlloc", 12_000, 0), address(Symbol::cuMemAlloc_v2));
    assert_eq!(
        found("cuLaunchKernel", 12_000, 0),
        address(Symbol::cuLaunchKernel)
    );
    assert_eq!(
        found("cuLaunchKernel", 12_000, 2),
        address(Symbol::cuLaunchKernel_ptsz)
    );
    assert_eq!(
        found("cuCtxGetDevice", 12_000, 0),
        address(Symbol::cuCtxGetDevice)
    );
    assert_eq!(
        found("cuCtxGetDevice", 13_000, 0),
        address(Symbol::cuCtxGetDevice_v2)
    );
    for (name, version) in [("", 12_000), ("cuNoSuchThing", 12_000)] {
        let missing = (
            CUDA_ERROR_NOT_FOUND,
            null_mut(),
            CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        );
        assert_eq!(lookup(name, version, 0), missing, "never success with null");
    }
    let too_new = (
        CUDA_ERROR_NOT_FOUND,
        null_mut(),
        CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
    );
    assert_eq!(lookup("cuLibraryLoadData", 11_000, 0), too_new);
}

/// What numba-cuda, cudarc and the runtimes from 12.4 to 13.5 need before their first kernel.
const NEEDED: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventElapsedTime",
    "cuEventRecord",
    "cuInit",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLibraryGetKernel",
    "cuLibraryGetModule",
    "cuLibraryLoadData",
    "cuLibraryUnload",
    "cuLinkAddData",
    "cuLinkComplete",
    "cuLinkCreate",
    "cuLinkDestroy",
    "cuKernelGetAttribute",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemGetInfo",
    "cuMemcpyDtoH",
    "cuMemcpyHtoD",
    "cuMemcpyHtoDAsync",
    "cuModuleGetFunction",
    "cuModuleGetLoadingMode",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuGetExportTable",
    "cuGetProcAddress",
];

#[test]
fn what_clients_need_is_implemented() {
    let table = divvy_emulator::TABLE;
    for name in NEEDED {
        for (version, flags) in [(12_040, 0), (13_050, 0), (13_050, 2)] {
            let symbol = divvy_abi::lookup(name, version, flags).expect(name);
            assert!(table.implements(symbol), "{symbol}");
        }
    }
}

#[test]
fn both_variants_of_a_function_are_implemented_or_neither() {
    let table = divvy_emulator::TABLE;
    for &symbol in Symbol::ALL.iter().filter(|symbol| symbol.is_per_thread()) {
        let legacy = symbol.name().trim_end_matches("_ptsz").trim_end_matches("_ptds");
        if let Some(legacy) = Symbol::by_name(legacy) {
            assert_eq!(table.implements(symbol), table.implements(legacy), "{symbol}");
        }
    }
}

#[test]
fn what_is_not_supported_says_so_and_private_tables_are_refused() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let path = log.path().to_str().unwrap();
    alone(
        "what_is_not_supported_says_so_and_private_tables_are_refused",
        &[("DIVVY_LOG", path)],
        || {
            cu!(cuInit(0));
            for _ in 0..3 {
                assert_eq!(
                    code!(cuGraphicsUnregisterResource(null_mut())),
                    CUDA_ERROR_NOT_SUPPORTED
                );
            }
            let id = CUuuid::default();
            let mut table = std::ptr::dangling::<c_void>();
            assert_eq!(
                code!(cuGetExportTable(&raw mut table, &raw const id)),
                CUDA_ERROR_NOT_SUPPORTED
            );
            assert!(table.is_null());
            let log = std::fs::read_to_string(std::env::var("DIVVY_LOG").unwrap()).unwrap();
            assert_eq!(
                log.matches("cuGraphicsUnregisterResource is not supported")
                    .count(),
                1,
                "once by name: {log}"
            );
            assert!(log.contains("authenticity challenge"), "{log}");
        },
    );
}

#[test]
fn errors_have_names() {
    let text = |pointer: *const c_char| {
        // SAFETY: the driver's texts end with a NUL and live for ever.
        unsafe { CStr::from_ptr(pointer) }.to_str().unwrap()
    };
    let mut name = std::ptr::null();
    cu!(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &raw mut name));
    assert_eq!(text(name), "CUDA_ERROR_OUT_OF_MEMORY");
    cu!(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &raw mut name));
    assert_eq!(text(name), "out of memory");
    assert_eq!(
        code!(cuGetErrorName(CUresult(12_345), &raw mut name)),
        CUDA_ERROR_INVALID_VALUE
    );
    assert!(name.is_null());
    let version: i32 = get!(cuDriverGetVersion());
    assert!(version >= 13_000);
}
