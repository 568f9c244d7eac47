//! Making a slice: choose the device, admit, record, and hand the pages to its keeper.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_host::emulated_devices;
use divvy_model::{
    Bytes, Code, DeviceKind, DeviceRecord, Fault, Isolation, MemoryAmount, SliceRecord, SliceRequest,
    SliceState,
};
use rustix::fs::{Gid, Uid, chown};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::admission::Share;
use crate::api::{CreateSlice, CreatedSlice};
use crate::daemon::{Book, Daemon, Peer};
use crate::policy::{Enforcement, enforce};
use crate::records::{attach_socket, store};
use crate::slice::Slice;
use crate::{clock, owner, pages};

impl Daemon {
    /// Admits a slice for the caller, who is to become its keeper; a lasting one gets a keeper of its own.
    ///
    /// # Errors
    /// The refusals of policy and admission, [`Code::NotAllowed`], [`Code::NameTaken`], [`Code::RunDir`].
    pub fn create(&self, peer: Peer, ask: &CreateSlice) -> Result<CreatedSlice, Fault> {
        self.may_create(peer)?;
        let begin = Instant::now();
        let created = loop {
            match self.try_create(peer, ask) {
                Err(fault) if fault.code == Code::DeviceFull && self.memory_may_come_back(begin) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                outcome => break outcome?,
            }
        };
        if !ask.lasting || ask.dry_run {
            return Ok(created);
        }
        let id = &created.slice.id;
        if let Err(fault) = self.keep_up(id) {
            let _no_longer = self.delete(&mut self.book(), id);
            return Err(fault);
        }
        let slice = self.book().find(id, peer)?.shown();
        Ok(CreatedSlice { slice, ..created })
    }

    /// What a program held comes back to its device a moment after its slice has ended: a refusal in that moment
    /// would be for memory that nobody holds.
    fn memory_may_come_back(&self, begin: Instant) -> bool {
        const MOMENT: Duration = Duration::from_millis(500);
        let ended_at = self.book().ended_at;
        begin.elapsed() < MOMENT && ended_at.is_some_and(|ended| ended.elapsed() < 2 * MOMENT)
    }

    fn try_create(&self, peer: Peer, ask: &CreateSlice) -> Result<CreatedSlice, Fault> {
        let enforcement = enforce(&ask.request)?;
        let mut book = self.book();
        if let Some(spec) = &ask.emulated {
            book.inventory.add(emulated_devices(spec, self.run.path())?);
        }
        let id = fresh_id(&book)?;
        let name = slice_name(&book, peer, &ask.request, &ask.command, &id)?;
        let (device, share) = self.place(&mut book, ask, &enforcement)?;
        let record = SliceRecord {
            id: id.clone(),
            name,
            uid: peer.uid,
            device_uuid: device.uuid.clone(),
            memory_limit_bytes: share.memory,
            memory_used_bytes: Bytes(0),
            compute: ask.request.compute,
            isolation: enforcement.isolation,
            policy: ask.request.policy,
            created_at: clock::now(),
            state: SliceState::Starting,
            context_bytes: share.context,
            emulated_spec: book.inventory.emulated_spec(&device.uuid).map(str::to_owned),
            command: ask.command.clone(),
            keeper_pid: (!ask.lasting).then_some(peer.pid),
            lasting: ask.lasting,
            runs: Vec::new(),
            parent_id: None,
            memory_lent_bytes: Bytes(0),
            conditions: Vec::new(),
            bypasses: enforcement.bypasses,
            warnings: Vec::new(),
            usage_unknown: false,
            processes: Vec::new(),
        };
        let answer = CreatedSlice {
            directory: self.run.slice(&id),
            slice: record.clone(),
            device,
            joined: false,
        };
        if ask.dry_run {
            return Ok(answer);
        }
        self.take_device(&mut book, &answer.device)?;
        self.make_directory(&id, peer)?;
        store(&self.run, &record)?;
        book.bypass_total += record.bypasses.len() as u64;
        tracing::info!(
            slice = record.name, id, uid = peer.uid, by = peer.pid, lasting = record.lasting, device = record.device_uuid,
            memory = record.memory_limit_bytes.0, bypasses = ?record.bypasses, "slice admitted"
        );
        book.slices.insert(
            id,
            Slice::new(record, answer.slice.keeper_pid, answer.device.memory_total_bytes),
        );
        Ok(answer)
    }

