//! Libraries in this process that take device memory past the limiter: NVIDIA's OpenCL, graphics and codec libraries,
//! and a libcuda that is neither the limiter nor the driver below.
//!
//! The loader counts the objects that it has loaded, and reports the count cheaply: as long as it stands still, a check
//! costs one call of the loader. The check runs where it costs little beside the call itself: when a context is made,
//! and before large allocations. A process that allocates nothing is seen by the agent from outside.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use divvy_abi::{CUDA_ERROR_NOT_PERMITTED, CUresult};
use divvy_ledger::{Bypass, Policy};

use crate::below;
use crate::below::find::{headers, holds};
use crate::log;
use crate::tenant::Membership;

/// The loader's count at the last check, plus one; 0 before the first check.
static SEEN: AtomicU64 = AtomicU64::new(0);
/// Kinds that were found, one bit each: each is counted once per process.
static FOUND: AtomicU64 = AtomicU64::new(0);
/// This limiter stands in front of OpenCL, and another copy of it in front of CUDA.
static SERVES_OPENCL: AtomicBool = AtomicBool::new(false);

/// From now on this copy of the limiter stands in front of OpenCL drivers: they are its drivers below, and CUDA is another
/// copy's matter.
pub fn serve_opencl() {
    SERVES_OPENCL.store(true, Ordering::Relaxed);
}

/// Checks, if the loader has loaded an object since.
///
/// # Errors
/// As [`permit`].
#[inline(never)]
pub(crate) fn look(member: &Membership) -> Result<(), CUresult> {
    let mut loads = 0_u64;
    // SAFETY: the callback writes one u64, and it gets a pointer to one.
    unsafe { libc::dl_iterate_phdr(Some(count_loads), (&raw mut loads).cast()) };
    if SEEN.swap(loads + 1, Ordering::Relaxed) != loads + 1 {
        search(member);
    }
    permit(member)
}

/// Whether this process may allocate, given the findings so far.
///
/// # Errors
/// `CUDA_ERROR_NOT_PERMITTED` once such a library was found, as long as the policy is strict.
pub(crate) fn permit(member: &Membership) -> Result<(), CUresult> {
    if FOUND.load(Ordering::Relaxed) == 0 || member.first().policy() == Policy::BestEffort {
        return Ok(());
    }
    // Small allocations make no check, unless they have to.
    member.look_devices_up();
    Err(CUDA_ERROR_NOT_PERMITTED)
}

unsafe extern "C" fn count_loads(info: *mut libc::dl_phdr_info, _: usize, loads: *mut c_void) -> c_int {
    // SAFETY: the loader's own record, for the time of this call; `loads` is `look`'s.
    unsafe { loads.cast::<u64>().write((*info).dlpi_adds) };
    // Any object holds the count, so the first is enough.
    1
}

/// The input and the result of a search.
struct Search {
    /// An address within each permitted libcuda.
    known: [usize; 2],
    found: u64,
    /// The layer in front of OpenCL drivers is loaded: they are limited there.
    has_layer: bool,
}

#[cold]
fn search(member: &Membership) {
    let mut search = Search {
        known: [search_address(), below::address_if_open()],
        found: 0,
        has_layer: false,
    };
    // SAFETY: the callback gets the record that it is written for, and no other code uses it meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(judge), (&raw mut search).cast()) };
    let serves_opencl = SERVES_OPENCL.load(Ordering::Relaxed);
    if serves_opencl || search.has_layer {
        search.found &= !bit(Bypass::OpenCl);
    }
    if serves_opencl {
        search.found &= !bit(Bypass::ForeignLibcuda);
    }
    let new = search.found & !FOUND.fetch_or(search.found, Ordering::Relaxed);
    for bypass in Bypass::ALL.into_iter().filter(|bypass| new & bit(*bypass) != 0) {
        let refused = member.first().policy() == Policy::Strict;
        log::line(format_args!(
            "A library is loaded that takes device memory past the limiter ({bypass}){}",
            if refused {
                ": nothing is allocated any more"
            } else {
                ""
            }
        ));
        member.first().slot().count(bypass);
    }
}

