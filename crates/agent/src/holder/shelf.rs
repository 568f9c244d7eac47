//! The holder's devices, and the users that may have them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

use divvy_ledger::attach::serve_device;
use divvy_ledger::attach::wire::Status;
use divvy_ledger::{Snapshot, new_device_ledger, reopen_page};
use rustix::fs::{Mode, fchmod};

use super::order::Id;

/// The number of connections of one user that are served at once; each lasts two seconds at most.
pub(super) const MOST_OF_USER: usize = 32;
/// The number of held devices: no machine has more, and each costs three descriptors.
const MOST_DEVICES: usize = 1024;

/// A device's pages, and the open descriptor that disables its files.
#[derive(Debug)]
pub(super) struct Device {
    pub ledger: OwnedFd,
    pub engine: OwnedFd,
    pub mark: OwnedFd,
}

impl Device {
    /// Empty pages.
    pub fn new(mark: OwnedFd) -> Result<Self, String> {
        Ok(Self {
            ledger: new_device_ledger().map_err(|error| error.to_string())?,
            engine: divvy_host::new_engine_page().map_err(|fault| fault.message)?,
            mark,
        })
    }

    /// All three, in the order in which they travel.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.ledger.as_fd(), self.engine.as_fd(), self.mark.as_fd()]
    }

    /// Whether a living process has a slot on the device. An unknown process counts as living.
    fn is_used(&self) -> bool {
        let seen = reopen(&self.ledger).and_then(|own| Snapshot::read(own).map_err(|_| Status::Failed));
        seen.map_or(true, |seen| seen.processes().any(|process| process.alive))
    }
}

/// A descriptor for one process: an open file description of its own.
fn reopen(page: &OwnedFd) -> Result<OwnedFd, Status> {
    /// A process that changes the mode all the time loses one of so many races.
    const TRIES: u32 = 32;
    let open = |_| {
        // A process that has the page may have changed its mode, as its owner or as a container's root.
        let _mode = fchmod(page, Mode::from_raw_mode(0o666));
        reopen_page(page.as_fd()).ok()
    };
    (0..TRIES).find_map(open).ok_or(Status::Failed)
}

/// The rule by which a socket gives out devices.
#[derive(Debug)]
pub(super) enum Rule {
    /// On the host: the agent's user and root have all devices, others the ones that they were given.
    Host,
    /// In a container: every client has these devices.
    Container {
        /// The name of the container's folder.
        door: String,
        /// The granted devices.
        devices: Vec<Id>,
    },
}

/// The holder's state; see the module.
#[derive(Debug)]
pub(super) struct Shelf {
    /// The agent's user.
    uid: u32,
    devices: Mutex<BTreeMap<Id, Device>>,
    users: Mutex<HashMap<u32, HashSet<Id>>>,
    /// Connections, by party.
    inside: Mutex<HashMap<Party, usize>>,
    /// Connections of agents.
    pub agents: AtomicUsize,
    /// Whether some slices outlast their programs.
    pub lasts: AtomicBool,
}

/// The party by which connections are counted: a user on the host, or a user in one container.
type Party = (Option<String>, u32);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place inside, until it is dropped.
struct Inside<'a> {
    shelf: &'a Shelf,
    party: Party,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut inside = lock(&self.shelf.inside);
        if let Some(count) = inside.get_mut(&self.party) {
            *count -= 1;
            if *count == 0 {
                inside.remove(&self.party);
            }
        }
    }
}

impl Shelf {
    /// An empty shelf of an agent of this user.
    pub fn new(uid: u32) -> Self {
        Self {
            uid,
            devices: Mutex::default(),
            users: Mutex::default(),
            inside: Mutex::default(),
            agents: AtomicUsize::new(0),
            lasts: AtomicBool::new(false),
        }
    }

    /// The held devices.
    pub fn list(&self) -> Vec<Id> {
        lock(&self.devices).keys().copied().collect()
    }

    /// Calls a function with a held device.
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

    /// Gives these devices to these users, and to no others, from now on.
    pub fn allow(&self, users: Vec<(u32, Vec<Id>)>) {
        let users = users.into_iter();
        *lock(&self.users) = users.map(|(uid, ids)| (uid, ids.into_iter().collect())).collect();
    }

    /// Whether it is needed: by an agent, a lasting slice, a present client, or a process with a slot on a device.
    pub fn is_needed(&self) -> bool {
        self.agents.load(SeqCst) > 0
            || self.lasts.load(SeqCst)
            || !lock(&self.inside).is_empty()
            || lock(&self.devices).values().any(Device::is_used)
    }

