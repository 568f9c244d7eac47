//! What an address is: cuPointerGetAttribute and its kin.

use super::args::{In, InMut, Out};
use crate::Result;
use crate::driver::driver;
use crate::memory::allocation::{Allocation, Kind};
use divvy_abi::*;

entry! {
    fn cuPointerGetAttribute(data: Out<c_void>, attribute: CUpointer_attribute, pointer: u64) {
        data.required()?;
        let driver = driver()?;
        let allocation = driver.addresses.live.find(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        get(&data, attribute, pointer, &allocation)
    }

    // Unlike the single query, this one succeeds for an unknown address, with zeros.
    fn cuPointerGetAttributes(
        count: u32,
        attributes: InMut<CUpointer_attribute>,
        data: InMut<*mut c_void>,
        pointer: u64,
    ) {
        let driver = driver()?;
        let attributes = attributes.read().list(count as usize)?;
        let places = data.read().list(count as usize)?;
        let allocation = driver.addresses.live.find(pointer);
        for (attribute, place) in attributes.into_iter().zip(places) {
            let place = Out::at(place);
            match &allocation {
                Some(allocation) => get(&place, attribute, pointer, allocation)?,
                None => clear(&place, attribute)?,
            }
        }
        Ok(())
    }

    // Copies of this memory may be asked to be synchronous; ours are as synchronous as that asks for.
    fn cuPointerSetAttribute(value: In<c_void>, attribute: CUpointer_attribute, pointer: u64) {
        driver()?.addresses.live.find(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || value.pointer().is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(())
    }
}

fn get(data: &Out<c_void>, attribute: CUpointer_attribute, pointer: u64, allocation: &Allocation) -> Result {
    match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => match allocation.context {
            // A pool's memory belongs to no context.
            0 => data.set_as(0u64),
            handle => data.set_as(handle),
        },
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => data.set_as(
            if allocation.kind.is_device() || allocation.kind == Kind::Managed {
                CU_MEMORYTYPE_DEVICE
            } else {
                CU_MEMORYTYPE_HOST
            },
        ),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => data.set_as(pointer),
        CU_POINTER_ATTRIBUTE_HOST_POINTER => {
            if allocation.kind.is_device() {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            data.set_as(pointer)
        }
        CU_POINTER_ATTRIBUTE_BUFFER_ID | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
            data.set_as(allocation.buffer_id)
        }
        CU_POINTER_ATTRIBUTE_IS_MANAGED => data.set_as(u8::from(allocation.kind == Kind::Managed)),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
            // The device of the memory: memory from another process may be on another device than the context.
            data.set_as(allocation.device as i32)
        }
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => data.set_as(0u8),
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
            data.set_as(u8::from(allocation.kind == Kind::Device))
        }
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => {
            data.set_as(allocation.base)
        }
        CU_POINTER_ATTRIBUTE_RANGE_SIZE | CU_POINTER_ATTRIBUTE_MAPPING_SIZE => data.set_as(allocation.bytes),
        CU_POINTER_ATTRIBUTE_MAPPED => data.set_as(1u8),
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => data.set_as(
            allocation
                .mapped()
                .map_or(0, |mapped| u64::from(mapped.physical.handle_types)),
        ),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => data.set_as(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => data.set_as(match allocation.kind {
            Kind::Pooled { pool } | Kind::Imported { pool } => pool,
            _ => 0,
        }),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// The results of cuPointerGetAttributes for an address that belongs to no allocation.
fn clear(data: &Out<c_void>, attribute: CUpointer_attribute) -> Result {
    match attribute {
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => data.set_as(CU_DEVICE_INVALID),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => data.set_as(0u32),
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_IS_MANAGED
        | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE
        | CU_POINTER_ATTRIBUTE_MAPPED => data.set_as(0u8),
        CU_POINTER_ATTRIBUTE_CONTEXT
        | CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | CU_POINTER_ATTRIBUTE_HOST_POINTER
        | CU_POINTER_ATTRIBUTE_BUFFER_ID
        | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
        | CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
        | CU_POINTER_ATTRIBUTE_MAPPING_SIZE
        | CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
        | CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => data.set_as(0u64),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}
