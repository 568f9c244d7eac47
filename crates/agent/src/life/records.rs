//! The slices' records on disk: a restarted agent learns its predecessor's slices from them.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use divvy_model::{Code, Fault, SliceRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::Folder;
use crate::start::rundir::RunDir;
use crate::start::rundir::{BOXES, CONTAINERS};

/// The socket at which the slice's page server serves processes on the host, in [`RunDir::slice`].
pub(crate) const ATTACH: &str = "attach.sock";
/// The socket at which its workers serve programs, in [`RunDir::slice`] and in [`RunDir::slice_box`].
pub(crate) const WORKER: &str = "worker.sock";
/// The socket at which a process of them answers NVML's queries, beside [`WORKER`].
pub(crate) const QUERIES: &str = "nvml.sock";
/// The socket at which it serves the agent.
pub(crate) const CONTROL: &str = "control.sock";
/// The mode for the agent's user alone.
const PRIVATE: u32 = 0o600;
const QUEUE: &str = "queue.json";
const FROZEN: &str = "frozen.json";
const LIMITS: &str = "limits.json";

/// The file name of a record in the folder of slices.
fn record_name(id: &str) -> String {
    format!("{id}.json")
}

/// The socket between the agent and a slice's page server. Only the agent's user may connect, or put a socket there.
#[must_use]
pub fn control_socket(run: &RunDir, id: &str) -> PathBuf {
    run.slice(id).join(CONTROL)
}

/// Writes the record.
///
/// # Errors
/// [`Code::RunDir`].
pub fn store(run: &RunDir, record: &SliceRecord) -> Result<(), Fault> {
    write(run.slices_folder(), &record_name(&record.id), record)
}

fn write<T: Serialize + ?Sized>(folder: io::Result<Folder>, name: &str, content: &T) -> Result<(), Fault> {
    let write = || -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(content).map_err(io::Error::other)?;
        folder?.write(name, &bytes, PRIVATE)
    };
    write().map_err(|error| {
        Fault::new(Code::RunDir, format!("cannot write the record `{name}`")).because(&error)
    })
}

/// Writes the waiters, in order.
///
/// # Errors
/// [`Code::RunDir`].
pub fn store_queue<T: Serialize>(run: &RunDir, waiting: &[T]) -> Result<(), Fault> {
    write(run.folder(), QUEUE, waiting)
}

/// The waiters of the last agent, in order. An unreadable entry is logged: its run goes to the end of the line.
#[must_use]
pub fn stored_queue<T: DeserializeOwned>(run: &RunDir) -> Vec<T> {
    let Ok(bytes) = run.folder().and_then(|folder| folder.read(QUEUE)) else {
        return Vec::new();
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        tracing::warn!(%error, "the queue is not understood");
        Vec::new()
    })
}

/// Writes the processes that are stopped.
///
/// # Errors
/// [`Code::RunDir`].
pub fn store_frozen<T: Serialize>(run: &RunDir, stopped: &[T]) -> Result<(), Fault> {
    write(run.folder(), FROZEN, stopped)
}

/// The processes that the last agent stopped.
#[must_use]
pub fn stored_frozen<T: DeserializeOwned>(run: &RunDir) -> Vec<T> {
    let Ok(bytes) = run.folder().and_then(|folder| folder.read(FROZEN)) else {
        return Vec::new();
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        tracing::error!(%error, "the list of stopped processes is not understood");
        Vec::new()
    })
}

/// Writes down the largest limits that supervised slices had.
///
/// # Errors
/// [`Code::RunDir`].
pub fn store_limits<T: Serialize>(run: &RunDir, limits: &[T]) -> Result<(), Fault> {
    write(run.folder(), LIMITS, limits)
}

/// The largest limits that supervised slices had under the last agent; none where that wrote none, or they are not
/// understood.
#[must_use]
pub fn stored_limits<T: DeserializeOwned>(run: &RunDir) -> Vec<T> {
    let bytes = run.folder().and_then(|folder| folder.read(LIMITS));
    serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default()
}

/// The stored records. An unreadable one is logged and left where it is.
#[must_use]
pub fn stored(run: &RunDir) -> Vec<SliceRecord> {
    let mut records = Vec::new();
    let folder = match run.slices_folder() {
        Ok(folder) => folder,
        Err(error) => {
            tracing::error!(%error, "the slices' records cannot be read");
            return records;
        }
    };
    for name in folder.names().unwrap_or_default() {
        if name.starts_with('.') || !name.ends_with(".json") {
            continue;
        }
        match folder
            .read(&name)
            .map(|bytes| serde_json::from_slice::<SliceRecord>(&bytes))
        {
            Ok(Ok(record)) if record_name(&record.id) == name => records.push(record),
            Ok(Ok(_)) => tracing::warn!(name, "a slice's record under another name is left alone"),
            Ok(Err(error)) => tracing::warn!(name, %error, "a slice's record is not understood"),
            Err(error) => tracing::warn!(name, %error, "a slice's record cannot be read"),
        }
    }
    records
}

/// Makes the folder of a slice's sockets.
///
/// # Errors
/// The system's reason.
pub fn make_folder(run: &RunDir, id: &str) -> io::Result<Folder> {
    run.slices_folder()?.folder(id, crate::start::rundir::ENTER_ONLY)
}

/// Makes the folder that a slice's containers have mounted.
///
/// # Errors
/// The system's reason.
pub fn make_box(run: &RunDir, id: &str) -> io::Result<Folder> {
    // A container's processes find it mounted, whatever their user is there. On the host no other user can enter its
    // parent.
    run.folder()?.folder(BOXES, 0o700)?.folder(id, 0o755)
}

/// Removes the files of an ended slice from the run directory.
pub fn discard(run: &RunDir, id: &str) {
    crate::life::described::forget(run, id);
    let remove = || -> io::Result<()> {
        let home = run.folder()?;
        let slices = run.slices_folder()?;
        let record = slices.remove(&record_name(id));
        let sockets = slices.remove_all(id);
        let others = [BOXES, CONTAINERS].map(|folder| match home.below(folder) {
            Ok(folder) => folder.remove_all(id),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        });
        others.into_iter().fold(record.and(sockets), io::Result::and)
    };
    if let Err(error) = remove() {
        tracing::warn!(slice = id, %error, "cannot remove a slice's files");
    }
}
