//! The end of slices: whether a slice ends, and which slices go with containers that are gone.

use std::collections::HashMap;

use divvy_model::LifetimeAnchor;

/// The decision on a slice after a look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The slice stays as it is.
    Stays,
    /// No page server serves it and no process uses it.
    Ends,
    /// Its page server is gone, but its processes are not.
    Orphaned,
}

/// Decides on a slice. `kept`: its page server lives. `may_be_in_use` tells whether processes may use the slice; it is
/// called only where that matters.
#[must_use]
pub fn ending(lasting: bool, kept: bool, may_be_in_use: impl FnOnce() -> bool) -> Ending {
    if lasting || kept {
        return Ending::Stays;
    }
    match may_be_in_use() {
        true => Ending::Orphaned,
        false => Ending::Ends,
    }
}

/// Rounds without any of a slice's containers until they count as gone: a process may be in the middle of an execve(2).
const SURE: u32 = 2;

/// What one round saw of a slice's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nothing has changed.
    Nothing,
    /// The slice's first container has come.
    Taken,
    /// None of its containers is there, and none is expected.
    Missed,
}

/// The result of a round at `now` (seconds since the epoch) for a slice that goes with `anchor`. `seen`: the slice
/// has a container.
#[must_use]
pub fn sight_of(anchor: &LifetimeAnchor, seen: bool, now: u64) -> Sight {
    let LifetimeAnchor::Containers { until_unix_s, taken } = anchor else {
        return Sight::Nothing;
    };
    match (seen, *taken) {
        (true, true) => Sight::Nothing,
        (true, false) => Sight::Taken,
        (false, false) if now < *until_unix_s => Sight::Nothing,
        (false, _) => Sight::Missed,
    }
}

/// The slices whose containers the rounds did not see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// The number of consecutive rounds that missed them, by slice.
    pub missed: HashMap<String, u32>,
    /// Those whose containers are gone for sure.
    pub over: Vec<String>,
    /// Whether another round is needed to make sure of some.
    pub is_unsure: bool,
}

/// Counts one more round that missed the containers of these slices. `before` holds the earlier rounds.
#[must_use]
pub fn missed_rounds(before: &HashMap<String, u32>, missed: Vec<String>) -> Rounds {
    let rounds = |id: String| {
        let count = before.get(&id).copied().unwrap_or_default() + 1;
        (id, count)
    };
    let missed: HashMap<String, u32> = missed.into_iter().map(rounds).collect();
    let over = missed.iter().filter(|(_, rounds)| **rounds >= SURE);
    Rounds {
        over: over.map(|(id, _)| id.clone()).collect(),
        is_unsure: missed.values().any(|rounds| *rounds < SURE),
        missed,
    }
}
