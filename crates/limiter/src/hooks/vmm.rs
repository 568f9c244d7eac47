//! Virtual memory management: physical memory is charged to its own device, whichever process maps it.
#![allow(non_snake_case)]

use divvy_abi::{
    CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_HANDLE_TYPE_FABRIC, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_OPERATION_TYPE_MAP, CUarrayMapInfo, CUdevice, CUdeviceptr,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult, CUstream, c_void,
    guard,
};
use divvy_charges::{Identity, Key, rounded};

use super::descriptor;
use crate::account::{self, Account};
use crate::below::forward;
use crate::charges::CHARGES;

/// The account that is charged for memory with these properties: its device's, or none for host memory.
///
/// # Errors
/// As [`account::of_device`].
fn charged_account(properties: &CUmemAllocationProp) -> Result<Option<Account>, CUresult> {
    if properties.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE || !account::keeps_charges() {
        return Ok(None);
    }
    // SAFETY: every bit pattern is an i32.
    account::of_device(unsafe { properties.location.anonymous1.id })
}

pub(super) unsafe extern "C-unwind" fn cuMemCreate(
    out: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> CUresult {
    guard(|| {
        if let Ok(None) = account::current() {
            // SAFETY: the arguments are handed on as they came.
            return unsafe { forward::cuMemCreate(out, bytes, properties, flags) };
        }
        // SAFETY: null, or the program's own structure. Read once: another thread may write over it meanwhile.
        let read = unsafe { properties.as_ref() }.copied();
        let properties = read.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuMemCreate(out, bytes, properties, flags) };
        let account = match read.as_ref().map_or(Ok(None), charged_account) {
            Ok(Some(account)) => account,
            Ok(None) => return call(),
            Err(code) => return code,
        };
        // SAFETY: read only after the driver said that it filled it in.
        CHARGES.create_physical(account, bytes as u64, call, || unsafe { out.read() })
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    guard(|| {
        // SAFETY: the argument is handed on as it came.
        CHARGES.release_physical(handle, || unsafe { forward::cuMemRelease(handle) })
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemRetainAllocationHandle(
    out: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came; `out` is read after the driver has filled it in.
        unsafe {
            let result = forward::cuMemRetainAllocationHandle(out, address);
            if result.is_success() {
                CHARGES.physical_retained(out.read(), address as u64);
            }
            result
        }
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuMemMap(address, bytes, offset, handle, flags) };
        CHARGES.map_physical(handle, (address, offset as u64, bytes as u64), call)
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuMemUnmap(address, bytes) };
        CHARGES.unmap_physical(address, bytes as u64, call)
    })
}

macro_rules! maps_into_arrays {
    ($($name:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(
            list: *mut CUarrayMapInfo,
            count: u32,
            stream: CUstream,
        ) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came; the list is read after the driver has taken it.
                unsafe {
                    let result = forward::$name(list, count, stream);
                    if result.is_success() && !list.is_null() {
                        bind(core::slice::from_raw_parts(list, count as usize));
                    }
                    result
                }
            })
        })*
    };
}

maps_into_arrays! {
    cuMemMapArrayAsync;
    cuMemMapArrayAsync_ptsz;
}

/// Tiles of sparse arrays: their memory stays until the array ends, even if a tile is unmapped in stream order.
fn bind(list: &[CUarrayMapInfo]) {
    for info in list
        .iter()
        .filter(|info| info.memOperationType == CU_MEM_OPERATION_TYPE_MAP)
    {
        // SAFETY: each member of both unions is a pointer or a number of the same width.
        let (handle, array) = unsafe { (info.memHandle.memHandle, info.resource.array as usize) };
        CHARGES.bind_physical(handle, array);
    }
}

