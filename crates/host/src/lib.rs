//! What this machine has: its devices, and the driver below each.
//!
//! NVIDIA's devices come from NVML, opened when asked for; a machine without it simply has none. Emulated devices
//! come from a specification such as `h100*2`. Nothing here keeps state.
#![forbid(unsafe_code)]

pub mod amd;
#[cfg(feature = "built")]
pub mod built;
mod driver;
mod elf;
mod emulated;
mod emulated_daemon;
mod emulated_tools;
mod inventory;
pub mod ladder;
pub mod machine;
pub mod mig;
pub mod mps;
pub mod nvidia;
mod survey;
pub mod timeout;
pub mod tool;
mod topology;
mod unanswered;
pub mod versions;
pub mod vgpu;
pub mod visible;

pub use divvy_abi::{Probe, probe};
pub use divvy_device::{Grant, NAMESPACE as EMULATED_NAMESPACE_FILE, PAGES_SOCKET, default_run_directory};
pub use driver::{DriverBelow, find_driver, native_candidates};
pub use emulated::{
    DEFAULT_EMULATED, EmulatedDevice, check_emulated, emulated_busy, emulated_devices, emulated_engine_use,
    emulated_page_files, emulated_pages_of, emulated_processes, emulated_use, emulated_used, grant_emulated,
    granted_emulated, new_engine_page, set_emulated_aside,
};
pub use emulated_daemon::is_emulated_daemon;
pub use emulated_tools::EmulatedTools;
pub use inventory::{Inventory, Sources, take};
pub use nvidia::{Nvidia, NvidiaReport};
pub use survey::{Survey, survey};
pub use timeout::Silence;
pub use topology::{Link, Nvlinks, links};
pub use unanswered::unanswered;
