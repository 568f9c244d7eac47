//! The holder of emulated devices' pages: a small process of its own, which the agent starts, feeds and, when it dies,
//! replaces. docs/adr/0035 says more.
//!
//! The pages are memory files of sealed size, which live while a process has them. The agent has each of them too, so
//! another holder can go on with the same ones. A restarted agent takes over a holder that lives.

mod order;
mod process;
mod shelf;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_host::{PAGES_SOCKET, emulated_pages_of, granted_emulated, set_emulated_aside};
use divvy_ledger::attach::{self, Sockets};
use divvy_model::{Code, Fault, SliceRecord};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use self::order::{Answer, Id, Order, receive, send};
pub(crate) use self::process::hold;
use crate::files::Folder;
use crate::start::log::open_log;
use crate::start::rundir::{CONTAINERS, ENTER_ONLY, KeepCommand, RunDir};
use crate::state::Shared;

/// The holder's name in the place of a slice's id.
pub(crate) const HOLDER: &str = "emulated";
/// The name of its socket for the agent, beside the files of emulated devices.
const FOLDER: &str = "emulated";
const CONTROL: &str = "control.sock";
/// The time limit for an order.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The holder, from the agent's side.
#[derive(Debug, Default)]
pub(crate) struct Holder {
    /// The connection to the holder, as long as it lives.
    stream: Option<UnixStream>,
    /// Its process, where this agent started it.
    child: Option<Child>,
    /// The devices that it holds: the descriptor that disables its files, its ledger, its engine's page.
    held: BTreeMap<Id, [OwnedFd; 3]>,
    /// The devices of each user, as last told.
    users: BTreeMap<u32, BTreeSet<Id>>,
    /// Whether some slices outlast their programs, as last told.
    lasting: bool,
    /// The containers' sockets that it has opened.
    doors: BTreeMap<String, Vec<Id>>,
}

fn cannot(error: &dyn std::error::Error) -> Fault {
    Fault::new(Code::Attach, "cannot use the holder of emulated devices' pages")
        .because(error)
        .hint("the agent's log says more; it tries again each second")
}

impl Holder {
    fn is_alive(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| {
            let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            rustix::net::recv(stream, &mut [0_u8; 1], look) == Err(Errno::AGAIN)
        })
    }

    fn order(&mut self, order: &Order, fds: &[OwnedFd]) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let stream = self.stream.as_ref().ok_or(ErrorKind::NotConnected)?;
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let told = send(stream, order, &fds).and_then(|()| receive(stream));
        match told {
            Ok((Answer::Failed(why), _)) => Err(io::Error::other(why)),
            // The connection is closed, because a late answer would be taken for the next order's.
            Err(error) => {
                self.stream = None;
                Err(error)
            }
            told => told,
        }
    }

    fn take(&mut self, id: Id) -> io::Result<()> {
        let (_, fds) = self.order(&Order::Take(id), &[])?;
        let [ledger, engine, mark] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| ErrorKind::InvalidData)?;
        self.held.insert(id, [mark, ledger, engine]);
        Ok(())
    }
}

/// The holder, with the devices that it should hold.
pub(crate) struct PageHolder {
    pub run: RunDir,
    /// The agent's own user.
    pub uid: u32,
    /// The command that holds the pages.
    pub keep: KeepCommand,
    pub state: Shared,
    pub holder: Mutex<Holder>,
}

