//! MIG of an emulated device: which instances it is divided into, which users may change that, and what each is.
//!
//! The rules ([`rules`]) are those of the product's table and know neither files nor processes. The state ([`state`])
//! is a few lines of text in a file of the run directory ([`store`]), so that every process sees it. A container sees the
//! instances that it was granted. A process that
//! opens a context holds the file's lock while it takes its place, so that an instance in use never vanishes.
//! docs/adr/0027.

mod facts;
mod rules;
mod state;
mod store;

pub use facts::{Instance, Placed, compute_instance_uuid, gpu_instance_uuid};
pub use rules::{ComputeKind, Refusal, compute_kinds, profile};
pub use state::{ComputeInstance, GpuInstance, State};
pub use store::{Store, StoreError, find};
