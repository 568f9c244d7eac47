//! Where the pages of a device are, and how this process reaches them.
//!
//! Where an agent serves the run directory, its holder has them: memory files whose size is sealed. The holder gives
//! them to the processes that the agent gave the device. Where there is no agent, they are files of the user's own, in
//! a folder that no other user enters: one user can trace himself anyway. A device's pages are never both. The agent
//! marks the file that it sets aside, by a lock that lasts as long as its holder. docs/adr/0035 says more.

use crate::engine::page::{self, ENGINE_ABI};
use crate::error::HardwareError;
use crate::granted::granted;
use crate::memory::file::MemoryFile;
use crate::mig;
use crate::page_file::{PageFile, ServedPage, Which};
use crate::product::identity::Uuid;
use crate::run_directory::{PAGE_MODE, is_own, make_folder, page_name, pages};
use crate::shared::lock::{self, Hold, is_locked, try_lock};
use divvy_ledger::attach::wire::Status;
use divvy_ledger::attach::{AttachError, device_pages};
use divvy_ledger::{PageError, Snapshot, open_file};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The holder's socket, in the run directory.
pub const SOCKET: &str = "pages.sock";
/// A container has the folder of its socket here, below what it was granted.
pub const FOLDER: &str = "pages";
/// The byte of a page's file that is locked while a holder has the device; locks may lie beyond a file's end.
const SET_ASIDE: u64 = 1 << 40;
/// A holder that begins, or ends, takes milliseconds. This is for one that is stopped in the middle.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// The pages of a device.
#[derive(Debug)]
pub struct Pages {
    /// Which process holds how much of its memory.
    pub ledger: PageFile,
    /// The timeline of its engine.
    pub engine: PageFile,
    /// The connection to the holder, which stays until this is closed. It is dropped when this process has its place.
    _connection: Option<OwnedFd>,
}

/// The socket at which this process asks for the pages of a run directory's devices.
fn socket(directory: &Path) -> PathBuf {
    match granted() {
        Some(_) => directory.join(FOLDER).join(SOCKET),
        None => directory.join(SOCKET),
    }
}

/// Finds a device's pages: the holder's, else the user's own files, which need not exist yet. For a ledger `uuid` is
/// that of the memory: of a GPU, or of a GPU instance. For an engine it is that of the GPU, or of the compute instance.
///
/// # Errors
/// [`HardwareError::NotServed`] where this process has no right to them, or the holder does not answer.
pub fn find(directory: &Path, uuid: Uuid) -> Result<Pages, HardwareError> {
    let socket = socket(directory);
    let has_files = is_own(directory);
    let begin = Instant::now();
    loop {
        match device_pages(&socket, uuid.0) {
            Ok(pages) => {
                let keep = |fd, which| {
                    let kept = MemoryFile::keep(fd).map_err(|errno| {
                        let step = "a descriptor of a page";
                        HardwareError::Page(socket.clone(), PageError::System { step, errno })
                    });
                    kept.map(|file| {
                        PageFile::Served(Arc::new(ServedPage {
                            file,
                            socket: socket.clone(),
                            uuid,
                            which,
                        }))
                    })
                };
                return Ok(Pages {
                    ledger: keep(pages.ledger, Which::Ledger)?,
                    engine: keep(pages.engine, Which::Engine)?,
                    _connection: Some(pages.connection),
                });
            }
            // It is being replaced, or is busy.
            Err(why) if is_passing(why, has_files) && begin.elapsed() < TIMEOUT => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(why) if granted().is_some() || !has_no_holder(why) => {
                return Err(HardwareError::NotServed(socket, why));
            }
            Err(_) => {}
        }
        let own = own_files(directory, uuid);
        match own.is_set_aside() {
            false => return Ok(own),
            // The holder has just gone, or is about to serve.
            true if begin.elapsed() < TIMEOUT => std::thread::sleep(PAUSE),
            true => return Err(HardwareError::NotServed(socket, AttachError::TimedOut)),
        }
    }
}

impl Pages {
    /// Whether a holder has the device, though these are the user's own files. Asked after a place was taken in them:
    /// an agent that sets them aside looks for places afterwards.
    pub fn is_set_aside(&self) -> bool {
        let PageFile::Path(path) = &self.ledger else {
            return false;
        };
        lock::open(path).is_ok_and(|file| is_locked(file.as_fd(), SET_ASIDE) == Ok(true))
    }
}

fn own_files(directory: &Path, uuid: Uuid) -> Pages {
    Pages {
        ledger: PageFile::Path(directory.join(page_name(uuid))),
        engine: PageFile::Path(pages(directory).join(format!("emulated-{uuid}.{ENGINE_ABI}.engine"))),
        _connection: None,
    }
}

/// Whether an answer means that no holder has the device: none listens, or it does not have this one.
fn has_no_holder(why: AttachError) -> bool {
    match why {
        AttachError::Declined(Status::NoPages) => true,
        AttachError::System { errno, .. } => matches!(
            errno,
            Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED | Errno::ACCESS
        ),
        _ => false,
    }
}

/// Whether another try may fare better: the holder hung up, or is gone and this process has no files in its place.
fn is_passing(why: AttachError, has_files: bool) -> bool {
    match why {
        AttachError::Protocol => true,
        AttachError::System { errno, .. } => {
            matches!(errno, Errno::CONNRESET | Errno::PIPE) || errno == Errno::CONNREFUSED && !has_files
        }
        _ => false,
    }
}

/// The UUIDs by which the pages of a device are asked for, by its usual name. For a GPU it is its own. For a MIG
/// instance they are its own and that of its GPU instance's memory. None for what is no device of the run directory.
#[must_use]
pub fn pages_of(directory: &Path, id: &str) -> Vec<Uuid> {
    match (Uuid::parse(id), id.starts_with("MIG-")) {
        (Some(uuid), false) => vec![uuid],
        (Some(uuid), true) => {
            mig::find(directory, uuid).map_or_else(Vec::new, |placed| vec![uuid, placed.memory()])
        }
        (None, _) => Vec::new(),
    }
}

