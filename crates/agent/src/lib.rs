//! The daemon of a host, and what its callers need to use it.
//!
//! - [`serve_agent`]: the agent: admission, slices, pages, HTTP API on a unix socket.
//! - [`Client`] and [`ensure_agent`]: to ask it, and to start it on demand.
//! - [`Keeper`] and [`launch`]: a program's slice while the program runs, whether an agent runs or not.
//!
//! The agent's state is files under its run directory ([`RunDir`]) and pages that the keepers hold, so that killing
//! it at any moment loses nothing.
#![forbid(unsafe_code)]
// A test makes and looks at files as it likes.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod admission;
mod adopt;
mod allowance;
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
mod files;
mod holder;
mod journal;
mod keeper;
mod known;
mod lasting;
pub mod launch;
mod leasing;
mod lines;
mod lives;
mod locks;
mod log;
mod looks;
mod members;
mod meter;
mod metrics;
mod modes;
mod names;
mod nesting;
mod nudge;
mod openings;
mod owner;
mod pages;
mod peer;
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
mod trust;
mod viewer;
mod watched;

pub use audit::strangers;
pub use client::Client;
pub use daemon::{Daemon, KeepCommand};
pub use keeper::{Keeper, keep};
pub use names::REFUSED;
pub use owner::{Owner, owner, system_owner};
pub use peer::{Peer, callers_are_pinned};
pub use rundir::{RunDir, default_run_dir};
pub use server::serve_agent;
pub use settings::{CONTEXT_OF_A_GPU, Settings};
pub use stage::{DropIns, Link, Pair, Stage, stage, stage_for_containers};
pub use start::{close_inherited, ensure_agent, is_listening, wait_for_end};
pub use supervise::{Watch, exit_code, hold_back_file_size, let_go};
pub use trust::{SYSTEM_RUN_DIR, admits_others, root_may_believe, system_run_dir};
