//! A loaded library below: opened once, by its absolute path, and never closed.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use core::time::Duration;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::find;
use crate::{environment, log};

/// A loaded library.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    handle: *mut c_void,
}

/// The state of the library below.
pub(crate) enum Driver {
    Open(Library),
    /// None was found, or the named one does not load.
    Absent,
    /// This very thread is opening it, and its loading calls us; or another thread is, and does not finish.
    Opening,
}

const NOT_YET: u8 = 0;
const OPENING: u8 = 1;
const DONE: u8 = 2;

/// One library that the limiter stands in front of, and how to find it.
pub(crate) struct Loader {
    /// Its file name.
    file: &'static str,
    /// The variable that names another file.
    variable: &'static str,
    /// The value of that variable.
    named: fn() -> Option<&'static Path>,
    /// A function that the library must have to be the right one.
    entry: &'static CStr,
    state: AtomicU8,
    /// The thread that opens it, by pthread_self.
    opener: AtomicUsize,
    handle: AtomicPtr<c_void>,
}

/// The CUDA driver below.
pub(crate) static CUDA: Loader = Loader::new("libcuda.so.1", "DIVVY_DRIVER", environment::driver, c"cuInit");

/// How many milliseconds to wait for another thread's dlopen. A driver's start takes a second at worst; in a forked
/// child the thread may not exist.
const TIMEOUT_MS: u32 = 60_000;

impl Loader {
    /// A library that is not opened yet.
    pub const fn new(
        file: &'static str,
        variable: &'static str,
        named: fn() -> Option<&'static Path>,
        entry: &'static CStr,
    ) -> Self {
        Self {
            file,
            variable,
            named,
            entry,
            state: AtomicU8::new(NOT_YET),
            opener: AtomicUsize::new(0),
            handle: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// The library; opened now if it was not yet.
    pub fn driver(&self) -> Driver {
        for _ in 0..TIMEOUT_MS {
            match self
                .state
                .compare_exchange(NOT_YET, OPENING, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    self.opener.store(this_thread(), Ordering::Relaxed);
                    let handle = self
                        .open()
                        .map_or(core::ptr::null_mut(), |library| library.handle);
                    self.handle.store(handle, Ordering::Relaxed);
                    self.state.store(DONE, Ordering::Release);
                    return self.opened();
                }
                Err(DONE) => return self.opened(),
                Err(_) if self.opener.load(Ordering::Relaxed) == this_thread() => return Driver::Opening,
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Driver::Opening
    }

    fn opened(&self) -> Driver {
        let handle = self.handle.load(Ordering::Acquire);
        if handle.is_null() {
            Driver::Absent
        } else {
            Driver::Open(Library { handle })
        }
    }

    fn open(&self) -> Option<Library> {
        let candidates = find::candidates(self.file, (self.named)());
        if candidates.is_empty() {
            log::line(format_args!(
                "No {} below: name it by absolute path in {}",
                self.file, self.variable
            ));
        }
        candidates
            .iter()
            .find_map(|path| match Library::open(path, self.entry) {
                Ok(library) => Some(library),
                Err(reason) => {
                    log::line(format_args!("{}: {reason}", path.display()));
                    None
                }
            })
    }

    /// An address within the library, or 0 until the library is opened.
    pub fn address_if_open(&self) -> usize {
        if self.state.load(Ordering::Acquire) != DONE {
            return 0;
        }
        match self.opened() {
            Driver::Open(library) => library.symbol(self.entry).map_or(0, |address| address as usize),
            Driver::Absent | Driver::Opening => 0,
        }
    }

    /// The file of the library, for a report. Opens the library if that has not been done.
    pub fn path(&self) -> Option<PathBuf> {
        match self.driver() {
            Driver::Open(library) => find::loaded_from(library.symbol(self.entry)?),
            Driver::Absent | Driver::Opening => None,
        }
    }
}

fn this_thread() -> usize {
    // SAFETY: always callable.
    unsafe { libc::pthread_self() as usize }
}

impl Library {
    fn open(path: &Path, entry: &CStr) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "A NUL in the path".to_owned())?;
        // A path with a slash never matches a SONAME that is already loaded, so this never finds ourselves by name.
        // SAFETY: the name is a C string. Constructors of the driver run, as they would without us.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(last_error());
        }
        let library = Self { handle };
        match library.symbol(entry) {
            None => Err(format!(
                "It is not what it should be: it has no {}",
                entry.to_string_lossy()
            )),
            // The file is compared as well, in case it is reached through a link of another name.
            Some(address) if find::image(address) == find::image(Self::open as *const c_void) => {
                Err("It is the limiter itself".to_owned())
            }
            Some(_) => Ok(library),
        }
    }

    /// Address of a symbol, if the library has it.
    pub fn symbol(self, name: &CStr) -> Option<*const c_void> {
        // SAFETY: the handle is open for the life of the process.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address.cast_const())
    }
}

fn last_error() -> String {
    // SAFETY: dlerror returns null or a C string that lives until this thread's next call of the loader.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "It does not load".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}
