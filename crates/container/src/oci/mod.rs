//! What an engine hands to its OCI runtime, and what we add to it where a container asks for devices or a slice.
//!
//! The engine makes a bundle's config.json out of what an image and a user say, and a process of the image may hold the
//! folder open. So it is bytes from outside. We change the configuration only: the runtime resolves mounts inside the
//! container's root and makes the device nodes.

mod arguments;
mod bundle;
mod container;
mod devices;
mod edit;
mod request;
mod variables;

pub use arguments::{Arguments, Verb};
pub use bundle::{Bundle, MOST_BYTES, parse};
pub use container::Container;
pub(crate) use container::clean;
pub use devices::devices;
pub use edit::{Node, apply, check_mounts, node};
pub use request::{Request, Trust, Wanted, request};
pub use variables::{Nvidia, amd, nvidia};
