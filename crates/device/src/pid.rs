//! The id of this process as the host knows it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::granted::granted;
use crate::run_directory::run_directory;

/// The socket where a container's page server is asked under which id the host knows us.
const PAGE_SERVER_SOCKET: &str = "/run/divvy/slice/attach.sock";

/// The file of a run directory that says in which process id namespace its agent is, as `/proc/self/ns/pid` gives it
/// there.
pub const NAMESPACE: &str = "pid-namespace";

/// The server that tells our id where it is not the one that the host knows us by. It is the page server of the slice
/// in a container, or of a slice in which a program made a namespace of processes.
fn who_tells() -> Option<PathBuf> {
    if granted().is_some() {
        return Some(PAGE_SERVER_SOCKET.into());
    }
    let socket = std::env::var_os("DIVVY_SLICE")?;
    let hosts = fs::read(run_directory().join(NAMESPACE)).ok()?;
    let own = fs::read_link("/proc/self/ns/pid").ok()?;
    (own.as_os_str().as_bytes() != hosts).then(|| socket.into())
}

/// The id of this process as the host knows it, else its own.
pub fn host_pid() -> u32 {
    // Our own id beside the host's: a child has another, and asks again.
    static TOLD: AtomicU64 = AtomicU64::new(0);
    let own = std::process::id();
    let told = TOLD.load(Ordering::Relaxed);
    if told >> 32 == u64::from(own) {
        return told as u32;
    }
    let known = |pid: u32| {
        TOLD.store(u64::from(own) << 32 | u64::from(pid), Ordering::Relaxed);
        pid
    };
    let Some(socket) = who_tells() else {
        return known(own);
    };
    match divvy_ledger::attach::observe(&socket, 0) {
        Ok(seen) if seen.observer_pid != 0 => known(seen.observer_pid),
        _ => own,
    }
}
