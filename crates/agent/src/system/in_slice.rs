//! Processes that use a slice, for slices whose pages do not tell.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::files::kernel;
use crate::system::privilege;
use crate::system::procs::if_there;
use crate::system::watched::Watched;

/// The name of a mapped ledger in the kernel's lists.
const LEDGER: &[u8] = b"/memfd:divvy-ledger";

/// Whether a process of user `uid` uses slice `id`: its environment has the slice's `DIVVY_SLICE`, and it has a ledger
/// mapped. A process without a mapped ledger holds nothing, and where the page server is dead it never will. Only the
/// end of the path is compared: the run directory may have another spelling, in a container or through a link.
///
/// # Errors
/// The system does not tell, except because the process does not exist or this process may not look at it.
fn is_in_slice(pid: u32, uid: u32, id: &str) -> io::Result<bool> {
    let owner = if_there(fs::metadata(format!("/proc/{pid}")))?.map(|meta| meta.uid());
    if owner != Some(uid) {
        return Ok(false);
    }
    let Some(environment) = if_there(privilege::environment(pid, uid))? else {
        return Ok(false);
    };
    let tail = format!("/{id}/attach.sock");
    let starts_there = environment
        .split(|byte| *byte == 0)
        .any(|entry| entry.starts_with(b"DIVVY_SLICE=") && entry.ends_with(tail.as_bytes()));
    if !starts_there {
        return Ok(false);
    }
    let maps = if_there(privilege::maps(pid, uid))?.unwrap_or_default();
    Ok(maps.windows(LEDGER.len()).any(|window| window == LEDGER))
}

/// The living processes of user `uid` that use slice `id`, each watched.
///
/// # Errors
/// The system does not list all: a missing process may still live.
pub fn in_slice(uid: u32, id: &str) -> io::Result<Vec<Watched>> {
    let mut found = Vec::new();
    for pid in kernel::processes()? {
        if is_in_slice(pid, uid, id)? {
            let watched = Watched::new(pid);
            // It is looked at again, now that its number cannot come to mean another.
            if is_in_slice(pid, uid, id)? && watched.is_alive() {
                found.push(watched);
            }
        }
    }
    Ok(found)
}
