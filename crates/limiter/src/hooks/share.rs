//! Device memory that comes from elsewhere: other processes' allocations, their pools' pointers, external memory.
//!
//! Opening takes no memory from the device. So the size is queried after it, and the memory is closed again if it
//! cannot be charged.
#![allow(non_snake_case)]

use divvy_abi::{
    CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC, CUdeviceptr,
    CUexternalMemory, CUipcMemHandle, CUmemPoolPtrExportData, CUmemoryPool, CUmipmappedArray, CUresult,
    guard,
};
use divvy_charges::Key;

use super::descriptor;
use crate::account::{self, Account};
use crate::below::{ask, forward};
use crate::charges::CHARGES;

/// The account that is charged for memory opened now, if any.
fn charged_account() -> Result<Option<Account>, CUresult> {
    if account::keeps_charges() {
        account::current()
    } else {
        Ok(None)
    }
}

fn bytes_of<T>(value: &T) -> &[u8] {
    // SAFETY: any value may be read as bytes; those given here are arrays of bytes, without padding.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

pub(super) unsafe extern "C-unwind" fn cuIpcGetMemHandle(
    out: *mut CUipcMemHandle,
    pointer: CUdeviceptr,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came; `out` is read after the driver has filled it in.
        unsafe {
            let result = forward::cuIpcGetMemHandle(out, pointer);
            if result.is_success() && account::keeps_charges() {
                CHARGES.exported(pointer, Key::of(bytes_of(&out.read())));
            }
            result
        }
    })
}

/// Opens by `call` another process's memory, which has the key `key` and ends with `context`. `pointer` reads its
/// address after a success. If it cannot be charged, `close` undoes the call.
fn opened(
    key: impl FnOnce() -> Key,
    context: impl FnOnce() -> usize,
    call: impl FnOnce() -> CUresult,
    pointer: impl FnOnce() -> CUdeviceptr,
    close: impl FnOnce(CUdeviceptr) -> CUresult,
) -> CUresult {
    match charged_account() {
        Ok(Some(account)) => CHARGES.open(account, (key(), context()), call, pointer, close),
        Ok(None) => call(),
        Err(code) => code,
    }
}

macro_rules! opens {
    ($($name:ident;)*) => {
        $(pub(super) unsafe extern "C-unwind" fn $name(
            out: *mut CUdeviceptr,
            handle: CUipcMemHandle,
            flags: u32,
        ) -> CUresult {
            guard(|| {
                // SAFETY: the arguments are handed on as they came; `out` is read after the driver has filled it in.
                unsafe {
                    opened(
                        || Key::of(bytes_of(&handle)),
                        ask::current_context,
                        || forward::$name(out, handle, flags),
                        || out.read(),
                        |pointer| forward::cuIpcCloseMemHandle(pointer),
                    )
                }
            })
        })*
    };
}

opens! {
    cuIpcOpenMemHandle;
    cuIpcOpenMemHandle_v2;
}

pub(super) unsafe extern "C-unwind" fn cuIpcCloseMemHandle(pointer: CUdeviceptr) -> CUresult {
    guard(|| {
        // SAFETY: the argument is handed on as it came.
        CHARGES.close(pointer, || unsafe { forward::cuIpcCloseMemHandle(pointer) })
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemPoolExportPointer(
    out: *mut CUmemPoolPtrExportData,
    pointer: CUdeviceptr,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came; `out` is read after the driver has filled it in.
        unsafe {
            let result = forward::cuMemPoolExportPointer(out, pointer);
            if result.is_success() && account::keeps_charges() {
                CHARGES.exported(pointer, Key::of(bytes_of(&out.read())));
            }
            result
        }
    })
}

pub(super) unsafe extern "C-unwind" fn cuMemPoolImportPointer(
    out: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> CUresult {
    guard(|| {
        if data.is_null() {
            // SAFETY: the arguments are handed on as they came.
            return unsafe { forward::cuMemPoolImportPointer(out, pool, data) };
        }
        // SAFETY: the arguments are handed on as they came; the driver also reads the same memory, or has filled it in
        // before.
        unsafe {
            opened(
                || Key::of(bytes_of(&data.read())),
                || 0,
                || forward::cuMemPoolImportPointer(out, pool, data),
                || out.read(),
                |pointer| forward::cuMemFree_v2(pointer),
            )
        }
    })
}

pub(super) unsafe extern "C-unwind" fn cuImportExternalMemory(
    out: *mut CUexternalMemory,
    description: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came.
        let call = |description| unsafe { forward::cuImportExternalMemory(out, description) };
        let account = match charged_account() {
            Ok(Some(account)) => account,
            Ok(None) => return call(description),
            Err(code) => return code,
        };
        // SAFETY: null, or the program's own description. Read once: another thread may write over it meanwhile.
        let Some(mut described) = (unsafe { description.as_ref() }).copied() else {
            return call(description);
        };
        let mut own = None;
        if described.type_ == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD {
            // SAFETY: for this kind, the union holds a descriptor.
            match descriptor::own(unsafe { described.handle.fd }) {
                Ok(copy) => described.handle.fd = own.insert(copy).number(),
                Err(code) => return code,
            }
        }
        let file = own.as_ref().and_then(|own| descriptor::identity(own.number()));
        let bytes = described.size;
        let imported = || {
            if let Some(own) = own {
                own.taken_over();
            }
            // SAFETY: the driver has just filled it in.
            unsafe { out.read() as usize }
        };
        CHARGES.import_external(account, bytes, file, || call(&raw const described), imported)
    })
}

pub(super) unsafe extern "C-unwind" fn cuDestroyExternalMemory(memory: CUexternalMemory) -> CUresult {
    guard(|| {
        // SAFETY: the argument is handed on as it came.
        let call = || unsafe { forward::cuDestroyExternalMemory(memory) };
        CHARGES.destroy_external(memory as usize, call)
    })
}

pub(super) unsafe extern "C-unwind" fn cuExternalMemoryGetMappedBuffer(
    out: *mut CUdeviceptr,
    memory: CUexternalMemory,
    description: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came; `out` is read after the driver has filled it in.
        unsafe {
            let result = forward::cuExternalMemoryGetMappedBuffer(out, memory, description);
            if result.is_success() {
                CHARGES.external_mapped(memory as usize, out.read());
            }
            result
        }
    })
}

pub(super) unsafe extern "C-unwind" fn cuExternalMemoryGetMappedMipmappedArray(
    out: *mut CUmipmappedArray,
    memory: CUexternalMemory,
    description: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came; `out` is read after the driver has filled it in.
        unsafe {
            let result = forward::cuExternalMemoryGetMappedMipmappedArray(out, memory, description);
            if result.is_success() {
                CHARGES.external_mapped(memory as usize, out.read() as u64);
            }
            result
        }
    })
}
