//! The driver API: one file per area, and the table of all that is implemented.

#[macro_use]
mod macros;

mod args;
mod array;
mod array_copy;
mod capture;
mod context;
mod current;
mod device;
mod event;
mod external;
mod find;
mod function;
mod graph;
mod graph_exec;
mod graph_memory;
mod graph_nodes;
mod graph_params;
mod host_memory;
mod init;
mod ipc;
mod ipc_event;
mod launch;
mod library;
mod link;
mod managed;
mod memcpy;
mod memop;
mod memory;
mod memset;
mod module;
mod occupancy;
mod peer;
mod pointer;
mod pool;
mod pool_share;
mod primary;
mod procaddress;
mod shareable;
mod stream;
mod stream_name;
mod table;
mod texture;
mod vmm;

pub use table::TABLE;

use crate::{Result, fork};
use divvy_abi::{CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS, CUresult};

/// Turns a body's outcome into what C expects. No panic passes, and a forked child gets nowhere.
pub fn answer(body: impl FnOnce() -> Result) -> CUresult {
    if fork::is_child() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    divvy_abi::guard(|| match body() {
        Ok(()) => CUDA_SUCCESS,
        Err(code) => code,
    })
}
