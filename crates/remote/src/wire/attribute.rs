//! Attributes whose value's type depends on the attribute: what each one's value is.

use divvy_abi::*;

use crate::handle::Kind;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// So many bytes that mean the same in each process.
    Plain(usize),
    /// An object.
    Object(Kind),
}

impl Value {
    /// Bytes of it in the program's memory.
    pub fn bytes(self) -> usize {
        match self {
            Value::Plain(bytes) => bytes,
            Value::Object(_) => 8,
        }
    }
}

/// Of an address.
pub fn of_pointer(attribute: CUpointer_attribute) -> Option<Value> {
    Some(match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => Value::Object(Kind::Context),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Value::Object(Kind::Pool),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => Value::Plain(4),
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_IS_MANAGED
        | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE
        | CU_POINTER_ATTRIBUTE_MAPPED => Value::Plain(1),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | CU_POINTER_ATTRIBUTE_HOST_POINTER
        | CU_POINTER_ATTRIBUTE_BUFFER_ID
        | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
        | CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
        | CU_POINTER_ATTRIBUTE_MAPPING_SIZE
        | CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Value::Plain(8),
        _ => return None,
    })
}

/// Of a memory pool.
pub fn of_pool(attribute: CUmemPool_attribute) -> Option<Value> {
    Some(match attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Value::Plain(4),
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        | CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        | CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
        | CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        | CU_MEMPOOL_ATTR_USED_MEM_HIGH => Value::Plain(8),
        _ => return None,
    })
}