    /// Hands a new slice's pages to its keeper, who is the caller.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::SharedMemory`], [`Code::Attach`].
    pub fn activate(&self, peer: Peer, id: &str) -> Result<SliceRecord, Fault> {
        let record = {
            let mut book = self.book();
            let slice = book.find(id, peer)?;
            peer.may_change(slice.record.uid, self.uid)?;
            if slice.pages.is_some() && slice.is_kept() {
                // Asked again: an agent before us died between handing them over and saying so.
                slice.record.state = SliceState::Running;
                return Ok(slice.shown());
            }
            slice.record.clone()
        };
        // A keeper may keep us waiting: not while we hold the book.
        let made = pages::create(&record)?;
        pages::deliver(&attach_socket(&self.run, &record.id), &made)?;
        let mut book = self.book();
        let slice = book.find(id, peer)?;
        slice.pages = Some(Arc::new(made));
        // A resize may have come in between.
        slice.write_grant();
        slice.set_keeper(Some(peer.pid));
        slice.record.state = SliceState::Running;
        let record = slice.stored_form();
        store(&self.run, &record)?;
        Ok(slice.shown())
    }

    fn may_create(&self, peer: Peer) -> Result<(), Fault> {
        if peer.uid == self.uid || peer.uid == 0 || self.settings.admit_others {
            return Ok(());
        }
        Err(Fault::new(
            Code::NotAllowed,
            format!("this agent makes slices for user {} and root only", self.uid),
        )
        .hint("its configuration may say `admit_others = true`; DIVVY_RUN_DIR chooses another agent"))
    }

    /// The device a request lands on: the one it names, else the first with room among those we may own.
    fn place(
        &self,
        book: &mut Book,
        ask: &CreateSlice,
        enforcement: &Enforcement,
    ) -> Result<(DeviceRecord, Share), Fault> {
        let candidates = match &ask.request.device {
            Some(selector) => vec![book.inventory.choose(selector)?],
            None => default_candidates(book, ask),
        };
        let mut first_refusal = None;
        for device in candidates {
            match self.fits(book, &device, &ask.request, enforcement) {
                Ok(share) => return Ok((device, share)),
                Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
            }
        }
        Err(first_refusal.unwrap_or_else(|| {
            Fault::new(Code::NoDevice, "there is no device to take a slice of")
                .hint("`--device emulated:h100` uses an emulated one")
        }))
    }

    fn fits(
        &self,
        book: &mut Book,
        device: &DeviceRecord,
        request: &SliceRequest,
        enforcement: &Enforcement,
    ) -> Result<Share, Fault> {
        self.check_owner(book, device)?;
        let unmanaged = self.used_on(book, device).unmanaged;
        let device_book = self.device_book(book, device, unmanaged);
        let amount = request.memory.unwrap_or(MemoryAmount::Share(10_000));
        let share = device_book.share(amount);
        if enforcement.isolation != Isolation::Env {
            device_book.admit(share)?;
        }
        Ok(share)
    }

    /// Refuses a device that another agent owns, without taking it yet.
    fn check_owner(&self, book: &Book, device: &DeviceRecord) -> Result<(), Fault> {
        let key = device.uuid.clone();
        match owner::owner(&key) {
            Some(other) if !book.owned.contains(&key) => Err(owner::taken(&key, &other)),
            _ => Ok(()),
        }
    }

    pub(crate) fn take_device(&self, book: &mut Book, device: &DeviceRecord) -> Result<(), Fault> {
        let key = device.uuid.clone();
        if !book.owned.contains(&key) {
            owner::own(&key, self.run.path())?;
            book.owned.insert(key);
        }
        Ok(())
    }

