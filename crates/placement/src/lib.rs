//! Where claims and pods go in a cluster, decided by pure functions: no I/O, no clock, no randomness but a seed.
//!
//! - [`cluster`]: nodes with devices, claims and pods; [`read`] makes it of what `kubectl get -o json` prints.
//! - [`allocate`]: devices of one node for one pod's claims, by the stock allocator's rules; [`cel`] judges selectors.
//! - [`selections`]: which devices selectors select, looked at once.
//! - [`schedule`]: pods one after the other, as the stock scheduler takes them.
//! - [`plan`]: what came of it, how the rest is fragmented, and what would place more.
//! - [`fallback`]: clusters without DRA: what the scheduler extender counts and decides.
//!
//! docs/kubernetes.md says what it is for, docs/adr/0052 why it is so.
#![forbid(unsafe_code)]

pub mod allocate;
pub mod cel;
pub mod cluster;
pub mod fallback;
pub mod plan;
pub mod quantity;
pub mod read;
pub mod schedule;
pub mod selections;
