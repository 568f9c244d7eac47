//! Whether something may have to be undone, and how often that is still tried.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Untidy(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    tries: u32,
    /// The number of requests so far.
    asked: u64,
}

/// One round. It covers the requests before its start and no later ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round(u64);

impl Untidy {
    /// Asks for a look, and for so many tries in all where it fails.
    pub fn ask(&self, tries: u32) {
        let mut state = self.state();
        state.tries = tries;
        state.asked += 1;
    }

    /// Whether a look is still due.
    pub fn is_asked(&self) -> bool {
        self.state().tries > 0
    }

    /// To be called before anything is looked at.
    pub fn begin(&self) -> Round {
        Round(self.state().asked)
    }

    /// Everything is undone that was due when the round began. Requests that came meanwhile stay due: a slice may have
    /// ended after the round had seen it alive.
    pub fn done(&self, round: Round) {
        let mut state = self.state();
        if state.asked == round.0 {
            state.tries = 0;
        }
    }

    /// Something could not be undone. Returns whether this was the last try.
    pub fn failed(&self, round: Round) -> bool {
        let mut state = self.state();
        if state.asked != round.0 {
            return false;
        }
        state.tries = state.tries.saturating_sub(1);
        state.tries == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_during_a_round_is_owed_after_it() {
        let untidy = Untidy::default();
        untidy.ask(3);
        let round = untidy.begin();
        untidy.ask(3);
        untidy.done(round);
        assert!(untidy.is_asked());
        let round = untidy.begin();
        untidy.done(round);
        assert!(!untidy.is_asked());
    }

    #[test]
    fn it_is_tried_so_often_and_no_oftener() {
        let untidy = Untidy::default();
        untidy.ask(2);
        let round = untidy.begin();
        assert!(!untidy.failed(round) && untidy.is_asked());
        assert!(untidy.failed(round) && !untidy.is_asked());
    }
}
