//! How pages reach a process: the attach protocol, over the slice's own socket.
//!
//! A slice's keeper (`divvy run`) listens on a unix stream socket, `<run>/slices/<id>/attach.sock`. One connection is
//! one request and one reply of [`wire::MESSAGE_BYTES`] each; descriptors travel beside them (SCM_RIGHTS).
//!
//! - A **tenant** asks to attach and receives both pages: [`connect`].
//! - An **observer** asks to look, and receives both for reading only: [`observe()`].
//! - The **agent** hands the keeper new pages: [`deliver`]; and, restarted, asks for them back: [`recall`].
//! - The agent also asks who attached: [`members()`].
//! - The **keeper** answers them all: [`Keeper::serve`]. It needs no agent for it. What may be asked depends on the socket
//!   ([`Door`]): tenants and observers come to one, the agent to another where nobody else may connect.
//! - A process that uses an **emulated device** asks the holder of its pages for them: [`device_pages`].
//! - The sockets are made by the agent, and handed to the keeper: [`Sockets`].
//!
//! docs/adr/0002 says why a socket and not files or inherited descriptors; docs/adr/0033, why two.

mod agent;
mod channel;
mod device;
mod error;
mod keeper;
mod members;
mod observe;
mod peer;
mod sockets;
mod tenant;
mod wait;
pub mod wire;

pub use agent::{Pages, Recalled, deliver, members, recall};
pub use device::{DevicePages, device_pages, serve_device};
pub use error::AttachError;
pub use keeper::{Door, Keeper, Served};
pub use members::Member;
pub use observe::{Observed, ObservedProcess, observe};
pub use sockets::{Sockets, answer, fetch, give, refuse, take};
pub use tenant::{Attached, GrantRef, connect};
pub use wait::Waiting;
