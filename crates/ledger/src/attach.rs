//! How pages reach a process: the attach protocol, over the slice's own socket.
//!
//! A slice's page server ([`PageServer`]; `divvy run` is one) listens on a unix stream socket,
//! `<run>/slices/<id>/attach.sock`. One connection is one request and one reply of [`wire::MESSAGE_BYTES`] each;
//! descriptors travel beside them (SCM_RIGHTS).
//!
//! - A **tenant** asks to attach and receives both pages: [`connect`].
//! - An **observer** asks to look, and receives both pages read-only: [`observe()`].
//! - The **agent** hands the page server new pages: [`deliver`]. After a restart it asks for them back: [`recall`].
//! - The agent also asks which processes attached: [`members()`].
//! - The **page server** answers them all: [`PageServer::serve`]. It needs no agent for that. The socket decides what
//!   may be requested ([`Door`]): tenants and observers use one, and the agent another, where no other user may connect.
//! - A process that uses an **emulated device** asks the holder of its pages for them: [`device_pages`].
//! - The agent makes the sockets and hands them to the page server: [`Sockets`].
//!
//! docs/adr/0002 explains why there is a socket rather than files or inherited descriptors; docs/adr/0033, why there
//! are two.

mod agent;
mod channel;
mod device;
mod error;
mod members;
mod observe;
mod page_server;
mod peer;
mod sockets;
mod tenant;
mod wait;
pub mod wire;

pub use agent::{Pages, Recalled, deliver, members, recall};
pub use device::{DevicePages, device_pages, serve_device};
pub use error::AttachError;
pub use members::Member;
pub use observe::{Observed, ObservedProcess, observe};
pub use page_server::{Door, PageServer, Served};
pub use sockets::{Sockets, answer, fetch, give, refuse, take};
pub use tenant::{Attached, GrantRef, connect};
pub use wait::Waiting;
