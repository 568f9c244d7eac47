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
mod held;
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
pub use container::{Grant, NAMESPACE, grant, granted_in};
pub use device::identity::{PciAddress, Uuid};
pub use device::spec::{SpecError, Timing};
pub use engine::usage::{EngineUsage, ProcessEngineUsage, engine_usage, engine_usage_in, set_time_slice};
pub use hardware::{
    HardwareError, ProcessUsage, Usage, default_run_directory, run_directory, usage, usage_in,
};
pub use held::{Kept, SOCKET as PAGES_SOCKET, new_engine_page, pages_of, set_aside};
pub use inventory::{DeviceFacts, devices, devices_from_env, stand_for};
pub use mig::{Instance, State as MigState, StoreError};
pub use nvml::{TABLE as NVML_TABLE, nvlinks};

/// What the fuzz targets under `fuzz/` call; not for use.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads bytes as a fatbin container, as a load does, and wants its text for every device there may be. Answers the bytes of
    /// text after the load, after the first device and in the end.
    pub fn fatbin(bytes: &[u8]) -> [u64; 3] {
        let Ok(image) = crate::image::Image::from_fatbin(bytes) else {
            return [0; 3];
        };
        let loaded = image.spent();
        let _one = image.text(u32::MAX).is_ok();
        let first = image.spent();
        for sm in 0..=130 {
            let _other = image.text(sm).is_ok();
        }
        [loaded, first, image.spent()]
    }

    /// The most text that one load may come to, in bytes.
    pub const FATBIN_MOST: u64 = crate::image::fatbin::MAX_TOGETHER;

    pub use crate::engine::scribble::engine_page;
}

/// What a call comes to: a driver error is a CUresult.
type Result<T = ()> = std::result::Result<T, divvy_abi::CUresult>;