/// Why a device cannot be set aside.
#[derive(Debug)]
pub enum SetAsideError {
    /// Another holder has it.
    ByAnother,
    /// This many programs use the files. They were started where no agent served.
    InUse(usize),
    /// The file.
    Failed(HardwareError),
}

/// Sets a device's files aside, so that programs ask a holder for its pages. It lasts as long as the returned file is
/// open anywhere. For the agent, before it has its holder make the pages; the holder's socket is there by then.
///
/// # Errors
/// [`SetAsideError`].
pub fn set_aside(directory: &Path, uuid: Uuid) -> Result<OwnedFd, SetAsideError> {
    make_folder(directory)
        .map_err(|why| SetAsideError::Failed(HardwareError::Directory(directory.to_owned(), why)))?;
    let path = directory.join(page_name(uuid));
    let failed = |why| SetAsideError::Failed(HardwareError::Page(path.clone(), why));
    let of_lock = |errno| {
        let step = "fcntl(F_OFD_SETLK) on a page's file";
        failed(PageError::System { step, errno })
    };
    let file = open_file(&path, PAGE_MODE).map_err(failed)?;
    if !try_lock(file.as_fd(), SET_ASIDE, 1, Hold::Alone).map_err(of_lock)? {
        return Err(SetAsideError::ByAnother);
    }
    // After the lock: a process that takes a place after this look finds the lock.
    let look = lock::open(&path).map_err(of_lock)?;
    let seen = Snapshot::read(look).map_err(failed)?;
    match seen.processes().filter(|process| process.alive).count() {
        0 => Ok(file),
        users => Err(SetAsideError::InUse(users)),
    }
}

/// Makes the page of an engine for a holder.
///
/// # Errors
/// The system's reason.
pub fn new_engine_page() -> Result<OwnedFd, PageError> {
    page::new_served()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::page::Page;
    use divvy_ledger::attach::serve_device;
    use divvy_ledger::{Ledger, Slot, SlotOwner};
    use std::os::unix::net::UnixListener;

    /// A holder that gives out what it is told to, once for each.
    fn hold(run: &Path, pages: Vec<(OwnedFd, OwnedFd)>) -> std::thread::JoinHandle<()> {
        let listener = UnixListener::bind(run.join(SOCKET)).expect("a socket");
        std::thread::spawn(move || {
            for (ledger, engine) in pages {
                let (stream, _) = listener.accept().expect("a process");
                let _hung_up = serve_device(&stream, |_, _| Ok((ledger, engine)));
            }
        })
    }

    fn unsealed(bytes: usize) -> OwnedFd {
        let file =
            rustix::fs::memfd_create(c"unsealed", rustix::fs::MemfdFlags::ALLOW_SEALING).expect("memory");
        rustix::fs::ftruncate(&file, bytes as u64).expect("a length");
        file
    }

    #[test]
    fn held_pages_are_used_and_those_that_could_shrink_are_not_mapped() {
        let run = tempfile::tempdir().expect("a folder");
        let uuid = Uuid([7; 16]);
        let ledger = Ledger::create().expect("a ledger");
        let holder = hold(
            run.path(),
            vec![
                (
                    ledger.share().expect("shared"),
                    new_engine_page().expect("a page"),
                ),
                (unsealed(divvy_ledger::LEDGER_BYTES), unsealed(page::BYTES)),
            ],
        );
        let good = find(run.path(), uuid).expect("pages");
        let (slot, page) = (claim(&good), Page::open(&good.engine).expect("sealed"));
        slot.reserve(1024, 1 << 20).expect("room");
        assert_eq!(ledger.total_used(), 1024);
        assert!(page.join().is_ok(), "its lock is on a description of its own");
        let PageFile::Served(held) = &good.ledger else {
            panic!("{good:?}");
        };
        assert!(rustix::fs::ftruncate(held.file.fd().expect("open"), 0).is_err());
        drop(good);
        let bad = find(run.path(), uuid).expect("pages");
        let refused = Ledger::open(bad.ledger.open().expect("open"), bad.ledger.backing());
        assert!(matches!(refused, Err(PageError::Unsealed { .. })), "{refused:?}");
        assert!(matches!(Page::open(&bad.engine), Err(Errno::PROTO)));
        drop(bad);
        holder.join().expect("ended");
    }

    fn claim(pages: &Pages) -> Slot {
        let file = pages.ledger.open().expect("open");
        Slot::claim(file, pages.ledger.backing(), SlotOwner::default()).expect("a place")
    }

    #[test]
    fn files_that_are_in_use_are_not_set_aside_and_who_comes_after_sees_the_mark() {
        let run = tempfile::tempdir().expect("a folder");
        let uuid = Uuid([7; 16]);
        let own = find(run.path(), uuid).expect("files");
        make_folder(run.path()).expect("a folder");
        drop(open_file(own.ledger.name(), PAGE_MODE).expect("a file"));
        let slot = claim(&own);
        assert!(!own.is_set_aside());
        assert!(matches!(
            set_aside(run.path(), uuid),
            Err(SetAsideError::InUse(1))
        ));
        assert!(!own.is_set_aside(), "a refusal leaves no mark");
        drop(slot);
        let mark = set_aside(run.path(), uuid).expect("set aside");
        assert!(own.is_set_aside());
        assert!(matches!(
            set_aside(run.path(), uuid),
            Err(SetAsideError::ByAnother)
        ));
        drop(mark);
        assert!(!own.is_set_aside());
    }
}
