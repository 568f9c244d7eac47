//! The few hundred lines that run as root: typed requests, nothing parsed.
//!
//! An agent that admits several users runs as a user of its own. It asks a helper for what needs root, over a socket of
//! whole messages. A request has a fixed layout and names a process, a device or a slice by numbers. The helper checks
//! each again and trusts nothing that the agent says of them. docs/adr/0033-authority.md has the reasons.
//!
//! - [`request`], [`answer`]: what is asked and answered, and their bytes.
//! - [`Rules`] and [`perform`]: what root does for a request, and what it refuses.
//! - [`serve`]: the helper's loop. [`Privileged`]: the agent's side, in this process ([`Direct`]) or by a helper ([`Remote`]).
//! - [`confine`], [`user`]: how a process gives up what it does not need.
//! - [`workers`], [`jail`], [`cgroup`]: how the process that makes workers starts, how a worker is locked up, and how much of
//!   the host's memory all of a slice's may have.
#![forbid(unsafe_code)]

pub mod answer;
mod as_user;
mod calls;
pub mod cgroup;
mod channel;
mod client;
pub mod confine;
mod files;
mod folders;
pub mod jail;
mod process;
pub mod request;
mod rules;
pub mod serve;
mod stopped;
mod subordinate;
pub mod user;
mod vendor;
mod wire;
pub mod workers;

pub use channel::{Channel, inherited, pair};
pub use client::{Direct, Privileged, Remote, Reply};
pub use confine::{confine_agent, confine_helper, confine_page_server};
pub use process::{effective_user, mount_namespace, start_ticks};
pub use rules::{Rules, perform, perform_with};