    fn make_directory(&self, id: &str, peer: Peer) -> Result<(), Fault> {
        let path = self.run.slice(id);
        let cannot = |error: &std::io::Error| {
            Fault::new(
                Code::RunDir,
                format!("cannot make the slice's directory `{}`", path.display()),
            )
            .because(error)
            .hint("`divvy doctor` checks the run directory")
        };
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| cannot(&error))?;
        if peer.uid != self.uid {
            let owner = Some(Uid::from_raw(peer.uid));
            chown(&path, owner, None::<Gid>).map_err(|error| cannot(&error.into()))?;
        }
        Ok(())
    }
}

/// Without a selector: the emulated devices of the caller's own specification, else every device, a physical one
/// before an emulated one that somebody asked for by name.
fn default_candidates(book: &Book, ask: &CreateSlice) -> Vec<DeviceRecord> {
    let devices = &book.inventory.devices;
    let own: Vec<DeviceRecord> = match &ask.emulated {
        Some(spec) => emulated_devices(spec, &book.inventory.run_dir)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|wanted| {
                devices
                    .iter()
                    .find(|device| device.uuid == wanted.record.uuid)
                    .cloned()
            })
            .collect(),
        None => Vec::new(),
    };
    if !own.is_empty() {
        return own;
    }
    let mut candidates = devices.clone();
    candidates.sort_by_key(|device| (device.kind == DeviceKind::Emulated, device.index));
    candidates
}

/// Eight hexadecimal digits that no living slice has.
fn fresh_id(book: &Book) -> Result<String, Fault> {
    loop {
        let mut bytes = [0_u8; 4];
        getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| {
            Fault::new(Code::Internal, "cannot get random bytes").because(&std::io::Error::from(error))
        })?;
        let id = format!("{:08x}", u32::from_be_bytes(bytes));
        if !book.slices.contains_key(&id) {
            return Ok(id);
        }
    }
}

/// The name asked for, checked, or one made of the program's.
fn slice_name(
    book: &Book,
    peer: Peer,
    request: &SliceRequest,
    command: &[String],
    id: &str,
) -> Result<String, Fault> {
    let Some(name) = &request.name else {
        let program = command
            .first()
            .map_or("slice", |program| program.rsplit('/').next().unwrap_or("slice"));
        let plain: String = program
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
            .take(40)
            .collect();
        let plain = plain.trim_start_matches(['-', '_', '.']);
        let base = if plain.is_empty() { "slice" } else { plain };
        return Ok(format!("{base}-{}", &id[..4.min(id.len())]));
    };
    if !is_name(name) {
        return Err(
            Fault::new(Code::SliceName, format!("`{name}` is no name for a slice"))
                .hint("1 to 63 letters, digits, `-`, `_` or `.`, beginning with a letter or a digit"),
        );
    }
    // Users name their slices without asking each other.
    let taken = |slice: &Slice| slice.record.uid == peer.uid && slice.record.name == *name;
    if book.slices.values().any(taken) {
        return Err(
            Fault::new(Code::NameTaken, format!("there is a slice `{name}` already"))
                .hint("choose another name, or leave --name out"),
        );
    }
    Ok(name.clone())
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=63).contains(&name.len())
        && name.bytes().all(plain)
        && name
            .bytes()
            .next()
            .is_some_and(|first| first.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["a", "train-1", "0.x_y", &"x".repeat(63)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "-a", ".a", "a b", "a/b", "ä", &"x".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn a_name_is_made_of_the_programs() {
        let request = SliceRequest {
            name: None,
            device: None,
            memory: None,
            compute: None,
            isolation: Isolation::Cooperative,
            policy: divvy_model::Policy::Strict,
        };
        let peer = Peer { uid: 1000, pid: 1 };
        let named =
            |command: &str| slice_name(&Book::default(), peer, &request, &[command.into()], "0123abcd");
        assert_eq!(named("/usr/bin/python3.12").expect("a name"), "python3.12-0123");
        assert_eq!(named("./run me").expect("a name"), "runme-0123");
        assert_eq!(named("--").expect("a name"), "slice-0123");
    }
}
