//! What the loader calls: rtld-audit(7), with the numbers of glibc's link.h.

use core::ffi::{CStr, c_char, c_long, c_uint, c_void};
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::line::Line;
use crate::record::{name_at, note, record_to};
use crate::wrappers::wrapped;

/// Report names that are bound to this object, or from it.
const LA_FLG_BINDTO: c_uint = 1;
const LA_FLG_BINDFROM: c_uint = 2;
/// Calls through this binding are not reported, so it costs nothing more once it is bound.
const LA_SYMB_NOPLTENTER: c_uint = 1;
const LA_SYMB_NOPLTEXIT: c_uint = 2;
/// The name was asked for with dlsym.
const LA_SYMB_DLSYM: c_uint = 8;

/// The beginning of glibc's `struct link_map`.
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const c_char,
}

/// `Elf64_Sym`; the loader gives a copy in which the value is the address.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

/// Runs `body`; a panic inside ends here, in silence.
pub(crate) fn quietly<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Whether this library is needed at all. 0: the loader takes it away again.
///
/// The loader's own version is taken, whichever it is: between 1 and 2 only `la_pltenter` and `la_pltexit` differ,
/// which are not here.
#[unsafe(no_mangle)]
extern "C" fn la_version(version: c_uint) -> c_uint {
    quietly(0, || {
        let path = std::env::var_os("KIT_RECORD_TO").filter(|path| !path.is_empty());
        let Some(path) = path.and_then(|path| CString::new(path.into_vec()).ok()) else {
            return 0;
        };
        std::panic::set_hook(Box::new(|_| {}));
        record_to(path);
        version
    })
}

/// An object was loaded. Its cookie says which library it is, and comes back with each name that is bound there.
///
/// NVIDIA's libraries look up names themselves too. Those are not the program's requests, so they are not noted.
///
/// # Safety
/// The loader's: `map` and `cookie` are its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn la_objopen(map: *const LinkMap, _namespace: c_long, cookie: *mut usize) -> c_uint {
    quietly(LA_FLG_BINDFROM, || {
        // SAFETY: the loader's own structure, whose name is a C string.
        let path = unsafe { CStr::from_ptr((*map).name) };
        let library = Library::of(path.to_bytes());
        // SAFETY: the loader's own word for this object.
        unsafe { *cookie = library.map_or(0, |library| library as usize) };
        match library {
            Some(_) => LA_FLG_BINDTO,
            None => LA_FLG_BINDFROM,
        }
    })
}

/// A name was bound. Returns the address that the program is to have.
///
/// # Safety
/// The loader's: all pointers are its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn la_symbind64(
    symbol: *const Symbol,
    _index: c_uint,
    _from: *mut usize,
    to: *mut usize,
    flags: *mut c_uint,
    name: *const c_char,
) -> usize {
    // SAFETY: the loader's own copy of the symbol.
    let address = unsafe { (*symbol).value };
    quietly(address, || {
        // SAFETY: the loader's own words: the object's cookie, which `la_objopen` set, and the flags of this binding.
        let (library, by_dlsym) = unsafe {
            let by_dlsym = *flags & LA_SYMB_DLSYM != 0;
            *flags |= LA_SYMB_NOPLTENTER | LA_SYMB_NOPLTEXIT;
            (Library::by_cookie(*to), by_dlsym)
        };
        let Some(library) = library else { return address };
        // SAFETY: the name is a C string of the loader's.
        let name = unsafe { name_at(name) };
        note(&Line::symbol(library.soname(), name.bytes(), by_dlsym));
        match library {
            Library::Cuda => wrapped(name.bytes(), address as *mut c_void) as usize,
            Library::Nvml => address,
        }
    })
}

/// The libraries of interest, by the cookie that they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    Cuda = 1,
    Nvml = 2,
}

impl Library {
    const ALL: [Self; 2] = [Self::Cuda, Self::Nvml];

    /// The library that is loaded from this file. Some programs ask for `libcuda.so`, others for the driver's versioned
    /// file.
    fn of(path: &[u8]) -> Option<Self> {
        let file = path.rsplit(|byte| *byte == b'/').next()?;
        let is_it = |library: &Self| {
            let plain = library.soname().strip_suffix(b".1").unwrap_or_default();
            let rest = file.strip_prefix(plain);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
        };
        Self::ALL.into_iter().find(is_it)
    }

    fn by_cookie(cookie: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|library| *library as usize == cookie)
    }

    fn soname(self) -> &'static [u8] {
        match self {
            Self::Cuda => b"libcuda.so.1",
            Self::Nvml => b"libnvidia-ml.so.1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_known_by_their_files() {
        for (path, library) in [
            ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", Some(Library::Cuda)),
            ("libcuda.so", Some(Library::Cuda)),
            ("/lib/libcuda.so.535.54.03", Some(Library::Cuda)),
            ("/lib/libnvidia-ml.so.1", Some(Library::Nvml)),
            ("/lib/libcudart.so.12", None),
            ("/lib/libcuda.so.1/other", None),
            ("/lib/libcuda.something", None),
            ("", None),
        ] {
            assert_eq!(Library::of(path.as_bytes()), library, "{path}");
        }
        assert_eq!(Library::by_cookie(0), None);
        assert_eq!(Library::by_cookie(2), Some(Library::Nvml));
    }
}
