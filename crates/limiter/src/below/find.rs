//! Finding the file of the library below.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The folders where installers put NVIDIA's driver: Debian and Ubuntu, Red Hat and SUSE, the container toolkit on
/// Google's nodes and others, NixOS, WSL.
const USUAL_FOLDERS: &[&str] = &[
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/local/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/run/opengl-driver/lib",
];

/// Files that may be the library below, in the order to try: `file` in the usual folders, or only the one that is
/// `named`.
pub(super) fn candidates(file: &str, named: Option<&Path>) -> Vec<PathBuf> {
    // If a library was named, no other is tried: a fallback would be a surprise.
    if let Some(named) = named {
        return if named.is_absolute() {
            vec![named.to_owned()]
        } else {
            Vec::new()
        };
    }
    let own = own_file();
    USUAL_FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join(file))
        .filter(|path| match (std::fs::metadata(path), own) {
            (Ok(found), Some(own)) => (found.dev(), found.ino()) != own,
            (Ok(_), None) => true,
            (Err(_), _) => false,
        })
        .collect()
}

/// Device and inode of the file that this code was loaded from.
pub(super) fn own_file() -> Option<(u64, u64)> {
    let path = loaded_from(own_file as *const core::ffi::c_void)?;
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// The file that the code or data at `address` was loaded from.
pub(super) fn loaded_from(address: *const core::ffi::c_void) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is valid for writing; any address may be asked for.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: dladdr filled it in.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which lives as long as the object.
    let name = unsafe { core::ffi::CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

/// The load address of the object that holds `address`, by the loader's own list. Addresses of one object share it.
pub(super) fn image(address: *const core::ffi::c_void) -> Option<usize> {
    /// The address to find, and the result.
    struct Search(usize, Option<usize>);
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _: usize,
        search: *mut core::ffi::c_void,
    ) -> i32 {
        // SAFETY: `search` is the caller's; `info` the loader's own record, for the time of this call.
        let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
        if !holds(info, search.0) {
            return 0;
        }
        search.1 = Some(info.dlpi_addr as usize);
        1
    }
    let mut search = Search(address as usize, None);
    // SAFETY: the callback gets the record that it is written for, and no other code uses it meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.1
}

/// Whether a loaded segment of an object contains an address.
pub(crate) fn holds(info: &libc::dl_phdr_info, address: usize) -> bool {
    headers(info).iter().any(|header| {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        header.p_type == libc::PT_LOAD && address.wrapping_sub(start) < header.p_memsz as usize
    })
}

/// An object's program headers.
pub(crate) fn headers(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader's record: that many headers, mapped as long as the object is.
    unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
}
