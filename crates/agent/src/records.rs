//! The slices' records on disk: what a restarted agent knows of its predecessor's slices.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use divvy_model::{Code, Fault, SliceRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::RunDir;

/// Where the agent keeps a slice's record: beside the keeper's directory, not in it, so that the slice's user cannot
/// change it where that is another user than the agent's.
pub fn record_path(run: &RunDir, id: &str) -> PathBuf {
    run.slices().join(format!("{id}.json"))
}

/// Where a slice's keeper listens.
#[must_use]
pub fn attach_socket(run: &RunDir, id: &str) -> PathBuf {
    run.slice(id).join("attach.sock")
}

/// Writes the record.
///
/// # Errors
/// [`Code::RunDir`].
pub fn store(run: &RunDir, record: &SliceRecord) -> Result<(), Fault> {
    write(&record_path(run, &record.id), record)
}

/// Writes aside, then renames, so that a reader or a restart never sees half of it.
fn write<T: Serialize + ?Sized>(path: &Path, content: &T) -> Result<(), Fault> {
    let aside = path.with_extension("json.new");
    let write = || -> io::Result<()> {
        let mut file = fs::File::create(&aside)?;
        file.write_all(&serde_json::to_vec_pretty(content).map_err(io::Error::other)?)?;
        fs::rename(&aside, path)
    };
    write().map_err(|error| {
        Fault::new(
            Code::RunDir,
            format!("cannot write the record `{}`", path.display()),
        )
        .because(&error)
    })
}

/// Writes who waits, in order.
///
/// # Errors
/// [`Code::RunDir`].
pub fn store_queue<T: Serialize>(run: &RunDir, waiting: &[T]) -> Result<(), Fault> {
    write(&queue_path(run), waiting)
}

/// Who waited for the last agent, in order. What cannot be read is logged: those runs stand in line anew.
#[must_use]
pub fn stored_queue<T: DeserializeOwned>(run: &RunDir) -> Vec<T> {
    let path = queue_path(run);
    let Ok(bytes) = fs::read(&path) else {
        return Vec::new();
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "the queue is not understood");
        Vec::new()
    })
}

fn queue_path(run: &RunDir) -> PathBuf {
    run.path().join("queue.json")
}

/// The stored records. What cannot be read is logged and left where it is.
#[must_use]
pub fn stored(run: &RunDir) -> Vec<SliceRecord> {
    let mut records = Vec::new();
    for entry in fs::read_dir(run.slices()).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match fs::read(&path).map(|bytes| serde_json::from_slice::<SliceRecord>(&bytes)) {
            Ok(Ok(record)) if record_path(run, &record.id) == path => records.push(record),
            Ok(Ok(_)) => {
                tracing::warn!(path = %path.display(), "a slice's record under another name is left alone");
            }
            Ok(Err(error)) => {
                tracing::warn!(path = %path.display(), %error, "a slice's record is not understood");
            }
            Err(error) => tracing::warn!(path = %path.display(), %error, "a slice's record cannot be read"),
        }
    }
    records
}

/// Removes what lies in the run directory of a slice that has ended.
pub fn discard(run: &RunDir, id: &str) {
    crate::container::forget(run, id);
    for result in [
        fs::remove_file(record_path(run, id)),
        fs::remove_dir_all(run.slice(id)),
        fs::remove_dir_all(run.container(id)),
    ] {
        match result {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(slice = id, %error, "cannot remove a slice's files");
            }
            _ => {}
        }
    }
}
