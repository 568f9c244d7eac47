//! Attributes through untyped pointers: of addresses, of memory pools, and of the memory of graphs.
#![allow(non_snake_case)]

use divvy_abi::*;

use super::{pinned, start, thread};
use crate::handle::Word;
use crate::wire::by_hand::{GRAPH_MEMORY_GET, GRAPH_MEMORY_SET, POINTER, POOL_GET, POOL_SET};
use crate::wire::{attribute, attribute::Value};

/// Asks for a value, and writes it where the program wants it.
///
/// # Safety
/// `to` has room for the value.
unsafe fn get(
    symbol: Symbol,
    id: u32,
    value: Option<Value>,
    to: *mut c_void,
    put: impl FnOnce(&mut crate::wire::Writer<'_>),
) -> CUresult {
    let Some(value) = value.filter(|_| !to.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    thread::call(id, symbol, put, |m, good| {
        if good {
            let bytes = m.bytes(value.bytes())?;
            // SAFETY: the caller vouches for the room.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
        }
        Ok(())
    })
}

/// An address as the server is asked about it, and what an answer that is an address is moved by.
fn seen(pointer: CUdeviceptr) -> (u64, u64) {
    match pinned::holding(pointer as usize).filter(|host| host.device != 0) {
        Some(host) => {
            let device = host.device + (pointer - host.start as u64);
            (device, pointer.wrapping_sub(device))
        }
        None => (pointer, 0),
    }
}

/// Attributes that are addresses of the program.
fn is_address(attribute: CUpointer_attribute) -> bool {
    matches!(
        attribute,
        CU_POINTER_ATTRIBUTE_HOST_POINTER
            | CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
            | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
    )
}

/// # Safety
/// `to` has room for the attribute's value.
unsafe fn of_pointer(
    symbol: Symbol,
    attribute: CUpointer_attribute,
    pointer: CUdeviceptr,
    to: *mut c_void,
    lenient: bool,
) -> CUresult {
    let is_managed = attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED && !to.is_null();
    if is_managed && pinned::holding(pointer as usize).is_some_and(|host| host.managed) {
        // SAFETY: promised by the caller: its value is a byte.
        unsafe { to.cast::<u8>().write(1) };
        return CUDA_SUCCESS;
    }
    let (asked, moved) = seen(pointer);
    // SAFETY: promised by the caller.
    unsafe {
        let value = attribute::of_pointer(attribute);
        let code = get(symbol, POINTER, value, to, |m| {
            m.flag(lenient);
            m.plain(attribute.0);
            m.plain(asked);
        });
        if code == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL {
            let device: *mut CUdevice = to.cast();
            device.write_unaligned(start::from_worker(device.read_unaligned()));
        }
        if code == CUDA_SUCCESS && moved != 0 && is_address(attribute) {
            let address: *mut u64 = to.cast();
            address.write_unaligned(address.read_unaligned().wrapping_add(moved));
        }
        code
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe { of_pointer(Symbol::cuPointerGetAttribute, attribute, ptr, data, false) }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuPointerGetAttributes(
    numAttributes: u32,
    attributes: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    ptr: CUdeviceptr,
) -> CUresult {
    if numAttributes == 0 || attributes.is_null() || data.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for at in 0..numAttributes as usize {
        // SAFETY: the program's lists have so many entries.
        let code = unsafe {
            let (attribute, to) = (attributes.add(at).read(), data.add(at).read());
            of_pointer(Symbol::cuPointerGetAttributes, attribute, ptr, to, true)
        };
        if code != CUDA_SUCCESS {
            return code;
        }
    }
    CUDA_SUCCESS
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe {
        get(
            Symbol::cuMemPoolGetAttribute,
            POOL_GET,
            attribute::of_pool(attr),
            value,
            |m| {
                m.plain(pool.bits());
                m.plain(attr.0);
            },
        )
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attr: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    let Some(of) = attribute::of_pool(attr).filter(|_| !value.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    thread::call(
        POOL_SET,
        Symbol::cuMemPoolSetAttribute,
        |m| {
            m.plain(pool.bits());
            m.plain(attr.0);
            // SAFETY: the program vouches for its pointer.
            unsafe { m.copy(value.cast(), of.bytes()) };
        },
        |_, _| Ok(()),
    )
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: *mut c_void,
) -> CUresult {
    // SAFETY: the program vouches for its pointer.
    unsafe {
        let of = Some(Value::Plain(8));
        get(
            Symbol::cuDeviceGetGraphMemAttribute,
            GRAPH_MEMORY_GET,
            of,
            value,
            |m| {
                m.plain(start::to_worker(device));
                m.plain(attr.0);
            },
        )
    }
}

/// # Safety
/// As NVIDIA's reference says.
pub unsafe extern "C-unwind" fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: *mut c_void,
) -> CUresult {
    if value.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    thread::call(
        GRAPH_MEMORY_SET,
        Symbol::cuDeviceSetGraphMemAttribute,
        |m| {
            m.plain(start::to_worker(device));
            m.plain(attr.0);
            // SAFETY: the program vouches for its pointer.
            unsafe { m.copy(value.cast(), 8) };
        },
        |_, _| Ok(()),
    )
}
