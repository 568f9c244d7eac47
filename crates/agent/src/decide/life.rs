//! What becomes of slices: whether one ends, and which go with containers that are gone.

use std::collections::HashMap;

use divvy_model::Attendant;

/// What becomes of a slice after a look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It stays as it is.
    Stays,
    /// Nothing keeps it and nothing uses it.
    Ends,
    /// Its keeper is gone, its processes are not.
    Orphaned,
}

/// What becomes of a slice. `kept`: its keeper lives. `may_be_in_use` tells whether processes may use it, and is asked
/// only where that counts.
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

/// Rounds without any of a slice's containers that make sure: one of them may be just becoming its program.
const SURE: u32 = 2;

/// What a round saw of the containers of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Nothing new.
    Nothing,
    /// Its first container has it.
    Taken,
    /// None of its containers is there, and none is waited for.
    Missed,
}

/// What a round at `now`, in seconds since the epoch, saw of a slice that goes with `attendant`. `seen`: it has a container.
#[must_use]
pub fn sight_of(attendant: &Attendant, seen: bool, now: u64) -> Sight {
    let Attendant::Containers { until_unix_s, taken } = attendant else {
        return Sight::Nothing;
    };
    match (seen, *taken) {
        (true, true) => Sight::Nothing,
        (true, false) => Sight::Taken,
        (false, false) if now < *until_unix_s => Sight::Nothing,
        (false, _) => Sight::Missed,
    }
}

/// The slices whose containers were missed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// In how many rounds in a row, by slice.
    pub missed: HashMap<String, u32>,
    /// Those whose containers are gone for sure.
    pub over: Vec<String>,
    /// Another round is to make sure of some.
    pub is_unsure: bool,
}

/// Counts one more round, which missed the containers of these slices. `before` are the rounds before.
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
