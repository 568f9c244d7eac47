//! How pages reach a process: the attach protocol, over the slice's own socket.
//!
//! A slice's keeper (`divvy run`) listens on a unix stream socket, `<run>/slices/<id>/attach.sock`. One connection is
//! one request and one reply of [`wire::MESSAGE_BYTES`] each; descriptors travel beside them (SCM_RIGHTS).
//!
//! - A **tenant** asks to attach and receives both pages: [`connect`].
//! - An **observer** asks to look, and receives both for reading only: [`observe()`].
//! - The **agent** hands the keeper new pages: [`deliver`]; and, restarted, asks for them back: [`recall`].
//! - The **keeper** answers them all: [`Keeper::serve`]. It needs no agent for it.
//!
//! docs/adr/0002 says why a socket and not files or inherited descriptors.

mod agent;
mod channel;
mod error;
mod keeper;
mod observe;
mod peer;
mod tenant;
mod wait;
pub mod wire;

pub use agent::{Pages, Recalled, deliver, recall};
pub use error::AttachError;
pub use keeper::{Keeper, Served};
pub use observe::{Observed, ObservedProcess, observe};
pub use tenant::{Attached, GrantRef, connect};
pub use wait::Waiting;
