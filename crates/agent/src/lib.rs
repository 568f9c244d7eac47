//! The daemon of a host, and what its callers need to use it.
//!
//! - [`serve_agent`]: the agent: admission, slices, pages, HTTP API on a unix socket.
//! - [`Client`] and [`ensure_agent`]: to ask it, and to start it on demand.
//! - [`Keeper`] and [`launch`]: a program's slice while the program runs, whether an agent runs or not.
//!
//! The agent's state is files under its run directory ([`RunDir`]) and pages that the keepers hold, so that killing
//! it at any moment loses nothing.
#![forbid(unsafe_code)]

pub mod admission;
mod adopt;
pub mod api;
mod attendant;
mod audit;
pub mod bypass;
mod change;
mod client;
pub mod clock;
mod compute;
pub mod container;
mod create;
mod daemon;
mod elf;
mod elf64;
mod journal;
mod keeper;
mod lasting;
pub mod launch;
mod leasing;
mod looks;
mod meter;
mod metrics;
mod modes;
mod names;
mod nesting;
mod owner;
mod pages;
mod placement;
mod policy;
pub mod privilege;
mod procs;
mod queue;
mod quota;
mod records;
mod resize;
mod rundir;
mod server;
mod settings;
mod silence;
mod slice;
mod stage;
mod start;
mod stream;
mod supervise;
mod watched;

pub use audit::strangers;
pub use client::Client;
pub use daemon::{Daemon, KeepCommand, Peer};
pub use keeper::{Keeper, keep};
pub use owner::{Owner, owner};
pub use rundir::{RunDir, default_run_dir};
pub use server::serve_agent;
pub use settings::{CONTEXT_OF_A_GPU, Settings};
pub use stage::{DropIns, Link, Pair, Stage, stage, stage_for_containers};
pub use start::{close_inherited, ensure_agent, is_listening};
pub use supervise::{Watch, exit_code, hold_back_file_size, let_go};
