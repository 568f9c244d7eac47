//! An emulated device that really computes: memory, streams, modules, launches.
//!
//! [`TABLE`] is the driver: a libcuda.so.1 that needs no GPU; [`NVML_TABLE`] is its libnvidia-ml.so.1. [`devices`] and [`usage`] describe the emulated
//! devices to whoever manages them, without initialising anything.

mod api;
mod array;
mod clock;
mod container;
mod context;
mod copy;
pub mod device;
mod driver;
mod engine;
mod event;
mod exec;
mod external;
mod fork;
mod function;
mod graph;
mod handle;
mod hardware;
mod image;
mod inventory;
mod jit;
mod launch;
mod library;
mod link;
mod log;
mod memop;
mod memory;
mod mig;
mod module;
mod nvml;
mod occupancy;
mod params;
mod pool;
mod print;
mod shared;
mod stream;

pub use api::TABLE;
pub use container::{Grant, NAMESPACE, grant, mend};
pub use device::identity::{PciAddress, Uuid};
pub use device::spec::{SpecError, Timing};
pub use engine::usage::{EngineUsage, ProcessEngineUsage, engine_usage, engine_usage_in, set_time_slice};
pub use hardware::{
    HardwareError, ProcessUsage, Usage, default_run_directory, run_directory, usage, usage_in,
};
pub use inventory::{DeviceFacts, devices, devices_from_env, stand_for};
pub use mig::{Instance, State as MigState, StoreError};
pub use nvml::{TABLE as NVML_TABLE, nvlinks};

/// What the fuzz targets under `fuzz/` call; not for use.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads bytes as a fatbin container and decompresses all of its files.
    pub fn fatbin(bytes: &[u8]) {
        if let Ok(files) = crate::image::fatbin::files(bytes) {
            for file in files {
                let _ = file.contents();
            }
        }
    }

    pub use crate::engine::scribble::engine_page;
}

/// What a call comes to: a driver error is a CUresult.
type Result<T = ()> = std::result::Result<T, divvy_abi::CUresult>;
