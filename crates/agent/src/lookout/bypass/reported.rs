//! Reports of refused programs: others refuse a program that no limiter would hold to its slice, and tell the agent.
//! The program's user may have started it in the background, where no terminal shows the refusal.

use std::sync::Arc;

use divvy_model::{Fault, SliceRecord};

use crate::api::events::EventKind;
use crate::journal::Journal;
use crate::state::Shared;
use crate::system::peer::Peer;

/// The length of a report that is passed on.
const LONGEST: usize = 300;

/// Takes such reports.
pub(crate) struct Reports {
    /// The agent's own user.
    pub uid: u32,
    pub state: Shared,
    pub journal: Arc<Journal>,
}

impl Reports {
    /// Writes down that a program of a slice's container was refused.
    ///
    /// # Errors
    /// [`divvy_model::Code::UnknownSlice`], [`divvy_model::Code::NotAllowed`].
    pub fn refused(&self, peer: Peer, which: &str, refusal: &Fault) -> Result<SliceRecord, Fault> {
        let mut state = self.state.lock();
        let slice = state.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
        let shown = slice.shown();
        drop(state);
        let message = format!(
            "{}: {}",
            plain(&refusal.message),
            plain(&refusal.causes.join(": "))
        );
        if self.journal.may_log(peer.uid) {
            tracing::warn!(slice = shown.name, message, "a container's program was refused");
        }
        self.journal.tell(EventKind::Refused, &shown, message);
        Ok(shown)
    }
}

/// A container chose the name, so control characters, which move a terminal's cursor, are replaced.
fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '?' } else { c };
    text.chars().take(LONGEST).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        assert_eq!(plain("/bin/\u{1b}[31mx\n"), "/bin/?[31mx?");
        assert_eq!(plain(&"a".repeat(5000)).len(), LONGEST);
    }
}
