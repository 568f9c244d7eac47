//! The slices' records on disk: what a restarted agent knows of its predecessor's slices.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use divvy_model::{Code, Fault, SliceRecord};

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

/// Writes the record: aside, then renamed, so that a reader or a restart never sees half of one.
///
/// # Errors
/// [`Code::RunDir`].
pub fn store(run: &RunDir, record: &SliceRecord) -> Result<(), Fault> {
    let path = record_path(run, &record.id);
    let aside = path.with_extension("json.new");
    let write = || -> io::Result<()> {
        let mut file = fs::File::create(&aside)?;
        file.write_all(&serde_json::to_vec_pretty(record).map_err(io::Error::other)?)?;
        fs::rename(&aside, &path)
    };
    write().map_err(|error| {
        Fault::new(
            Code::RunDir,
            format!("cannot write the slice's record `{}`", path.display()),
        )
        .because(&error)
    })
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
    for result in [
        fs::remove_file(record_path(run, id)),
        fs::remove_dir_all(run.slice(id)),
    ] {
        match result {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::warn!(slice = id, %error, "cannot remove a slice's files");
            }
            _ => {}
        }
    }
}
