//! The slice that a caller runs in, by what the kernel says.

use std::sync::Arc;

use divvy_model::Fault;

use crate::decide::nesting::{self, Caller, Membership};
use crate::life::members::Members;
use crate::state::State;
use crate::system::peer::Peer;
use crate::system::procs;

/// Finds the slices that processes run in.
pub(crate) struct Homes {
    pub members: Arc<Members>,
}

struct Of<'a>(&'a State, &'a Members);

impl Membership for Of<'_> {
    fn is_run(&self, id: &str, pid: u32) -> bool {
        self.0.slices.get(id).is_some_and(|slice| slice.is_run_by(pid))
    }

    fn is_attached(&self, id: &str, pid: u32) -> bool {
        self.1.roster.has(id, pid)
    }
}

impl Homes {
    /// The slice that the caller runs in, by id: see [`nesting::home`]. `named` is the slice that its environment
    /// names.
    ///
    /// # Errors
    /// [`divvy_model::Code::NotAllowed`] for a caller that has ended, and where its ancestors cannot be known for sure.
    pub fn of(&self, state: &State, peer: Peer, named: Option<&str>) -> Result<Option<String>, Fault> {
        let ancestors = peer.ancestors()?;
        let caller = Caller {
            uid: peer.uid,
            pid: peer.pid,
            ancestors: &ancestors,
            named,
        };
        let found = nesting::home(&state.family(), caller, &Of(state, &self.members));
        let found = found.map(|record| record.id.clone());
        // The result counts only for a caller that still lives: its number may mean another process after that.
        peer.require_life()?;
        Ok(found)
    }

    /// Whether the caller may change the limits of slice `id`: a caller in a slice changes only slices inside its own.
    ///
    /// # Errors
    /// [`divvy_model::Code::OutsideSlice`]; those of [`Self::of`].
    pub fn check_reach(&self, state: &State, peer: Peer, id: &str) -> Result<(), Fault> {
        let home = self.of(state, peer, None)?;
        nesting::check_reach(&state.family(), home.as_deref(), id)
    }
}

/// The slice and the `divvy run`, by its process id, that process `pid` is nearest to.
pub(crate) fn nearest_run(state: &State, pid: u32) -> Option<(String, u32)> {
    let ancestors = procs::ancestors(pid, procs::start_ticks(pid)?).ok()?;
    ancestors.into_iter().find_map(|above| {
        let mut slices = state.slices.values();
        let slice = slices.find(|slice| slice.is_run_by(above))?;
        Some((slice.record.id.clone(), above))
    })
}
