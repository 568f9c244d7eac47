//! Quota over any driver below: a slice's allocations are charged to its ledger, and all other calls pass through.
//!
//! - [`TABLE`]: the limiter as a driver. It has its own functions for calls that it charges or answers for the slice.
//!   Every other symbol is a jump into the driver below ([`below`]).
//! - [`tenant`]: this process's membership in its slice.
//! - [`account`]: which pair of pages is charged for which device, and the one place where memory is reserved.
//! - `charges`: the charges of this process ([`divvy_charges`]). `driver`: the driver as that crate uses it.
//! - `gate`: whether this process may launch now, and which work it has in flight. `leave`: ends of contexts and the
//!   process.
//! - [`hooks`]: the limiter's own functions, one file per area.
//! - [`nvml`]: the limiter as an NVML, which shows the slice to tools.
//!
//! All of this runs inside other programs: it prints nothing, keeps no descriptor and starts no thread but the gate's.
//! A panic ends where it began. `DIVVY_SLICE` names the slice's attach socket; without it nothing is limited.
//! `DIVVY_DRIVER` names the driver below by absolute path; `DIVVY_NVML` the NVML below; `DIVVY_LOG` a file for lines
//! about failures.

pub mod account;
pub mod below;
mod bypass_libraries;
mod charges;
mod devices;
mod driver;
mod environment;
mod gate;
pub mod hooks;
mod leave;
mod log;
pub mod nvml;
pub mod tenant;
mod threads;

pub use bypass_libraries::serve_opencl;
pub use environment::capture as capture_environment;
pub use hooks::TABLE;
