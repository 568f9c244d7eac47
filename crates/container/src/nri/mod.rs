//! A plugin of containerd's and CRI-O's (NRI, github.com/containerd/nri): the runtime asks us of each container that it
//! makes, and we answer with what a slice adds to it.
//!
//! The protocol is small and written here, by docs/adr/0030: [`wire`] is protobuf's encoding, [`frame`] how messages
//! travel, [`message`] NRI's own, [`session`] who says what when. [`asks`] is what a pod's annotations ask for, and
//! [`adjustment`] what a CDI device's edits are in NRI's words.

mod adjust;
mod annotations;
pub mod frame;
pub mod message;
pub mod session;
pub mod wire;

pub use adjust::adjustment;
pub use annotations::{Asks, asks, is_id};
pub use message::{Adjustment, Container, Pod, Synchronize};
pub use session::{End, Plugin, serve};

/// Where runtimes listen for plugins.
pub const SOCKET: &str = "/var/run/nri/nri.sock";
/// What a runtime that starts a plugin by itself calls it.
pub const NAME_VARIABLE: &str = "NRI_PLUGIN_NAME";
/// Its place among the plugins: two digits.
pub const INDEX_VARIABLE: &str = "NRI_PLUGIN_IDX";
/// The descriptor that is connected already.
pub const SOCKET_VARIABLE: &str = "NRI_PLUGIN_SOCKET";

/// Whether runtimes take this for a plugin's place.
#[must_use]
pub fn is_index(text: &str) -> bool {
    text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit())
}