    /// Answers one process, and waits until it has its slot.
    pub fn serve(&self, stream: &UnixStream, rule: &Rule) {
        let Some(_inside) = self.enter(stream, rule) else {
            return;
        };
        // A process that went away needs no answer.
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

    /// A party over its limit is disconnected, and may connect again.
    fn enter(&self, stream: &UnixStream, rule: &Rule) -> Option<Inside<'_>> {
        let user = rustix::net::sockopt::socket_peercred(stream).ok()?.uid.as_raw();
        let party = match rule {
            Rule::Host => (None, user),
            // The roots of many containers are one user.
            Rule::Container { door, .. } => (Some(door.clone()), user),
        };
        let mut inside = lock(&self.inside);
        let count = inside.entry(party.clone()).or_default();
        if *count >= MOST_OF_USER {
            return None;
        }
        *count += 1;
        Some(Inside { shelf: self, party })
    }

    fn may_have(&self, rule: &Rule, user: u32, id: Id) -> bool {
        match rule {
            Rule::Container { devices, .. } => devices.contains(&id),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use divvy_ledger::attach::wire::{DeviceRequest, MESSAGE_BYTES, Reply};
    use rustix::fs::fstat;
    use rustix::net::{RecvFlags, SendFlags, recv, send};

    use super::*;

    const ONE: Id = [1; 16];
    const OTHER: Id = [2; 16];

    fn shelf() -> Arc<Shelf> {
        let shelf = Arc::new(Shelf::new(1000));
        let mark = std::fs::File::open("/dev/null").expect("open");
        shelf.hold(ONE, || Device::new(mark.into())).expect("held");
        shelf
    }

    /// A test client's request; returns the answer, while the connection is open.
    fn ask(shelf: &Arc<Shelf>, rule: &Arc<Rule>, uuid: Id) -> (UnixStream, Option<Status>) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (shelf, rule) = (Arc::clone(shelf), Arc::clone(rule));
        thread::spawn(move || shelf.serve(&theirs, &rule));
        let _hung_up = send(&ours, &DeviceRequest { uuid }.encode(), SendFlags::NOSIGNAL);
        let mut answer = [0; MESSAGE_BYTES];
        let got = recv(&ours, &mut answer, RecvFlags::WAITALL).map_or(0, |(got, _)| got);
        let status = (got == answer.len()).then(|| Reply::decode(&answer).expect("a reply").status);
        (ours, status)
    }

    #[test]
    fn a_container_has_what_was_granted_to_it_and_a_user_what_slices_are_on() {
        let shelf = shelf();
        let container = Arc::new(Rule::Container {
            door: "box".into(),
            devices: vec![ONE],
        });
        assert_eq!(ask(&shelf, &container, ONE).1, Some(Status::Done));
        assert_eq!(ask(&shelf, &container, OTHER).1, Some(Status::NotAllowed));
        shelf.allow(vec![(1001, vec![ONE])]);
        let may = |user, id| shelf.may_have(&Rule::Host, user, id);
        assert!(may(1001, ONE) && !may(1001, OTHER) && !may(1002, ONE));
        assert!([0, 1000].iter().all(|&user| may(user, ONE) && may(user, OTHER)));
        shelf.allow(vec![]);
        assert!(!may(1001, ONE), "its slice is gone");
    }

    #[test]
    fn a_mode_that_a_program_gave_a_page_is_put_back() {
        let shelf = shelf();
        let mode = || shelf.with(ONE, |device| fstat(&device.ledger).expect("open").st_mode & 0o777);
        shelf.with(ONE, |device| {
            fchmod(&device.ledger, Mode::empty()).expect("its owner may");
        });
        assert_eq!(mode(), Some(0));
        let rule = Arc::new(Rule::Container {
            door: "box".into(),
            devices: vec![ONE],
        });
        assert_eq!(ask(&shelf, &rule, ONE).1, Some(Status::Done));
        assert_eq!(mode(), Some(0o666));
    }

    #[test]
    fn who_fills_its_places_fills_no_others() {
        let shelf = shelf();
        let rule = |door: &str| Rule::Container {
            door: door.into(),
            devices: vec![ONE],
        };
        let (full, free) = (rule("full"), rule("free"));
        let (peer, _other) = UnixStream::pair().expect("a pair");
        let enter = |rule| shelf.enter(&peer, rule);
        let all: Vec<_> = (0..MOST_OF_USER)
            .map(|_| enter(&full).expect("a place"))
            .collect();
        assert!(shelf.is_needed() && enter(&full).is_none());
        assert!(enter(&free).is_some() && enter(&Rule::Host).is_some());
        drop(all);
        assert!(!shelf.is_needed() && enter(&full).is_some());
    }

    #[test]
    fn it_is_needed_while_a_place_is_taken() {
        let shelf = shelf();
        assert!(!shelf.is_needed());
        let ledger = shelf
            .with(ONE, |device| reopen(&device.ledger))
            .expect("held")
            .expect("open");
        let backing = divvy_ledger::Backing::Sealed;
        let slot = divvy_ledger::Slot::claim(ledger, backing, divvy_ledger::SlotOwner::default());
        assert!(shelf.is_needed());
        drop(slot);
        assert!(!shelf.is_needed());
    }
}
