//! The driver below as a loaded library: opened once, by its absolute path, and never closed.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use core::time::Duration;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use divvy_abi::Symbol;

use super::find;
use crate::log;

/// A loaded driver.
#[derive(Clone, Copy)]
pub(super) struct Library {
    handle: *mut c_void,
}

/// What there is below.
pub(super) enum Driver {
    Open(Library),
    /// None was found, or the one named does not load.
    Absent,
    /// It is being opened by this very thread, whose loading calls us; or by a thread that does not come to its end.
    Opening,
}

const NOT_YET: u8 = 0;
const OPENING: u8 = 1;
const DONE: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(NOT_YET);
/// The thread that opens, as pthread_self says.
static OPENER: AtomicUsize = AtomicUsize::new(0);
static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Rounds of a millisecond to wait for another thread's dlopen. A driver's start takes a second at worst; in a forked
/// child the thread may not exist.
const PATIENCE: u32 = 60_000;

/// The driver below, opened now if it was not yet.
pub(super) fn driver() -> Driver {
    for _ in 0..PATIENCE {
        match STATE.compare_exchange(NOT_YET, OPENING, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                OPENER.store(this_thread(), Ordering::Relaxed);
                let handle = open().map_or(core::ptr::null_mut(), |library| library.handle);
                HANDLE.store(handle, Ordering::Relaxed);
                STATE.store(DONE, Ordering::Release);
                return opened();
            }
            Err(DONE) => return opened(),
            Err(_) if OPENER.load(Ordering::Relaxed) == this_thread() => return Driver::Opening,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Driver::Opening
}

fn opened() -> Driver {
    let handle = HANDLE.load(Ordering::Acquire);
    if handle.is_null() {
        Driver::Absent
    } else {
        Driver::Open(Library { handle })
    }
}

fn this_thread() -> usize {
    // SAFETY: always callable.
    unsafe { libc::pthread_self() as usize }
}

fn open() -> Option<Library> {
    let candidates = find::candidates();
    if candidates.is_empty() {
        log::line(format_args!(
            "No driver below: name it by absolute path in DIVVY_DRIVER"
        ));
    }
    candidates.iter().find_map(|path| match Library::open(path) {
        Ok(library) => Some(library),
        Err(reason) => {
            log::line(format_args!("{}: {reason}", path.display()));
            None
        }
    })
}

impl Library {
    fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "A NUL in the path".to_owned())?;
        // A path with a slash never matches a SONAME that is loaded already, so this is never ourselves by name.
        // SAFETY: the name is a C string. Constructors of the driver run, as they would without us.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(last_error());
        }
        let library = Self { handle };
        match library.symbol(Symbol::cuInit) {
            None => Err("It is not a CUDA driver: it has no cuInit".to_owned()),
            // By file as well, in case it is reached through a link of another name.
            Some(address) if find::loaded_from(address) == find::loaded_from(Self::open as *const c_void) => {
                Err("It is the limiter itself".to_owned())
            }
            Some(_) => Ok(library),
        }
    }

    /// Address of a symbol, if the driver has it.
    pub fn symbol(self, symbol: Symbol) -> Option<*const c_void> {
        let name: &CStr = Symbol::C_NAMES[symbol.index()];
        // SAFETY: the handle is open for the life of the process.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address.cast_const())
    }
}

fn last_error() -> String {
    // SAFETY: dlerror answers null or a C string that lives until this thread's next call of the loader.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "It does not load".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// An address within the driver below, or 0 as long as nobody has opened it.
pub(crate) fn address_if_open() -> usize {
    if STATE.load(Ordering::Acquire) != DONE {
        return 0;
    }
    match opened() {
        Driver::Open(library) => library
            .symbol(Symbol::cuInit)
            .map_or(0, |address| address as usize),
        Driver::Absent | Driver::Opening => 0,
    }
}

/// The file of the driver below, for a report; opens it if nobody has.
pub fn path() -> Option<PathBuf> {
    match driver() {
        Driver::Open(library) => find::loaded_from(library.symbol(Symbol::cuInit)?),
        Driver::Absent | Driver::Opening => None,
    }
}
