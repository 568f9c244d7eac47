//! The limits on connections at once: of each account, and in all. A user that opens thousands delays only itself, and
//! places always remain for root and the agent's own user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::accounts::Accounts;

/// The limits on open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Of one foreign account.
    pub per_user: u32,
    /// Of all foreign users together.
    pub foreign: u32,
    /// More than that, for root and the agent's own user alone.
    pub reserved: u32,
}

impl Limits {
    /// The limits where descriptors are plenty.
    const USUAL: Self = Self {
        per_user: 32,
        foreign: 256,
        reserved: 64,
    };

    /// The limits of a process with so many descriptors: half of them are for slices, devices and processes.
    pub fn within(descriptors: u64) -> Self {
        let half = u32::try_from(descriptors / 2).unwrap_or(u32::MAX);
        let foreign = Self::USUAL.foreign.min(half / 5 * 4);
        Self {
            per_user: Self::USUAL.per_user.min(foreign / 2),
            foreign,
            reserved: Self::USUAL.reserved.min(half / 5),
        }
    }
}

/// Lets connections in, and counts those that are open.
#[derive(Debug)]
pub(super) struct Gate {
    /// The agent's own user.
    agent: u32,
    limits: Limits,
    accounts: Arc<Accounts>,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    by_account: HashMap<u32, u32>,
    foreign: u32,
    all: u32,
}

/// An open connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    gate: Arc<Gate>,
    account: u32,
    trusted: bool,
}

impl Gate {
    /// A gate of the agent of user `agent`.
    pub fn new(agent: u32, limits: Limits, accounts: Arc<Accounts>) -> Arc<Self> {
        Arc::new(Self {
            agent,
            limits,
            accounts,
            inside: Mutex::default(),
        })
    }

    /// Lets a connection of user `uid` in, if there is a place for it.
    pub fn enter(self: &Arc<Self>, uid: u32) -> Option<Place> {
        let account = self.accounts.one(uid);
        let mut inside = self.inside();
        let own = inside.by_account.get(&account).copied().unwrap_or(0);
        let Limits {
            per_user,
            foreign,
            reserved,
        } = self.limits;
        let trusted = self.trusts(uid);
        let fits = match trusted {
            true => inside.all < foreign + reserved,
            // The sum counts too: root may have filled more than its own places.
            false => own < per_user && inside.foreign < foreign && inside.all < foreign,
        };
        if !fits {
            return None;
        }
        inside.by_account.insert(account, own + 1);
        inside.foreign += u32::from(!trusted);
        inside.all += 1;
        drop(inside);
        Some(Place {
            gate: Arc::clone(self),
            account,
            trusted,
        })
    }

    /// Whether no connection is open.
    pub fn is_empty(&self) -> bool {
        self.inside().all == 0
    }

    /// Whether this is root or the agent's own user.
    pub fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.agent
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inside = self.gate.inside();
        inside.all -= 1;
        inside.foreign -= u32::from(!self.trusted);
        if let Some(own) = inside.by_account.get_mut(&self.account) {
            *own -= 1;
            if *own == 0 {
                inside.by_account.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: u32 = 500;

    fn enter(gate: &Arc<Gate>, uid: u32, count: usize) -> Vec<Place> {
        std::iter::from_fn(|| gate.enter(uid)).take(count).collect()
    }

    #[test]
    fn one_user_leaves_room_for_others_and_all_leave_room_for_root() {
        let gate = Gate::new(AGENT, Limits::USUAL, Arc::default());
        let flood = enter(&gate, 1000, 10_000);
        assert_eq!(flood.len(), 32);
        let others: Vec<Vec<Place>> = (1001..2000).map(|uid| enter(&gate, uid, 10_000)).collect();
        assert_eq!(others.iter().map(Vec::len).sum::<usize>(), 256 - 32);
        let root = enter(&gate, 0, 10_000);
        assert_eq!(root.len(), 64, "kept for it, and for the agent's own user");
        assert!(gate.enter(AGENT).is_none());
        drop(root);
        assert_eq!(enter(&gate, AGENT, 10_000).len(), 64);
        assert!(gate.enter(1000).is_none());
        drop(flood);
        assert_eq!(enter(&gate, 3000, 10_000).len(), 32, "what is closed makes room");
        drop(others);
        assert!(gate.is_empty());
        assert!(
            gate.inside().by_account.is_empty(),
            "nothing is kept of a user that is gone"
        );
    }

    #[test]
    fn the_agents_own_user_may_have_all_of_it_while_others_have_none() {
        let gate = Gate::new(AGENT, Limits::USUAL, Arc::default());
        let own = enter(&gate, AGENT, 10_000);
        assert_eq!(own.len(), 320);
        assert!(gate.enter(1000).is_none() && gate.enter(0).is_none());
        drop(own);
        assert!(gate.enter(1000).is_some());
    }

    #[test]
    fn few_descriptors_make_few_connections() {
        assert_eq!(Limits::within(1 << 20), Limits::USUAL);
        assert_eq!(Limits::within(1024), Limits::USUAL);
        let few = Limits {
            per_user: 20,
            foreign: 40,
            reserved: 10,
        };
        assert_eq!(Limits::within(100), few);
    }
}
