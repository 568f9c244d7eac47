//! Devices for programs in a virtual machine that has none.
//!
//! ```text
//!   guest                                       host
//!   program ── libcuda.so.1 (remote-cuda) ═══ part of the shared memory ═══ worker ── limiter ── device
//!      │ Unix socket                          (ivshmem, BAR 2)                │ Unix socket
//!   broker ───────────── virtio-serial port ──── QEMU ───────────────────── relay, in the slice
//! ```
//!
//! The machine and its host share one memory file. The [`broker`] is root's process in the guest: it has the device's
//! BAR open, and gives each program a part of it. The [`relay`] is a process of the tenant's on the host, inside the
//! slice. It asks the slice's listener for a worker for each program of the guest, and brings it that part. Over the
//! serial port go the beginning and the end of each connection and the numbers of channels ([`frame`]); messages and
//! bytes go through the shared memory alone.
//!
//! What comes from the guest is not trusted. The relay has no right but the tenant's own, and the worker judges the
//! region and each message as it does those of every program. docs/adr/0049 has the reasons.

pub mod broker;
pub mod devices;
pub mod frame;
pub mod init;
pub mod kit;
pub mod label;
pub mod machine;
pub mod memory;
pub mod program;
pub mod qemu;
pub mod relay;

/// The serial port's name.
pub const PORT: &str = "divvy.0";