/// The SONAME of the layer in front of OpenCL drivers, of `dropin/limit-opencl`.
const LAYER: &str = "libdivvy-opencl.so.1";

fn search_address() -> usize {
    search as *const () as usize
}

fn bit(bypass: Bypass) -> u64 {
    1 << bypass as u64
}

unsafe extern "C" fn judge(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `search` is the caller's record; `info` the loader's own, for the time of this call.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: the loader's record of a mapped object.
    let object = unsafe { Object::of(info) };
    search.has_layer |= object.soname == LAYER;
    if let Some(bypass) = object.bypass(&search.known) {
        search.found |= bit(bypass);
    }
    0
}

/// A loaded object, as the loader describes it.
struct Object<'a> {
    path: &'a str,
    soname: &'a str,
    info: &'a libc::dl_phdr_info,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SONAME: i64 = 14;

impl<'a> Object<'a> {
    /// # Safety
    /// `info` is the loader's record of an object that stays mapped for `'a`.
    unsafe fn of(info: &'a libc::dl_phdr_info) -> Self {
        // SAFETY: the loader's strings and tables.
        unsafe {
            Self {
                path: text(info.dlpi_name),
                soname: soname(info),
                info,
            }
        }
    }

    fn bypass(&self, known: &[usize]) -> Option<Bypass> {
        // An object without code is one of our stand-ins or second names.
        if !headers(self.info)
            .iter()
            .any(|header| header.p_flags & libc::PF_X != 0)
        {
            return None;
        }
        let file = self.path.rsplit('/').next().unwrap_or("");
        Bypass::by_library(file)
            .or_else(|| Bypass::by_library(self.soname))
            .or_else(|| {
                let libcuda = is_libcuda(file) || is_libcuda(self.soname);
                (libcuda && !self.is_ours(known)).then_some(Bypass::ForeignLibcuda)
            })
    }

    /// The limiter, the driver below, another slice's limiter around this one, or the parts of WSL's driver.
    fn is_ours(&self, known: &[usize]) -> bool {
        self.path.contains("/stages/")
            || self.path.starts_with("/usr/lib/wsl/")
            || known.iter().any(|&address| holds(self.info, address))
    }
}

fn is_libcuda(name: &str) -> bool {
    name == "libcuda.so" || name.starts_with("libcuda.so.")
}

/// # Safety
/// `name` is null or a C string that outlives `'a`.
unsafe fn text<'a>(name: *const c_char) -> &'a str {
    if name.is_null() {
        return "";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("")
}

/// The object's DT_SONAME, or nothing.
///
/// # Safety
/// `info` is the loader's record of a mapped object.
unsafe fn soname(info: &libc::dl_phdr_info) -> &str {
    let Some(dynamic) = headers(info)
        .iter()
        .find(|header| header.p_type == libc::PT_DYNAMIC)
    else {
        return "";
    };
    let mut entry = (info.dlpi_addr as usize).wrapping_add(dynamic.p_vaddr as usize) as *const [i64; 2];
    let (mut strings, mut offset) = (0_usize, None);
    for _ in 0..dynamic.p_memsz as usize / size_of::<[i64; 2]>() {
        // SAFETY: within the dynamic segment, which is mapped and readable.
        match unsafe { entry.read() } {
            [DT_NULL, _] => break,
            [DT_STRTAB, value] => strings = value as usize,
            [DT_SONAME, value] => offset = Some(value as usize),
            _ => {}
        }
        // SAFETY: as above; the loop's bound.
        entry = unsafe { entry.add(1) };
    }
    // The loader has turned the table's offset into an address, except in the vDSO, which it does not touch.
    match offset {
        Some(offset) if strings > info.dlpi_addr as usize && strings > 4096 => {
            // SAFETY: a string of the object's own table.
            unsafe { text((strings + offset) as *const c_char) }
        }
        _ => "",
    }
}
