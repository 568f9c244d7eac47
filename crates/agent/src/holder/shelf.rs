//! What the holder has, and to whom it gives it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_ledger::attach::serve_device;
use divvy_ledger::attach::wire::Status;
use divvy_ledger::{Ledger, Snapshot, reopen_page};
use rustix::fs::{Mode, fchmod};

use super::order::Id;

/// As many connections of one user are served at once; each lasts two seconds at most.
pub(super) const MOST_OF_USER: usize = 32;
/// As many devices are held: no machine has more, and each costs three descriptors.
const MOST_DEVICES: usize = 1024;

/// A device's pages, and what sets its files aside.
#[derive(Debug)]
pub(super) struct Device {
    pub ledger: OwnedFd,
    pub engine: OwnedFd,
    pub mark: OwnedFd,
}

impl Device {
    /// Pages on which nothing is.
    pub fn new(mark: OwnedFd) -> Result<Self, String> {
        let ledger = Ledger::create().and_then(|ledger| ledger.share());
        Ok(Self {
            ledger: ledger.map_err(|error| error.to_string())?,
            engine: divvy_host::new_engine_page().map_err(|fault| fault.message)?,
            mark,
        })
    }

    /// All three, in the order in which they travel.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.ledger.as_fd(), self.engine.as_fd(), self.mark.as_fd()]
    }

    /// Whether a living process has a place on the device. What cannot be told is taken for one.
    fn is_used(&self) -> bool {
        let seen = reopen(&self.ledger).and_then(|own| Snapshot::read(own).map_err(|_| Status::Failed));
        seen.map_or(true, |seen| seen.processes().any(|process| process.alive))
    }
}

/// A descriptor for one process: an open file description of its own.
fn reopen(page: &OwnedFd) -> Result<OwnedFd, Status> {
    // Whoever has the page may have given it another mode, as its owner or as a container's root.
    let _mode = fchmod(page, Mode::from_raw_mode(0o666));
    reopen_page(page.as_fd()).map_err(|_| Status::Failed)
}

/// To whom a socket gives what.
#[derive(Debug)]
pub(super) enum Rule {
    /// On the host: the agent's user and root have all, others what they were given.
    Host,
    /// In a container: whoever comes has these.
    Container(Vec<Id>),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shelf {
    /// The agent's user.
    uid: u32,
    devices: Mutex<BTreeMap<Id, Device>>,
    users: Mutex<HashMap<u32, HashSet<Id>>>,
    /// Connections by user.
    inside: Mutex<HashMap<u32, usize>>,
    /// Connections of agents.
    pub agents: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A user's place inside, until it is dropped.
struct Inside<'a> {
    shelf: &'a Shelf,
    user: u32,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut inside = lock(&self.shelf.inside);
        if let Some(count) = inside.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                inside.remove(&self.user);
            }
        }
    }
}

impl Shelf {
    /// An empty one of an agent of this user's.
    pub fn new(uid: u32) -> Self {
        Self {
            uid,
            devices: Mutex::default(),
            users: Mutex::default(),
            inside: Mutex::default(),
            agents: AtomicUsize::new(0),
        }
    }

    /// What it holds.
    pub fn list(&self) -> Vec<Id> {
        lock(&self.devices).keys().copied().collect()
    }

    /// Does something with a device that it holds.
    pub fn with<T>(&self, id: Id, work: impl FnOnce(&Device) -> T) -> Option<T> {
        lock(&self.devices).get(&id).map(work)
    }

    /// Holds a device from now on, unless it does already.
    pub fn hold(&self, id: Id, make: impl FnOnce() -> Result<Device, String>) -> Result<(), String> {
        let mut devices = lock(&self.devices);
        if devices.contains_key(&id) {
            return Ok(());
        }
        if devices.len() >= MOST_DEVICES {
            return Err(format!("{MOST_DEVICES} devices are held already"));
        }
        devices.insert(id, make()?);
        Ok(())
    }

    /// These users, and no others, have these devices from now on.
    pub fn allow(&self, users: Vec<(u32, Vec<Id>)>) {
        let users = users.into_iter();
        *lock(&self.users) = users.map(|(uid, ids)| (uid, ids.into_iter().collect())).collect();
    }

    /// Whether anybody needs it: an agent, who asks now, or who has a place on a device.
    pub fn is_needed(&self) -> bool {
        self.agents.load(SeqCst) > 0
            || !lock(&self.inside).is_empty()
            || lock(&self.devices).values().any(Device::is_used)
    }

    /// Answers one process, and waits until it has its place.
    pub fn serve(&self, stream: &UnixStream, rule: &Rule) {
        let Some(_inside) = self.enter(stream) else { return };
        // Whoever went away asks no more.
        let _gone = serve_device(stream, |user, id| {
            if !self.may_have(rule, user, id) {
                return Err(Status::NotAllowed);
            }
            let pages = self.with(id, |device| {
                Ok((reopen(&device.ledger)?, reopen(&device.engine)?))
            });
            pages.unwrap_or(Err(Status::NoPages))
        });
    }

    fn enter(&self, stream: &UnixStream) -> Option<Inside<'_>> {
        let user = rustix::net::sockopt::socket_peercred(stream).ok()?.uid.as_raw();
        let mut inside = lock(&self.inside);
        let count = inside.entry(user).or_default();
        if *count >= MOST_OF_USER {
            return None;
        }
        *count += 1;
        Some(Inside { shelf: self, user })
    }

    fn may_have(&self, rule: &Rule, user: u32, id: Id) -> bool {
        match rule {
            Rule::Container(granted) => granted.contains(&id),
            Rule::Host => {
                let given = || {
                    lock(&self.users)
                        .get(&user)
                        .is_some_and(|given| given.contains(&id))
                };
                user == 0 || user == self.uid || given()
            }
        }
    }
}
