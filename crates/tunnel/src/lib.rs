//! Devices of other hosts: the messages of CUDA calls over TCP, with TLS and certificates on both sides.
//!
//! ```text
//!   host of the program                            host of the device
//! ┌──────────────────────────┐                  ┌──────────────────────────────┐
//! │ program   divvy run      │                  │ divvy remote serve    worker │
//! │    │ ring    │           │  TLS, a          │    │           ring     │    │
//! │    └────────>└───────────┼─connection──────>┼────┘───────────────────>┘    │
//! │                [`near`]  │  a thread        │ [`far`]                      │
//! └──────────────────────────┘                  └──────────────────────────────┘
//! ```
//!
//! Program and worker are those of one host: each has a ring ([`divvy_ring`]) to its neighbour, which relays. So the
//! program's process has no private key and no thread of TLS, and the process at the network has no device.
//!
//! * [`allowance`]: what a client's slices have together;
//! * [`certificate`]: the server's authority, and invitations of clients;
//! * [`near`]: the client's relay, a part of `divvy run`;
//! * [`far`]: the server's relay;
//! * [`talk`]: what the two say beside CUDA calls.

pub mod allowance;
pub mod certificate;
pub mod far;
pub mod near;
mod newcomers;
pub mod talk;
pub mod tls;

pub use allowance::{Allowance, Shares};
pub use certificate::{Authority, Identity, a_year};
pub use talk::Wanted;

/// The variable of this environment by which a network is emulated, where its text is not understood, and what a right one
/// looks like.
#[must_use]
pub fn misunderstood_network() -> Option<(&'static str, &'static str)> {
    divvy_remote::stream::emulated::Network::misunderstood()
}

/// Bytes of the largest message of a CUDA call.
pub(crate) const MESSAGE: usize = 1 << 20;
