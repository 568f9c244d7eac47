//! A device of the model: what it runs, and what is in flight on it.

use std::collections::VecDeque;

use crate::Nanos;

/// A kernel in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Nanoseconds still to run; [`Nanos::MAX`] for one that never ends.
    pub left: Nanos,
    /// The gate's estimate of its length.
    pub estimate: Nanos,
    /// The gate's entry for launches of this kind.
    pub kind: usize,
    /// It cannot start before.
    pub ready: Nanos,
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    /// Streams with work, in their order: once for each kernel, or once for each stream under time-slicing.
    pub order: VecDeque<(usize, usize)>,
    pub running: Option<Running>,
    pub serial: u64,
    pub last: Option<usize>,
    pub idle_since: Nanos,
    /// Actors that want to use the device, and since when there are any.
    pub wanting: u32,
    pub wanting_since: Nanos,
    pub busy: Nanos,
    pub idle_while_wanted: Nanos,
    /// Since when two best-effort actors have had work in flight, and each such time of more than a moment.
    pub overlaps_since: Option<Nanos>,
    pub overlaps: Vec<(Nanos, Nanos)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub actor: usize,
    pub stream: usize,
    pub from: Nanos,
}
