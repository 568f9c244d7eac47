//! Events of several processes: a page each, in the run directory.
//!
//! Every recording takes the next number and writes it down when its place in the stream is reached. A waiter remembers
//! the newest number. It looks until that one, or a later, is reached, or until the process that recorded it is dead:
//! then nothing is left to wait for.

use super::lock::{FILE_BYTES, FileLock, Hold, is_locked, open, try_lock};
use super::ownership::Id;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, DirBuilder};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A process that has the event holds the lock of this byte and its pid together; locks may lie beyond a file's end.
const HOLDERS: u64 = 1 << 32;
/// Number of processes a pid can name.
const PIDS: u64 = 1 << 31;
/// Pause between two looks at first. It doubles each time, up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_micros(20);
/// The longest wait after the event was reached.
const LONGEST: Duration = Duration::from_millis(1);

/// What the page holds.
#[repr(C)]
struct Page {
    /// Number of the newest recording.
    recorded: AtomicU64,
    /// The newest recording that was reached.
    reached: AtomicU64,
    /// Process of the newest recording.
    recorder: AtomicU64,
}

/// This process's part in an event.
#[derive(Debug)]
pub struct SharedEvent {
    /// Its name.
    pub id: Id,
    path: PathBuf,
    page: Option<FileLock>,
}

impl SharedEvent {
    /// A new event without a recording.
    ///
    /// # Errors
    /// The system's reason.
    pub fn create(directory: &Path) -> Result<Arc<SharedEvent>, Errno> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))?;
        remove_abandoned(directory);
        let id = Id::random()?;
        let path = directory.join(id.to_string());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // A name that no process looks for until the page is locked.
        let draft = path.with_extension("new");
        let file = rustix::fs::open(&draft, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&file, FILE_BYTES as u64)?;
        let page = hold(file)?;
        rustix::fs::rename(&draft, &path)?;
        Ok(Arc::new(SharedEvent {
            id,
            path,
            page: Some(page.ok_or(Errno::AGAIN)?),
        }))
    }

    /// An event that a process has; None if no process has it any more.
    ///
    /// # Errors
    /// The system's reason.
    pub fn open(directory: &Path, id: Id) -> Result<Option<Arc<SharedEvent>>, Errno> {
        let path = directory.join(id.to_string());
        let file = match open(&path) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        if rustix::fs::fstat(&file)?.st_size != FILE_BYTES as i64 {
            return Ok(None);
        }
        let Some(page) = hold(file)? else { return Ok(None) };
        // Removed while it was opened: the last process with it is gone.
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(Arc::new(SharedEvent {
            id,
            path,
            page: Some(page),
        })))
    }

    /// Starts a recording; its number goes to [`SharedEvent::reach`].
    pub fn record(&self) -> u64 {
        let page = self.page();
        page.recorder
            .store(u64::from(std::process::id()), Ordering::Relaxed);
        page.recorded.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The recording's place in its stream was reached.
    pub fn reach(&self, number: u64) {
        self.page().reached.fetch_max(number, Ordering::AcqRel);
    }

    /// The newest recording, 0 if there was none.
    pub fn newest(&self) -> u64 {
        self.page().recorded.load(Ordering::Acquire)
    }

    /// Whether a recording was reached, or never will be.
    pub fn is_done(&self, number: u64) -> bool {
        self.page().reached.load(Ordering::Acquire) >= number || self.recorder_is_dead()
    }

    /// Waits for a recording.
    pub fn wait(&self, number: u64) {
        let mut pause = SHORTEST;
        while !self.is_done(number) {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    }

    fn recorder_is_dead(&self) -> bool {
        let recorder = self.page().recorder.load(Ordering::Relaxed);
        open(&self.path).is_ok_and(|file| is_locked(file.as_fd(), HOLDERS + recorder) == Ok(false))
    }

    fn page(&self) -> &Page {
        let address = self.page.as_ref().map_or(0, FileLock::address);
        // SAFETY: the lock maps a whole page for as long as `self` lives and gives it up on drop alone; the page is
        // atomics only, aligned as a page is.
        unsafe { &*(address as *const Page) }
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        drop(self.page.take());
        remove_unused(&self.path);
    }
}

fn hold(file: OwnedFd) -> Result<Option<FileLock>, Errno> {
    FileLock::take(file, HOLDERS + u64::from(std::process::id()), 1, Hold::Together)
}

fn remove_unused(path: &Path) {
    if let Ok(file) = open(path)
        && try_lock(file.as_fd(), HOLDERS, PIDS, Hold::Alone) == Ok(true)
    {
        let _gone = rustix::fs::unlink(path);
    }
}

/// Removes what dead processes left.
fn remove_abandoned(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none() {
            remove_unused(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_reached_once_and_for_all_who_have_the_event() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("events");
        let first = SharedEvent::create(&path).unwrap();
        let second = SharedEvent::open(&path, first.id).unwrap().unwrap();
        assert!(second.is_done(second.newest()), "nothing recorded is done");
        let number = first.record();
        assert_eq!(second.newest(), number);
        assert!(!second.is_done(number));
        first.reach(number);
        second.wait(number);
        // A later recording holds up the processes that wait for it, not those that waited before.
        let later = first.record();
        assert!(second.is_done(number) && !second.is_done(later));
        drop(second);
        let id = first.id;
        drop(first);
        assert!(SharedEvent::open(&path, id).unwrap().is_none());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn what_the_dead_left_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let left = directory.path().join("00");
        fs::write(&left, [0; FILE_BYTES]).unwrap();
        let _event = SharedEvent::create(directory.path()).unwrap();
        assert!(!left.exists());
    }
}
