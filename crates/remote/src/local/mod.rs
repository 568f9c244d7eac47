//! A connection between a program and its worker on the same machine: a socket that says who is there, and a region of
//! shared memory with a ring for each thread.
//!
//! ```text
//! program                           worker
//!    │ connect, begins ─────────────> │ a process for this program alone
//!    │ <──────── greeting, the region │
//!    │ channel 0 ───────────────────> │ a thread for this channel
//!    │ ═══ messages, by the ring ════ │
//!    │ the socket closes ───────────> │ the process ends, and the driver below frees what it had
//! ```
//!
//! Each process of a tenant has a worker process of its own, as each has a context of its own on a device that it has
//! itself. So the end of the one is the end of the other, whatever killed it.
//!
//! A program in a virtual machine has its region in memory that the machine shares with its host. The host's relay brings
//! the worker that memory. The two sides cannot wake each other there, and nap: see docs/adr/0049.

pub mod connector;
pub mod handshake;
mod peer;
pub mod serve;
mod wake;

pub use connector::LocalConnector;
pub use serve::serve;

/// How long two sides of one kernel wait for each other.
#[must_use]
pub fn limits() -> divvy_ring::Limits {
    wake::Wake::of(false).limits()
}

/// Channels of a region: as many threads of one program make CUDA calls at the same time.
pub const CHANNELS: u32 = 64;