impl PageHolder {
    fn holder(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The containers' folders and the sockets.
    fn holders_folder(&self) -> io::Result<Folder> {
        self.run.folder()?.folder(FOLDER, 0o700)
    }

    /// Makes sure that a holder lives and has the agent's state. `starts`: a holder is started where none lives.
    fn reach(&self, holder: &mut Holder, starts: bool) -> Result<bool, Fault> {
        if holder.is_alive() {
            return Ok(true);
        }
        if let Some(child) = &mut holder.child
            && child.try_wait().is_ok_and(|status| status.is_some())
        {
            holder.child = None;
        }
        let path = self.run.path().join(FOLDER).join(CONTROL);
        let listens = UnixStream::connect(path);
        holder.stream = match listens {
            Ok(stream) => Some(stream),
            Err(_) if !starts => return Ok(false),
            Err(_) => {
                holder.doors.clear();
                Some(self.start_holder(holder).map_err(|error| cannot(&error))?)
            }
        };
        self.greet(holder).map_err(|error| {
            holder.stream = None;
            cannot(&error)
        })?;
        Ok(true)
    }

    /// Makes a holder and this agent know the same.
    fn greet(&self, holder: &mut Holder) -> io::Result<()> {
        let stream = holder.stream.as_ref().ok_or(ErrorKind::NotConnected)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let (Answer::Devices(has), _) = holder.order(&Order::List, &[])? else {
            return Err(ErrorKind::InvalidData.into());
        };
        for id in &has {
            if !holder.held.contains_key(id) {
                holder.take(*id)?;
            }
        }
        let lacking: Vec<Id> = holder
            .held
            .keys()
            .filter(|id| !has.contains(id))
            .copied()
            .collect();
        for id in lacking {
            let fds = holder.held.get(&id).into_iter().flatten();
            let fds = fds.map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
            holder.order(&Order::Hold(id), &fds)?;
        }
        let (users, lasting) = (holder.users.clone(), holder.lasting);
        tell(holder, &users, lasting)?;
        self.open_doors(holder)
    }

    fn start_holder(&self, holder: &mut Holder) -> io::Result<UnixStream> {
        let folder = self.holders_folder()?;
        let sockets = Sockets {
            attach: self.run.folder()?.listen(PAGES_SOCKET, 0o666)?,
            control: folder.listen(CONTROL, 0o600)?,
            container: None,
            uid: self.uid,
        };
        let (ours, theirs) = UnixStream::pair()?;
        attach::give(&ours, &sockets).map_err(io::Error::other)?;
        let stream = UnixStream::connect(folder.path().join(CONTROL))?;
        // The agent's own descriptors are closed, or a client of a dead holder would wait instead of being refused.
        drop(sockets);
        let child = (self.keep)(&self.run, HOLDER)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(open_log(&self.run).map_err(io::Error::other)?)
            .current_dir("/")
            .spawn()?;
        tracing::info!(holder = child.id(), "holder of emulated devices' pages started");
        holder.child = Some(child);
        Ok(stream)
    }

    /// Makes the holder hold the pages of these devices, by name; none is started where all have one. Returns whether
    /// it holds them all. Devices of programs that started without an agent are not included until these have ended.
    ///
    /// # Errors
    /// [`Code::Attach`], [`Code::RunDir`].
    pub fn hold_devices<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<bool, Fault> {
        let ids: Vec<Id> = names
            .into_iter()
            .flat_map(|name| emulated_pages_of(self.run.path(), name))
            .collect();
        let mut holder = self.holder();
        if ids.is_empty() || !self.reach(&mut holder, true)? {
            return Ok(ids.is_empty());
        }
        let mut all = true;
        for id in ids {
            if holder.held.contains_key(&id) {
                continue;
            }
            match set_emulated_aside(self.run.path(), id)? {
                None => all = false,
                Some(mark) => {
                    let held = holder.order(&Order::Hold(id), &[mark]);
                    held.and_then(|_| holder.take(id))
                        .map_err(|error| cannot(&error))?;
                }
            }
        }
        Ok(all)
    }

    /// The same for a slice, whose user may ask for the pages from then on. A failure is tried again each second:
    /// programs of the agent's own user have their files until then.
    pub fn hold_for(&self, slice: &SliceRecord) {
        if slice.emulated_spec.is_some() {
            let held = self.hold_devices(slice.shares.iter().map(|share| share.device_uuid.as_str()));
            self.tell_users();
            match held {
                Ok(true) => {}
                Ok(false) => tracing::info!(
                    slice = slice.name,
                    "programs use its device that were started without an agent: its pages stay files until they end"
                ),
                Err(fault) => tracing::warn!(code = %fault.code, "{fault}: {}", fault.causes.join(": ")),
            }
        }
    }

    /// Tells the holder the devices of each user, where that has changed.
    pub fn tell_users(&self) {
        let slices: Vec<SliceRecord> = {
            let state = self.state.lock();
            let all = state.slices.values().map(|slice| &slice.record);
            all.filter(|record| record.emulated_spec.is_some())
                .cloned()
                .collect()
        };
        let lasting = slices.iter().any(|record| record.lasting);
        let mut users: BTreeMap<u32, BTreeSet<Id>> = BTreeMap::new();
        for record in &slices {
            let ids = record
                .shares
                .iter()
                .flat_map(|share| emulated_pages_of(self.run.path(), &share.device_uuid));
            users.entry(record.device_uid()).or_default().extend(ids);
        }
        let mut holder = self.holder();
        if (&holder.users, holder.lasting) != (&users, lasting)
            && let Err(error) = tell(&mut holder, &users, lasting)
        {
            // The next look tries again.
            tracing::debug!(%error, "the holder was not told who has which device");
        }
    }

    /// Takes over the holder of an agent that ended, if it lives.
    pub fn adopt(&self) {
        match self.reach(&mut self.holder(), false) {
            Ok(true) => tracing::info!("holder of emulated devices' pages taken over"),
            Ok(false) => {}
            Err(fault) => tracing::warn!(code = %fault.code, "{fault}: {}", fault.causes.join(": ")),
        }
        self.tell_users();
    }

    /// Replaces a holder that died. It is called periodically; a thread with the state's lock may be waiting for it.
    pub fn replace(&self) {
        let mut holder = self.holder();
        if !holder.held.is_empty()
            && let Err(fault) = self.reach(&mut holder, true)
        {
            tracing::debug!(code = %fault.code, "{fault}: {}", fault.causes.join(": "));
        }
    }

    /// Makes the holder hold what slices need now, and no more sockets than there are folders. It is called
    /// periodically.
    pub fn keep_up(&self) {
        let devices: BTreeSet<String> = {
            let state = self.state.lock();
            let emulated = state.slices.values().map(|slice| &slice.record);
            emulated
                .filter(|record| record.emulated_spec.is_some())
                .flat_map(|record| record.shares.iter())
                .map(|share| share.device_uuid.clone())
                .collect()
        };
        if devices.is_empty() && self.holder().held.is_empty() {
            return;
        }
        if let Err(fault) = self.hold_devices(devices.iter().map(String::as_str)) {
            tracing::debug!(code = %fault.code, "{fault}: {}", fault.causes.join(": "));
        }
        self.tell_users();
        self.close_doors();
    }

    /// Opens the sockets of those containers' folders that have none yet, for their granted devices. A folder may have
    /// the socket of a dead holder: containers have the folder mounted, and find the new one in it.
    fn open_doors(&self, holder: &mut Holder) -> io::Result<()> {
        let containers = match self.run.folder()?.below(CONTAINERS) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            containers => containers?,
        };
        for name in containers.names()? {
            let Ok(own) = containers.below(&name) else {
                continue;
            };
            self.open_door(holder, &name, &own)?;
            if let Ok(device) = own.below("device") {
                self.open_door(holder, &format!("{name}/device"), &device)?;
            }
        }
        Ok(())
    }

