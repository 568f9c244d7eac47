//! The file that this library writes in this process: chunks, each of one thread.
//!
//! No descriptor is kept, for those of the process are the program's. What cannot be written is lost, and the folder is told
//! so ([`LOST`]); the program goes on.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::chunk::{CHUNK, Chunk};
use crate::clock::now_ns;
use crate::event::Event;
use crate::follow::LOST;

/// The variable that names the folder.
pub const FOLDER: &str = "DIVVY_TRACE";

static ON: AtomicBool = AtomicBool::new(false);
static SETTING: OnceLock<Setting> = OnceLock::new();
/// The file of this process. A forked child makes one of its own.
static FILE: AtomicPtr<Sink> = AtomicPtr::new(std::ptr::null_mut());

struct Setting {
    folder: PathBuf,
    /// Which library this is: a process may have several that write.
    library: &'static str,
}

/// Whether this process is traced. Nothing of this crate runs where it is not, but this load.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// At a library's load: whether this process is to be traced.
pub fn begin(library: &'static str) {
    let Some(folder) = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()) else {
        return;
    };
    // SAFETY: it reads the process's auxiliary vector, which the kernel wrote and no code changes.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
    // A set-id program writes to no folder that its caller names.
    if is_secure {
        return;
    }
    begin_in(PathBuf::from(folder), library);
}

pub(crate) fn begin_in(folder: PathBuf, library: &'static str) {
    if SETTING.set(Setting { folder, library }).is_ok() {
        // SAFETY: the handler only stores to an atomic. The library is never unloaded (linked with -z nodelete).
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        ON.store(true, Ordering::Relaxed);
    }
}

/// In a forked child. What is there is left as it is: another thread of the parent may have held its lock.
extern "C" fn in_child() {
    FILE.store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// The file of one process.
struct Sink {
    path: PathBuf,
    lost: PathBuf,
    /// Its first record says which process it is.
    is_told: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Chunks that the file has.
    count: u64,
    /// Those whose thread has ended, to be written on.
    free: Vec<Chunk>,
}

impl Sink {
    fn new(setting: &Setting) -> Sink {
        let name = format!("{}-{}-{}", std::process::id(), now_ns(), setting.library);
        Sink {
            path: setting.folder.join(name),
            lost: setting.folder.join(LOST),
            is_told: AtomicBool::new(false),
            inner: Mutex::default(),
        }
    }

    fn chunk(&self) -> Option<Chunk> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(chunk) = inner.free.pop() {
            return Some(chunk);
        }
        let made = self.open(inner.count == 0).and_then(|file| {
            let offset = inner.count * CHUNK as u64;
            Chunk::new(&file, offset).inspect_err(|_| {
                // A part of a chunk is none.
                let _shortened = file.set_len(offset);
            })
        });
        match made {
            Ok(chunk) => {
                inner.count += 1;
                Some(chunk)
            }
            Err(_) => {
                self.tell_lost();
                None
            }
        }
    }

    fn open(&self, first: bool) -> std::io::Result<std::fs::File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(first)
            .mode(0o600)
            .open(&self.path)
    }

    /// The file has its byte already, so that this succeeds on a full disk too.
    fn tell_lost(&self) {
        let told = OpenOptions::new().write(true).open(&self.lost);
        let _told = told.and_then(|file| file.write_all_at(b"1", 0));
    }
}

/// The sink of this process, once it is traced.
fn sink() -> Option<&'static Sink> {
    let known = FILE.load(Ordering::Acquire);
    let sink = if known.is_null() {
        let made = Box::into_raw(Box::new(Sink::new(SETTING.get()?)));
        match FILE.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: `made` came from a box above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        }
    } else {
        known
    };
    // SAFETY: what is stored in FILE is never freed.
    Some(unsafe { &*sink })
}

/// What a thread writes into.
struct Own {
    /// Whose chunk it is: a forked child has another.
    sink: &'static Sink,
    chunk: Option<Chunk>,
    bytes: Vec<u8>,
    tid: u32,
}

impl Own {
    fn new(sink: &'static Sink) -> Own {
        let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let mut own = Own {
            sink,
            chunk: None,
            bytes: Vec::new(),
            tid,
        };
        let at = now_ns();
        if !sink.is_told.swap(true, Ordering::Relaxed) {
            own.write(&Event::Process {
                at,
                parent: std::os::unix::process::parent_id(),
                program: program(),
            });
        }
        let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
        let name = name.trim_end().to_owned();
        own.write(&Event::Thread { at, tid, name });
        own
    }

    fn write(&mut self, event: &Event) {
        self.bytes.clear();
        event.encode(&mut self.bytes);
        if !Chunk::fits(self.bytes.len()) {
            self.sink.tell_lost();
            return;
        }
        for _ in 0..2 {
            if self.chunk.is_none() {
                self.chunk = self.sink.chunk();
            }
            // Without a chunk the record is lost, which was told.
            let Some(chunk) = &mut self.chunk else { return };
            if chunk.append(&self.bytes) {
                return;
            }
            self.chunk = None;
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let Some(chunk) = self.chunk.take() else { return };
        if FILE.load(Ordering::Acquire).cast_const() != std::ptr::from_ref(self.sink) {
            // A forked child's copy of its parent's mapping.
            return;
        }
        let mut inner = self.sink.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.free.push(chunk);
    }
}

thread_local! {
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

/// Has `work` write what it has to. Nothing where the thread is at its end, or was interrupted while it wrote.
fn with_own<T>(work: impl FnOnce(&mut Own) -> T) -> Option<T> {
    let sink = sink()?;
    let here = |own: &RefCell<Option<Own>>| {
        let mut own = own.try_borrow_mut().ok()?;
        if own.as_ref().is_none_or(|own| !std::ptr::eq(own.sink, sink)) {
            *own = Some(Own::new(sink));
        }
        own.as_mut().map(work)
    };
    OWN.try_with(here).ok().flatten()
}

/// Records an event.
pub(crate) fn write(event: &Event) {
    let _written = with_own(|own| own.write(event));
}

/// The id of the calling thread; 0 where it is at its end.
pub(crate) fn tid() -> u32 {
    with_own(|own| own.tid).unwrap_or(0)
}

/// The program's file and its arguments, cut where they are long.
fn program() -> String {
    let line = std::fs::read(Path::new("/proc/self/cmdline")).unwrap_or_default();
    let words: Vec<_> = line
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    words.join(" ").trim_end().chars().take(200).collect()
}
