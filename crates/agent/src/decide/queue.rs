//! The queue's rules: first come, first served, and no request takes what an earlier one waits for. docs/adr/0013 says
//! what "first" means.

use std::collections::{HashMap, HashSet};

use divvy_model::{Code, Fault};

/// The places of one foreign account.
pub const PER_USER: usize = 8;
/// The places of all foreign users together.
pub const FOREIGN: usize = 192;
/// All places. The rest of them are for root and the agent's own user alone.
pub const ALL: usize = 256;

/// Whether time may change a refusal because other slices have what is lacking. Requests that exceed a device, a quota
/// or the slice around them have codes of their own.
#[must_use]
pub fn may_change(code: Code) -> bool {
    matches!(
        code,
        Code::DeviceFull
            | Code::ComputeFull
            | Code::OtherMode
            | Code::TooManySlices
            | Code::QuotaFull
            | Code::SliceFull
    )
}

/// The resources that earlier waiters wait for: a later request must not take them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Waiters by device.
    pub devices: HashMap<String, usize>,
    /// Accounts whose runs wait for slices of their own to end.
    pub accounts: HashSet<u32>,
    /// Slices inside which runs wait for space.
    pub parents: HashSet<String>,
}

/// The resource that a waiter waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Space in a slice, by id.
    Parent(String),
    /// The end of slices of its own account.
    Account(u32),
    /// One of these devices, by UUID.
    Devices(HashSet<String>),
}

impl WaitsFor {
    /// The resource for which a request of `account` waits after a refusal with `code`. `devices` are those it may
    /// land on; they are computed only where they count.
    #[must_use]
    pub fn of(
        parent: Option<&str>,
        account: u32,
        code: Code,
        devices: impl FnOnce() -> HashSet<String>,
    ) -> Self {
        match (parent, code) {
            (Some(parent), _) => Self::Parent(parent.to_owned()),
            // A user's own quota keeps no other user waiting.
            (None, Code::QuotaFull) => Self::Account(account),
            (None, _) => Self::Devices(devices()),
        }
    }

    /// The keys by which two waiters are compared: a common key means the same resource.
    #[must_use]
    pub fn names(&self) -> HashSet<String> {
        match self {
            Self::Parent(id) => HashSet::from([id.clone()]),
            Self::Account(account) => HashSet::from([format!("user {account}")]),
            Self::Devices(uuids) => uuids.clone(),
        }
    }
}

impl Ahead {
    /// Adds one waiter.
    pub fn add(&mut self, waits_for: &WaitsFor) {
        match waits_for {
            WaitsFor::Parent(id) => {
                self.parents.insert(id.clone());
            }
            WaitsFor::Account(account) => {
                self.accounts.insert(*account);
            }
            WaitsFor::Devices(uuids) => {
                for uuid in uuids {
                    *self.devices.entry(uuid.clone()).or_default() += 1;
                }
            }
        }
    }
}

/// The outcome for a waiter after its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The waiter keeps its place, and later ones do not get what it waits for.
    Waits,
    /// The waiter keeps its place; nothing was decided.
    Undecided,
    /// The waiter is told the outcome.
    Served,
}

/// The outcome for a waiter that was admitted, or refused for this reason. A driver that hangs may come back: no waiter
/// loses its place meanwhile. A caller that cannot be looked at now decides nothing.
#[must_use]
pub fn turn(refusal: Option<Code>, driver_is_silent: bool, caller_is_unknown: bool) -> Turn {
    match refusal {
        Some(code) if may_change(code) || code == Code::Driver && driver_is_silent => Turn::Waits,
        Some(_) if caller_is_unknown => Turn::Undecided,
        _ => Turn::Served,
    }
}

/// The party that a run waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The account.
    pub account: u32,
    /// It is root or the agent's own user, which have places of their own.
    pub is_trusted: bool,
}

/// Refuses one more waiter where the queue has no place for it. `waiting` are the present ones.
///
/// # Errors
/// [`Code::QueueFull`].
pub fn require_place(waiting: &[Party], party: Party) -> Result<(), Fault> {
    let own = waiting.iter().filter(|other| **other == party).count();
    if !party.is_trusted && own >= PER_USER {
        let message = format!("user {} has {own} places in the queue", party.account);
        return Err(Fault::new(Code::QueueFull, message)
            .hint("wait until one of them is served, or end one that waits"));
    }
    let foreign = || waiting.iter().filter(|other| !other.is_trusted).count();
    if waiting.len() >= ALL || !party.is_trusted && foreign() >= FOREIGN {
        return Err(Fault::new(Code::QueueFull, "the queue is full").hint("try again later"));
    }
    Ok(())
}

/// The place of the waiter at `at`, from 1, among those that wait for the same resource, and the number of these. A
/// waiter without keys waits no longer.
#[must_use]
pub fn standing(waiters: &[Option<&HashSet<String>>], at: usize) -> (usize, usize) {
    let own = waiters.get(at).copied().flatten();
    let rivals = |others: &[Option<&HashSet<String>>]| {
        let names = others.iter().flatten();
        names
            .filter(|other| own.is_some_and(|own| !other.is_disjoint(own)))
            .count()
    };
    let before = rivals(&waiters[..at.min(waiters.len())]);
    let behind = rivals(waiters.get(at + 1..).unwrap_or_default());
    (before + 1, before + 1 + behind)
}
