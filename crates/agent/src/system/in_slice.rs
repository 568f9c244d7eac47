//! Processes that use a slice, where its pages do not tell.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::files::kernel;
use crate::system::privilege;
use crate::system::procs::if_there;
use crate::system::watched::Watched;

/// What the kernel calls a mapped ledger.
const LEDGER: &[u8] = b"/memfd:divvy-ledger";

/// Whether a process of user `uid` uses slice `id`: it was started there, by the `DIVVY_SLICE` of its environment, and
/// has a slice's ledger mapped. One that has none mapped holds nothing, and where the keeper is dead never will. Only
/// the end of the path is compared: the run directory may have another spelling, in a container or through a link.
///
/// # Errors
/// The system does not tell, for another reason than that there is no such process or that we may not look at it.
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
/// The system does not tell of all: that some were not seen does not mean that they are gone.
pub fn in_slice(uid: u32, id: &str) -> io::Result<Vec<Watched>> {
    let mut found = Vec::new();
    for pid in kernel::processes()? {
        if is_in_slice(pid, uid, id)? {
            let watched = Watched::new(pid);
            // Looked at again, now that its number cannot come to mean another.
            if is_in_slice(pid, uid, id)? && watched.is_alive() {
                found.push(watched);
            }
        }
    }
    Ok(found)
}
