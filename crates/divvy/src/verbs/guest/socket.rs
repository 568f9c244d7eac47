//! The socket at which QEMU finds the relay: one with a path, which is removed when it is not needed.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::getuid;

/// A file that is removed with this.
#[derive(Debug)]
pub struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

/// A socket that listens at this address.
///
/// # Errors
/// The system's reason.
pub fn listen(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let socket = new(SocketType::STREAM)?;
    rustix::net::bind(&socket, address)?;
    rustix::net::listen(&socket, 1)?;
    Ok(socket)
}

/// The same for a path. A socket of this user that an earlier process left there is removed first.
///
/// # Errors
/// The system's reason.
pub fn listen_at(path: &Path) -> Result<(OwnedFd, Removed), Errno> {
    let address = SocketAddrUnix::new(path)?;
    let listener = match listen(&address) {
        Err(Errno::ADDRINUSE) if is_left_behind(path, &address) => {
            let _gone = fs::remove_file(path);
            listen(&address)
        }
        listener => listener,
    };
    Ok((listener?, Removed(path.to_owned())))
}

/// Whether there is a socket of this user's which no process has open.
fn is_left_behind(path: &Path, address: &SocketAddrUnix) -> bool {
    let is_ours = fs::symlink_metadata(path)
        .is_ok_and(|found| found.file_type().is_socket() && found.uid() == getuid().as_raw());
    // By a datagram: a process that listens there does not see it, for the kernel says that the kinds differ.
    let refused = || new(SocketType::DGRAM).and_then(|socket| rustix::net::connect(&socket, address));
    is_ours && refused() == Err(Errno::CONNREFUSED)
}

fn new(kind: SocketType) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_socket_that_was_left_behind_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let (first, removed) = listen_at(&path).expect("it listens");
        assert_eq!(listen_at(&path).err(), Some(Errno::ADDRINUSE), "it is in use");
        // As after a kill: the process is gone, and its file is there.
        drop(first);
        std::mem::forget(removed);
        let (_second, removed) = listen_at(&path).expect("in its place");
        drop(removed);
        assert!(!path.exists());
        fs::write(&path, "a file").expect("written");
        assert_eq!(listen_at(&path).err(), Some(Errno::ADDRINUSE), "it is no socket");
        assert_eq!(fs::read(&path).expect("it is there"), b"a file");
    }
}
