//! The small processes that an agent starts beside itself, by the id that each is given.

use divvy_model::Fault;

use crate::holder::{self, HOLDER};
use crate::page_server;
use crate::start::rundir::RunDir;
use crate::supervisor::{self, WATCHDOG};

/// Does such a process's work until it is no longer needed. Two ids are no slice's: `emulated` makes it the holder of
/// emulated devices' pages, and `watchdog` makes it the supervisor's watchdog. Any other is that of a lasting slice, whose
/// pages it serves.
///
/// # Errors
/// [`divvy_model::Code::Attach`] when it gets no sockets, or cannot give up its privileges;
/// [`divvy_model::Code::Internal`] for a watchdog that cannot wait.
pub fn keep(run: &RunDir, id: &str) -> Result<(), Fault> {
    match id {
        HOLDER => holder::hold(),
        WATCHDOG => supervisor::watch(run),
        slice => page_server::keep(run, slice),
    }
}
