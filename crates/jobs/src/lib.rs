//! What a workload manager says of a job, and the slice that the job is to have.
//!
//! Slurm places jobs and counts `shard`s; nothing here places anything. The words of Slurm's controller come in as text, the
//! devices of the node as records, and a [`Plan`] or a [`Refusal`] comes out. No I/O.
#![forbid(unsafe_code)]

mod asked;
pub mod configuration;
mod details;
mod edit;
pub mod gres;
mod hosts;
pub mod include;
pub mod keys;
mod node;
mod plan;
pub mod plugin;
mod refusal;

pub use asked::Asked;
pub use configuration::Wanted;
pub use details::{Granted, details, shows_several, task_of};
pub use edit::{Edited, File, apply, has_whole_blocks, undo, with_plugin};
pub use hosts::contains;
pub use node::{Node, NodeDevice};
pub use plan::{Here, Plan, plan};
pub use refusal::{Refusal, Remedy};
