//! The split driver: CUDA calls as messages, the program's stubs, and the server that makes the calls.
//!
//! A tenant of the isolation level `enforced` holds no device. Its driver turns each call into a message ([`client`]),
//! and a server in another process makes the call on the driver below ([`server`]). What moves the messages is a
//! [`Transport`].
//!
//! * [`wire`]: what a message looks like, from the roles of `crates/abi/roles.txt`;
//! * [`handle`]: the names by which the program knows the server's objects;
//! * [`client::TABLE`]: the driver that a program sees;
//! * [`server::Server`]: the driver's other half, which believes nothing that a message says.
//!
//! Stubs and dispatch of most entry points are generated from the roles. Where a role cannot say what a call needs, a file
//! of each half is written by hand: `module.rs`, `launch.rs`, `memcpy.rs`, `primary.rs`, `local.rs`.

const _: () = assert!(
    cfg!(target_endian = "little"),
    "messages hold structures as both sides lay them out"
);

pub mod client;
mod fork;
pub mod fuzzing;
pub mod handle;
mod image;
pub mod local;
pub mod nvml;
pub mod server;
pub mod stream;
mod transport;
pub mod wire;

pub use local::LocalConnector;
pub use transport::{Connector, Lost, NotOpened, Transport};
