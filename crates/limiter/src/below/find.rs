//! Which file is the library below.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Where installers put NVIDIA's driver: Debian and Ubuntu, Red Hat and SUSE, the container toolkit on Google's nodes
/// and others, NixOS, WSL.
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

/// Files that may be the library below, in the order to try: `file` in the usual folders, unless one is `named`.
pub(super) fn candidates(file: &str, named: Option<&Path>) -> Vec<PathBuf> {
    // A library that was named is the one, or there is none: falling back to another would be a surprise.
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
