//! NVML for programs without a device: queries as messages, and the process that answers them.
//!
//! ```text
//! program                             worker for queries
//!    │ connect ───────────────────────> │ a process for this program alone, in the jail
//!    │ <──── greeting: NVML's own code  │
//!    │ a query ───────────────────────> │ the limiter's NVML answers: the slice, not the device
//!    │ <──────────────── code, results  │
//! ```
//!
//! What is passed follows from the C types in the one table of NVML's symbols (`divvy_abi::nvml`). The few things that
//! types do not say stand in [`queries`]: which symbols are served, and which argument counts which list.

pub mod client;
pub mod queries;
pub mod server;
pub mod wire;

#[cfg(test)]
mod tests;
