//! A request as the agent understood it.

use divvy_model::{Isolation, Mode};
use serde::{Deserialize, Serialize};

use crate::api::{CreateSlice, Join};

/// A request for a slice that is to be made. It is stored with the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// What is asked for.
    pub ask: CreateSlice,
    /// The slice it is to be inside of, by id.
    pub parent: Option<String>,
    /// The caller joins it as soon as it is there: a user's default slice.
    pub then_join: bool,
}

/// Whether a run leaves its slice to the agent: no size, no name, nothing that only a slice of its own can have.
pub(crate) fn asks_for_nothing(ask: &CreateSlice) -> bool {
    let request = &ask.request;
    request.memory.is_none()
        && request.name.is_none()
        && request.compute_terms().is_default()
        && request.isolation == Isolation::Cooperative
        && !request.whole
        && request.share_mode == Mode::Lease
        && !ask.lasting
}

/// The request to join a slice in the place of having one made.
pub(crate) fn join_of(ask: &CreateSlice) -> Join {
    Join {
        command: ask.command.clone(),
        inside: ask.inside.clone(),
        dry_run: ask.dry_run,
    }
}
