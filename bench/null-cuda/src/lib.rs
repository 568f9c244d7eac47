//! A driver that does nothing and succeeds: the ground on which the limiter's own cost is measured.
//!
//! Allocations get ever higher addresses and never run out, frees take anything, every other call answers success
//! without touching its arguments. One device, an arbitrary 80 GiB. It has pages of the size that `NULL_CUDA_PAGE` says,
//! in bytes: allocations of half a page and more lie on pages of their own, as drivers have it.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

use divvy_abi::{
    CUDA_ERROR_NOT_FOUND, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUDA_VERSION, CUdevice, CUdeviceptr,
    CUdriverProcAddressQueryResult, CUevent, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemoryPool, CUresult, CUstream, CUuuid, Query, Table,
};

const DEVICE_BYTES: usize = 80 << 30;

macro_rules! succeed {
    ([] $($name:ident ($public:literal, $since:literal, $stream:ident) ($($parameter:ident: $of:ty),*);)*) => {
        #[allow(non_snake_case)]
        mod nothing {
            $(
                pub unsafe extern "C-unwind" fn $name($(_: $of),*) -> divvy_abi::CUresult {
                    divvy_abi::CUDA_SUCCESS
                }
            )*
        }

        const NOTHING: Table = Table { $($name: nothing::$name),* };
    };
}

divvy_abi::driver_functions! { [succeed] }

const TABLE: Table = Table {
    cuDriverGetVersion: driver_version,
    cuDeviceGetCount: device_count,
    cuDeviceGet: device_get,
    cuDeviceTotalMem_v2: total_memory,
    cuMemGetInfo_v2: memory_info,
    cuMemAlloc_v2: allocate,
    cuMemAllocPitch_v2: allocate_pitch,
    cuMemAllocManaged: allocate_managed,
    cuMemAllocAsync: allocate_async,
    cuMemAllocAsync_ptsz: allocate_async,
    cuMemAllocFromPoolAsync: allocate_from_pool,
    cuMemAllocFromPoolAsync_ptsz: allocate_from_pool,
    cuMemGetAllocationGranularity: granularity,
    cuEventCreate: event_create,
    cuEventElapsedTime: elapsed,
    cuGetProcAddress: address_of,
    cuGetProcAddress_v2: address_of_with_status,
    cuGetExportTable: export_table,
    ..NOTHING
};

divvy_abi::export_table_unguarded!(TABLE);

/// Writes an out-parameter, as a driver does.
///
/// # Safety
/// `out` is null or valid for writing.
unsafe fn put<T>(out: *mut T, value: T) -> CUresult {
    if !out.is_null() {
        // SAFETY: the caller's promise.
        unsafe { out.write(value) };
    }
    CUDA_SUCCESS
}

/// The next address: nothing is ever handed out twice.
fn next_address(bytes: usize) -> CUdeviceptr {
    static NEXT: AtomicU64 = AtomicU64::new(0x7f00_0000_0000);
    static LARGE: AtomicU64 = AtomicU64::new(0x7e00_0000_0000);
    let page = page();
    if page > 0 && bytes as u64 > page / 2 {
        return LARGE.fetch_add((bytes as u64).next_multiple_of(page), Relaxed);
    }
    NEXT.fetch_add((bytes as u64).next_multiple_of(512), Relaxed)
}

/// Bytes of a page; 0 where it has none.
fn page() -> u64 {
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(|| {
        let told = std::env::var("NULL_CUDA_PAGE").ok();
        told.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
    })
}

unsafe extern "C-unwind" fn granularity(
    out: *mut usize,
    _: *const CUmemAllocationProp,
    _: CUmemAllocationGranularity_flags,
) -> CUresult {
    match page() {
        // As a driver that knows no virtual memory.
        0 => CUDA_ERROR_NOT_SUPPORTED,
        // SAFETY: the program vouches for its out-parameter.
        page => unsafe { put(out, page as usize) },
    }
}

unsafe extern "C-unwind" fn driver_version(out: *mut i32) -> CUresult {
    // SAFETY: the program vouches for its out-parameter, here and below.
    unsafe { put(out, CUDA_VERSION as i32) }
}

unsafe extern "C-unwind" fn device_count(out: *mut i32) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, 1) }
}

unsafe extern "C-unwind" fn device_get(out: *mut CUdevice, ordinal: i32) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, ordinal) }
}

unsafe extern "C-unwind" fn event_create(out: *mut CUevent, _: u32) -> CUresult {
    // SAFETY: as above. No event is ever followed.
    unsafe { put(out, 16 as CUevent) }
}

/// Kernels that do nothing take no time.
unsafe extern "C-unwind" fn elapsed(out: *mut f32, _: CUevent, _: CUevent) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, 0.0) }
}

unsafe extern "C-unwind" fn total_memory(out: *mut usize, _: CUdevice) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, DEVICE_BYTES) }
}

unsafe extern "C-unwind" fn memory_info(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: as above.
    unsafe {
        put(free, DEVICE_BYTES);
        put(total, DEVICE_BYTES)
    }
}

unsafe extern "C-unwind" fn allocate(out: *mut CUdeviceptr, bytes: usize) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, next_address(bytes)) }
}

unsafe extern "C-unwind" fn allocate_pitch(
    out: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _: u32,
) -> CUresult {
    let row = width.next_multiple_of(512);
    // SAFETY: as above.
    unsafe {
        put(pitch, row);
        put(out, next_address(row * height))
    }
}

unsafe extern "C-unwind" fn allocate_managed(out: *mut CUdeviceptr, bytes: usize, _: u32) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, next_address(bytes)) }
}

unsafe extern "C-unwind" fn allocate_async(out: *mut CUdeviceptr, bytes: usize, _: CUstream) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, next_address(bytes)) }
}

unsafe extern "C-unwind" fn allocate_from_pool(
    out: *mut CUdeviceptr,
    bytes: usize,
    _: CUmemoryPool,
    _: CUstream,
) -> CUresult {
    // SAFETY: as above.
    unsafe { put(out, next_address(bytes)) }
}

/// As NVIDIA's driver has it: this one fails for a name that is not there, the next one succeeds and says so in `status`.
unsafe extern "C-unwind" fn address_of(
    name: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> CUresult {
    // SAFETY: the program gives a C string.
    match unsafe { find(name, version, flags) } {
        // SAFETY: the program vouches for its out-parameter.
        (_, Some(address)) => unsafe { put(out, address) },
        (_, None) => CUDA_ERROR_NOT_FOUND,
    }
}

unsafe extern "C-unwind" fn address_of_with_status(
    name: *const c_char,
    out: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the program gives a C string, and vouches for its out-parameters.
    unsafe {
        let (query, address) = find(name, version, flags);
        put(status, query.into());
        put(out, address.unwrap_or(core::ptr::null_mut()))
    }
}

/// # Safety
/// `name` is a C string.
unsafe fn find(name: *const c_char, version: i32, flags: u64) -> (Query, Option<*mut c_void>) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let query = divvy_abi::query(name, version, flags);
    let address = match query {
        Query::Found(symbol) => Some(
            divvy_abi::exported(symbol)
                .unwrap_or(TABLE.address(symbol))
                .cast_mut(),
        ),
        Query::TooNew | Query::Unknown => None,
    };
    (query, address)
}

unsafe extern "C-unwind" fn export_table(_: *mut *const c_void, _: *const CUuuid) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}