pub(super) unsafe extern "C-unwind" fn cuMemExportToShareableHandle(
    out: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let result = unsafe { forward::cuMemExportToShareableHandle(out, handle, kind, flags) };
        if result.is_success() && account::keeps_charges() {
            // SAFETY: the driver has just filled it in, as wide as the kind is.
            let identity = unsafe { identity(out, kind, false) };
            CHARGES.physical_exported(handle, identity.map(|identity| identity.key));
        }
        result
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemImportFromShareableHandle(
    out: *mut CUmemGenericAllocationHandle,
    shared: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    guard(|| {
        if !account::keeps_charges() {
            // SAFETY: the arguments are handed on as they came.
            return unsafe { forward::cuMemImportFromShareableHandle(out, shared, kind) };
        }
        let own = match kind {
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => match descriptor::own(shared as isize as i32) {
                Ok(own) => Some(own),
                Err(code) => return code,
            },
            _ => None,
        };
        let shared = match &own {
            Some(own) => own.number() as isize as *mut c_void,
            None => shared,
        };
        // SAFETY: the program's own handle, as the driver will read it.
        let identity = unsafe { identity(shared, kind, true) };
        // SAFETY: the arguments are handed on as they came.
        let call = || unsafe { forward::cuMemImportFromShareableHandle(out, shared, kind) };
        let imported = || {
            // SAFETY: read only after the driver said that it filled it in.
            let handle = unsafe { out.read() };
            let properties = properties_of(handle);
            let account = match &properties {
                Some(properties) => charged_account(properties),
                None => account::current(),
            };
            let whole = |bytes| whole_pages(properties.as_ref()?, bytes);
            let identity = identity.map(|Identity { key, bytes }| Identity {
                key,
                bytes: bytes.and_then(whole),
            });
            (handle, account.ok().flatten(), identity)
        };
        // SAFETY: the driver has just returned this handle, and the program does not know it.
        CHARGES.import_physical(identity, call, imported, |handle| unsafe {
            forward::cuMemRelease(handle)
        })
    })
}

/// The identity of the allocation behind a shareable handle, the same in all processes. Descriptors are passed by value
/// when imported, and by reference when exported.
///
/// # Safety
/// `shared` is a shareable handle of this kind.
unsafe fn identity(
    shared: *const c_void,
    kind: CUmemAllocationHandleType,
    by_value: bool,
) -> Option<Identity> {
    let of_file = |number| {
        let (key, bytes) = descriptor::identity(number)?;
        Some(Identity {
            key,
            bytes: Some(bytes),
        })
    };
    if kind == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && by_value {
        return of_file(shared as isize as i32);
    }
    if shared.is_null() {
        return None;
    }
    // SAFETY: the caller's promise: a descriptor, or 64 bytes.
    unsafe {
        match kind {
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => of_file(shared.cast::<i32>().read_unaligned()),
            CU_MEM_HANDLE_TYPE_FABRIC => Some(Identity {
                key: Key::of(core::slice::from_raw_parts(shared.cast::<u8>(), 64)),
                bytes: None,
            }),
            _ => None,
        }
    }
}

/// The location of the memory behind a handle, and its other requested properties.
fn properties_of(handle: CUmemGenericAllocationHandle) -> Option<CUmemAllocationProp> {
    let mut properties = CUmemAllocationProp::default();
    // SAFETY: a valid out-parameter and a live handle.
    let result = unsafe { forward::cuMemGetAllocationPropertiesFromHandle(&raw mut properties, handle) };
    result.is_success().then_some(properties)
}

/// Bytes of an allocation that lies in a file of `bytes`: whole pages of the device; the remainder is the driver's own.
fn whole_pages(properties: &CUmemAllocationProp, bytes: u64) -> Option<u64> {
    let mut page = 0;
    // SAFETY: valid in- and out-parameters.
    let result = unsafe {
        forward::cuMemGetAllocationGranularity(
            &raw mut page,
            core::ptr::from_ref(properties),
            CU_MEM_ALLOC_GRANULARITY_MINIMUM,
        )
    };
    let page = u64::try_from(page).ok().filter(|page| *page > 0)?;
    // An empty file gives no information.
    (result.is_success() && bytes >= page).then(|| rounded(bytes / page * page))
}

macro_rules! binds_to_multicast {
    ($($name:ident($($before:ident: $before_type:ty),*; $bound:ident: $of:ty; $($after:ident: $after_type:ty),*) by $how:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(
            object: CUmemGenericAllocationHandle,
            $($before: $before_type,)*
            $bound: $of,
            $($after: $after_type),*
        ) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came.
                let result = unsafe { forward::$name(object, $($before,)* $bound, $($after),*) };
                if result.is_success() {
                    CHARGES.$how($bound, object as usize);
                }
                result
            })
        })*
    };
}

// A multicast object takes no device memory of its own: it is a window on the memory bound to it, which stays for as
// long.
binds_to_multicast! {
    cuMulticastBindMem(offset: usize; memory: CUmemGenericAllocationHandle; from: usize, bytes: usize, flags: u64) by bind_physical;
    cuMulticastBindMem_v2(device: CUdevice, offset: usize; memory: CUmemGenericAllocationHandle; from: usize, bytes: usize, flags: u64) by bind_physical;
    cuMulticastBindAddr(offset: usize; address: CUdeviceptr; bytes: usize, flags: u64) by bind_physical_at;
    cuMulticastBindAddr_v2(device: CUdevice, offset: usize; address: CUdeviceptr; bytes: usize, flags: u64) by bind_physical_at;
}
