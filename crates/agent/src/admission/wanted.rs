//! A request as the agent understood it.

use divvy_model::{Isolation, Mode};
use serde::{Deserialize, Serialize};

use crate::api::{CreateSlice, Join};

/// A request for a slice that is to be made. It is stored with the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// The request.
    pub ask: CreateSlice,
    /// The slice around it, by id.
    pub parent: Option<String>,
    /// The caller joins it as soon as it exists: a user's default slice.
    pub then_join: bool,
}

/// Whether a run leaves its slice to the agent: it gives no size, no name, nothing that needs a slice of its own.
pub(crate) fn asks_for_nothing(ask: &CreateSlice) -> bool {
    let request = &ask.request;
    request.memory.is_none()
        && request.name.is_none()
        && request.terms.compute.is_default()
        && request.terms.isolation == Isolation::Cooperative
        && !request.terms.whole
        && request.terms.sharing.mode == Mode::Lease
        && !ask.lasting
}

/// The request to join a slice instead of making one.
pub(crate) fn join_of(ask: &CreateSlice) -> Join {
    Join {
        command: ask.command.clone(),
        inside: ask.inside.clone(),
        step: false,
        dry_run: ask.dry_run,
    }
}
