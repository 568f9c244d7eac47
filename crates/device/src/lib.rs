//! An emulated device: memory, an engine on a clock of its own, MIG instances, and the NVML that shows them.
//!
//! The driver above it is `divvy-emulator`, which computes. This crate knows no PTX: a caller that only manages or
//! reads emulated devices needs no more than this. [`devices`], [`usage`] and [`engine_usage`] describe the devices
//! without initialising anything.

pub mod clock;
mod container;
mod device;
pub mod engine;
mod error;
pub mod exec;
mod granted;
mod hardware;
pub mod inventory;
pub mod log;
pub mod memory;
mod mig;
pub mod notice;
mod nvml;
mod page_file;
mod pages;
mod pid;
pub mod product;
mod run_directory;
pub mod shared;
mod stand_in;

pub use container::{Grant, grant};
pub use device::{Device, JoinError};
pub use engine::usage::{EngineUsage, ProcessEngineUsage, engine_usage, engine_usage_in, set_time_slice};
pub use error::HardwareError;
pub use granted::granted_in;
pub use hardware::{ProcessUsage, Usage, page_files_in, usage, usage_in};
pub use inventory::{DeviceFacts, devices, devices_from_env};
pub use mig::{Instance, State as MigState, StoreError};
pub use nvml::{TABLE as NVML_TABLE, brand, nvlinks};
pub use pages::{SOCKET as PAGES_SOCKET, SetAsideError, new_engine_page, pages_of, set_aside};
pub use pid::NAMESPACE;
pub use product::identity::{PciAddress, Uuid};
pub use product::spec::{SpecError, Timing};
pub use run_directory::{default_run_directory, run_directory};
pub use stand_in::stand_for;

/// What the fuzz targets under `fuzz/` call; not for use.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::engine::corruption::engine_page;
}
