//! The daemon of a host, and the client interface for its callers.
//!
//! - [`serve_agent`]: the agent: admission, slices, pages, HTTP API on a unix socket.
//! - [`Client`] and [`ensure_agent`]: to ask it, and to start it on demand.
//! - [`PageServer`] and [`launch`]: a program's slice while the program runs, whether an agent runs or not.
//!
//! The agent's state is files under its run directory ([`RunDir`]) and pages that the page servers hold. So the agent
//! may be killed at any moment without a loss.
//!
//! # Contents
//!
//! | folder | for |
//! |---|---|
//! | `decide` | the agent's decisions, as pure functions: admission, placement, quota, queue, nesting, modes, compute |
//! | `admission` | a request on its way to a slice: its resolution, its devices, the queue |
//! | `life` | a slice from its record to its end: pages, page servers, resizing, adoption, containers |
//! | `lookout` | looks at devices and processes: memory audit, compute audit, bypasses, a silent driver |
//! | `leasing` | compute: the leases of devices' time |
//! | `modes` | effects of the ways of sharing: MPS daemons, time slices, MIG instances, and their undoing |
//! | `page_server`, `holder` | processes of their own: a slice's page server, the holder of emulated devices' pages |
//! | `server` | HTTP on the unix socket, and the work by the clock |
//! | `api` | the requests and answers |
//! | `journal` | the events |
//! | `start` | run directory, settings, log, and the start of an agent on demand |
//! | `launch` | a program's way into its slice; the client of the agent |
//! | `files`, `system` | files by descriptor; processes, peers, clocks, the privileged helper |
#![forbid(unsafe_code)]
// Test code may use file functions that the product may not.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod accounts;
mod admission;
pub mod api;
mod daemon;
mod decide;
mod files;
mod holder;
mod journal;
mod keep;
pub mod launch;
mod leasing;
mod life;
mod lookout;
mod modes;
mod page_server;
mod server;
mod start;
mod state;
mod supervisor;
mod system;
#[cfg(test)]
mod tests;

pub use admission::owner::{Owner, owner, system_owner};
pub use daemon::Daemon;
pub use journal::history::read_history;
pub use journal::kept::read_events;
pub use keep::keep;
pub use launch::client::Client;
pub use launch::stage::{DropIns, Link, Pair, Stage, stage, stage_for_containers, stage_for_others};
pub use launch::supervise::{Watch, exit_code, hold_back_file_size, let_go};
pub use life::container;
pub use life::names::REFUSED;
pub use lookout::bypass;
pub use page_server::PageServer;
// The command uses it under this name.
pub use lookout::devices::unmanaged_processes;
pub use server::serve_agent;
pub use start::on_demand::{close_inherited, ensure_agent, is_listening, wait_for_end};
pub use start::rundir::{KeepCommand, RunDir, default_run_dir};
pub use start::settings::{CONTEXT_OF_A_GPU, ReadSettings, Settings};
pub use start::trust::{SYSTEM_RUN_DIR, admits_others, root_may_believe, system_run_dir};
pub use system::peer::{Peer, callers_are_pinned};
pub use system::{clock, privilege};
