//! Device memory that comes from elsewhere: other processes' allocations, their pools' pointers, external memory.
//!
//! Opening takes nothing from the device, so its size is asked for after it, and it is closed again where it cannot be
//! paid for.
#![allow(non_snake_case)]

use divvy_abi::{
    CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC, CUdevice, CUdeviceptr, CUexternalMemory, CUipcMemHandle,
    CUmemPoolPtrExportData, CUmemoryPool, CUmipmappedArray, CUresult, guard,
};

use super::descriptor;
use crate::account::{self, Account};
use crate::below::{ask, forward};
use crate::books::parting::Parting;
use crate::books::shared::{self, Key};
use crate::books::{grain, imports, rounded};

/// Who pays for what is opened now, if anybody.
fn payer() -> Result<Option<Account>, CUresult> {
    if account::keeps_books() {
        account::current()
    } else {
        Ok(None)
    }
}

fn bytes_of<T>(value: &T) -> &[u8] {
    // SAFETY: any value may be read as bytes; those given here are arrays of bytes, without padding.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

/// Who pays for memory at a pointer that the driver has just answered: the account of the device that it is on, which need
/// not be the current one. `otherwise` where the driver does not say.
fn payer_of(pointer: CUdeviceptr, otherwise: Account) -> Result<Option<Account>, CUresult> {
    let mut device: CUdevice = -1;
    // SAFETY: the attribute is 4 bytes wide, as `device` is; the driver checks the pointer.
    let answer = unsafe {
        forward::cuPointerGetAttribute(
            (&raw mut device).cast(),
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            pointer,
        )
    };
    if answer.is_success() && device >= 0 {
        account::of_device(device)
    } else {
        Ok(Some(otherwise))
    }
}

/// Where the allocation begins that a pointer lies in: an exported handle is of all of it.
fn base_of(pointer: CUdeviceptr) -> CUdeviceptr {
    let (mut base, mut bytes) = (pointer, 0);
    // SAFETY: valid out-parameters; the driver checks the pointer.
    let result = unsafe { forward::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, pointer) };
    if result.is_success() { base } else { pointer }
}

/// Bytes of the pages that the allocation of a pointer keeps from its device: all of them, wherever it lies in them.
fn size_of_allocation(account: Account, pointer: CUdeviceptr) -> u64 {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: valid out-parameters; the driver checks the pointer.
    let result = unsafe { forward::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, pointer) };
    if result.is_success() {
        grain::most(account, bytes as u64)
    } else {
        0
    }
}

pub(super) unsafe extern "C-unwind" fn cuIpcGetMemHandle(
    out: *mut CUipcMemHandle,
    pointer: CUdeviceptr,
) -> CUresult {
    guard(|| {
        // SAFETY: the arguments are handed on as they came; `out` is read after the driver has filled it in.
        unsafe {
            let result = forward::cuIpcGetMemHandle(out, pointer);
            if result.is_success() && account::keeps_books() {
                imports::exported(base_of(pointer), Key::of(bytes_of(&out.read())));
            }
            result
        }
    })
}

/// Opens by `call` what is another process's and known by `key`, and goes with `context`; `pointer` reads where it is after
/// a success. Where nobody can pay for it, `close` undoes that.
fn opened(
    key: impl FnOnce() -> Key,
    context: impl FnOnce() -> usize,
    call: impl FnOnce() -> CUresult,
    pointer: impl FnOnce() -> CUdeviceptr,
    close: impl FnOnce(CUdeviceptr) -> CUresult,
) -> CUresult {
    let account = match payer() {
        Ok(Some(account)) => account,
        Ok(None) => return call(),
        Err(code) => return code,
    };
    let key = key();
    // Before: who pays now, and frees it meanwhile, goes on paying. On whichever device: its account's table has it.
    let joined = account::all().find_map(|account| shared::joined(account, key, 0));
    let result = call();
    if !result.is_success() {
        if let Some(joined) = joined {
            joined.ended();
        }
        return result;
    }
    let pointer = pointer();
    let paid = match payer_of(pointer, account) {
        Ok(Some(account)) => {
            let bytes = size_of_allocation(account, pointer);
            imports::imported(pointer, account, key, bytes, joined, context())
        }
        other => {
            if let Some(joined) = joined {
                joined.ended();
            }
            other.map(drop)
        }
    };
    if let Err(code) = paid {
        let _closed = close(pointer);
        return code;
    }
    result
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

/// Lets go by `call` of what is others' memory here.
pub(super) fn lets_go(pointer: u64, call: impl FnOnce() -> CUresult) -> CUresult {
    if !account::keeps_books() {
        return call();
    }
    let parting = Parting::begin(pointer, None);
    let result = call();
    match parting {
        Some(parting) if result.is_success() => parting.done(),
        Some(parting) => parting.refused(),
        None => {}
    }
    result
}

pub(super) unsafe extern "C-unwind" fn cuIpcCloseMemHandle(pointer: CUdeviceptr) -> CUresult {
    guard(|| {
        // SAFETY: the argument is handed on as it came.
        lets_go(pointer, || unsafe { forward::cuIpcCloseMemHandle(pointer) })
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
            if result.is_success() && account::keeps_books() {
                imports::exported(base_of(pointer), Key::of(bytes_of(&out.read())));
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
        // SAFETY: the arguments are handed on as they came; what is read the driver reads too, or has filled in before.
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
        let account = match payer() {
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
        let file = own.as_ref().and_then(|own| Key::of_file(own.number()));
        // Who imports a part keeps the whole.
        let whole = file.map_or(0, |(_, bytes)| grain::whole_pages(account, bytes));
        let bytes = rounded(described.size).max(whole);
        let key = file.map_or_else(|| Key::of_size(bytes), |(key, _)| key);
        // On whichever device somebody pays for it. Where nobody does, it is on the current one, or the driver refuses.
        let others = account::all().filter(|other| file.is_some() && other.index() != account.index());
        let joined = others
            .into_iter()
            .find_map(|other| shared::joined(other, key, bytes));
        let share = match joined.map_or_else(|| shared::imported(account, key, bytes), Ok) {
            Ok(share) => share,
            Err(code) => return code,
        };
        let result = call(&raw const described);
        if result.is_success() {
            if let Some(own) = own {
                own.taken_over();
            }
            // SAFETY: the driver has just filled it in.
            imports::external(unsafe { out.read() } as usize, share, ask::current_context());
        } else {
            share.ended();
        }
        result
    })
}

pub(super) unsafe extern "C-unwind" fn cuDestroyExternalMemory(memory: CUexternalMemory) -> CUresult {
    guard(|| {
        // SAFETY: the argument is handed on as it came.
        let call = || unsafe { forward::cuDestroyExternalMemory(memory) };
        if !account::keeps_books() {
            return call();
        }
        let leaving = imports::external_leaving(memory as usize);
        let result = call();
        match leaving {
            Some(leaving) if result.is_success() => leaving.gone(),
            Some(leaving) => leaving.refused(memory as u64),
            None => {}
        }
        result
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
            if result.is_success() && account::keeps_books() {
                imports::external_mapped(memory as usize, out.read());
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
            if result.is_success() && account::keeps_books() {
                imports::external_mapped(memory as usize, out.read() as u64);
            }
            result
        }
    })
}
