//! The CUDA runtime's ABI: types, and one declaration table for each release of which a program can ask by name.
//!
//! The types are CUDA 13's. [`v12`] and [`v13`] have the tables of libcudart.so.12 and libcudart.so.13. A structure that
//! had another size in CUDA 12 stands beside CUDA 13's with `_12` behind its name.
//!
//! * `v12::Table`, `v13::Table`: one typed function pointer for each exported symbol; `Table::UNSUPPORTED` answers each
//!   with `cudaErrorNotSupported`;
//! * `v12::Symbol`, `v13::Symbol`: the symbols' numbers and names;
//! * [`runtime12_functions!`](crate::runtime12_functions), [`runtime13_functions!`](crate::runtime13_functions): the
//!   tables themselves;
//! * [`export_runtime_table!`](crate::export_runtime_table): turns a table into the exports of a drop-in library.

pub use core::ffi::{c_char, c_void};

mod export;
mod generated;
mod table;

pub use crate::generated::records::{
    CUdevResourceDesc_st, CUevent_st, CUextMemory_st as CUexternalMemory_st,
    CUextSemaphore_st as CUexternalSemaphore_st, CUfunc_st, CUgraph_st, CUgraphDeviceUpdatableNode_st,
    CUgraphExec_st, CUgraphNode_st, CUkern_st, CUlib_st, CUlogsCallbackEntry_st, CUmemPoolHandle_st,
    CUstream_st, CUuserObject_st, CUuuid as CUuuid_st,
};
pub use generated::{aliases::*, constants::*, enumerations::*, records::*, records12::*};
pub use table::{v12, v13};

/// Sizes of a grid or a block, in its three directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct dim3 {
    /// Along x.
    pub x: u32,
    /// Along y.
    pub y: u32,
    /// Along z.
    pub z: u32,
}

/// A vector of three numbers, which only nvcc's registration passes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs)]
pub struct uint3 {
    pub x: u32,
    pub y: u32,
    pub z: u32,
}
