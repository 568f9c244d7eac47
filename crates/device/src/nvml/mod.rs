//! The emulated devices as NVML shows them: what gpustat, nvitop, nvtop and nvidia-smi read.
//!
//! Everything here is answered from the device's profile and its hardware page. So a process that uses no CUDA sees
//! which processes use the device and how much of it. What is a device's own state on hardware (temperature, power,
//! clocks) is here a constant of the product, in [`board`]. What a data-centre card does not have (a fan, a display)
//! answers `NVML_ERROR_NOT_SUPPORTED` or "disabled", as on the card.

#[macro_use]
mod entry;

mod args;
mod board;
mod clocks;
mod compute_instances;
mod divisible;
mod events;
mod gpu_instances;
mod health;
mod identity;
mod library;
mod links;
mod memory;
mod mig;
mod modes;
mod processes;
mod sensors;
mod state;
mod table;
mod utilization;

pub use board::brand;
pub use links::nvlinks;
pub use table::TABLE;

use divvy_abi::guard;
use divvy_abi::nvml::{NVML_SUCCESS, nvmlReturn_t};

/// The result of a call: an NVML error is its code.
type Result<T = ()> = std::result::Result<T, nvmlReturn_t>;

/// Turns a body's outcome into what C expects. No panic passes.
fn answer(body: impl FnOnce() -> Result) -> nvmlReturn_t {
    guard(|| match body() {
        Ok(()) => NVML_SUCCESS,
        Err(code) => code,
    })
}