    fn open_door(&self, holder: &mut Holder, door: &str, folder: &Folder) -> io::Result<()> {
        let granted = granted_emulated(folder.path());
        let devices: Vec<Id> = granted
            .iter()
            .flat_map(|name| emulated_pages_of(self.run.path(), name))
            .collect();
        if devices.is_empty() || holder.doors.get(door) == Some(&devices) {
            return Ok(());
        }
        let listener = folder.folder(DOOR, ENTER_ONLY)?.listen(PAGES_SOCKET, 0o666)?;
        let open = Order::Open {
            door: door.to_owned(),
            devices: devices.clone(),
        };
        holder.order(&open, &[OwnedFd::from(listener)])?;
        holder.doors.insert(door.to_owned(), devices);
        Ok(())
    }

    /// Makes the holder serve, at the sockets of containers' folders, the devices that were granted there.
    ///
    /// # Errors
    /// [`Code::Attach`], also where programs that started without an agent use a device.
    pub fn hold_granted(&self, devices: &[&str]) -> Result<(), Fault> {
        if !self.hold_devices(devices.iter().copied())? {
            return Err(Fault::new(
                Code::Attach,
                "programs use the emulated device that were started without an agent",
            )
            .hint("containers can have it when they have ended; `divvy devices` shows them"));
        }
        let mut holder = self.holder();
        self.open_doors(&mut holder).map_err(|error| cannot(&error))
    }

    /// Closes the sockets of folders that are gone.
    fn close_doors(&self) {
        let mut holder = self.holder();
        let gone: Vec<String> = holder
            .doors
            .keys()
            .filter(|door| granted_emulated(&self.run.path().join(CONTAINERS).join(door)).is_empty())
            .cloned()
            .collect();
        for door in gone {
            if holder.order(&Order::Close(door.clone()), &[]).is_ok() {
                holder.doors.remove(&door);
            }
        }
    }

    /// The pages of a slice's devices, by file system identity: a process with one of them open or mapped uses the
    /// device.
    pub fn page_files(&self, slices: &[SliceRecord]) -> HashMap<String, HashSet<(u64, u64)>> {
        let holder = self.holder();
        let of = |record: &SliceRecord| {
            let ids = record
                .shares
                .iter()
                .flat_map(|share| emulated_pages_of(self.run.path(), &share.device_uuid));
            let pages = ids
                .filter_map(|id| holder.held.get(&id))
                .flat_map(|[_, ledger, engine]| [ledger, engine]);
            let places = pages.filter_map(|page| fstat(page).ok().map(|seen| (seen.st_dev, seen.st_ino)));
            places.collect()
        };
        let emulated = slices.iter().filter(|record| record.emulated_spec.is_some());
        emulated.map(|record| (record.id.clone(), of(record))).collect()
    }
}

/// The folder of a container's socket, in the folder of the grant.
const DOOR: &str = "pages";

fn tell(holder: &mut Holder, users: &BTreeMap<u32, BTreeSet<Id>>, lasting: bool) -> io::Result<()> {
    holder.users.clone_from(users);
    holder.lasting = lasting;
    if holder.stream.is_none() {
        // The holder is told when there is one.
        return Ok(());
    }
    let table = users
        .iter()
        .map(|(uid, ids)| (*uid, ids.iter().copied().collect()));
    let order = Order::Users {
        users: table.collect(),
        lasting,
    };
    holder.order(&order, &[]).map(drop)
}
