//! Quota over any driver below: what a slice allocates is charged to its ledger, everything else passes through.
//!
//! - [`TABLE`]: the limiter as a driver: its own functions where it charges or answers for the slice, and for every
//!   other symbol a jump into the driver below ([`below`]).
//! - [`tenant`]: this process's membership in its slice.
//! - [`account`]: which pair of pages pays for which device, and the one place where memory is reserved.
//! - `charges`: what this process is charged for ([`divvy_charges`]). `driver`: the driver as charges ask it.
//! - `gate`: whether this process may launch now, and what it has in flight. `leave`: ends of contexts and the process.
//! - [`hooks`]: the functions of our own, one file per area.
//! - [`nvml`]: the limiter as an NVML, which shows the slice to tools.
//!
//! All of this runs inside other people's programs: it prints nothing, keeps no descriptor, starts no thread but
//! the gate's, and a panic ends where it began. `DIVVY_SLICE` names the slice's attach socket; without it nothing is limited.
//! `DIVVY_DRIVER` names the driver below by absolute path; `DIVVY_NVML` the NVML below;
//! `DIVVY_LOG` a file that gets a line for what went wrong.

pub mod account;
pub mod below;
mod charges;
mod devices;
mod driver;
mod environment;
mod gate;
pub mod hooks;
mod leave;
mod log;
pub mod nvml;
mod strangers;
pub mod tenant;
mod threads;

pub use environment::capture as capture_environment;
pub use hooks::TABLE;
