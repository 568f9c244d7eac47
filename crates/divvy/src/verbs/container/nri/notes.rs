//! What a plugin has given to each pod and container, on disk: it may be killed, and the next one takes over.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use divvy_agent::RunDir;
use divvy_container::nri::is_id;
use divvy_model::{Code, Fault};
use serde::{Deserialize, Serialize};

/// The notes of one plugin.
pub struct Notes {
    folder: PathBuf,
}

/// Whose a note is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A pod's.
    Pod,
    /// A container's.
    Container,
}

/// A slice that was made for a pod or a container. The note is written before the slice is made: one may be without the
/// other, but never the other without the one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The slice's name, which no other slice has; none where the container is in its pod's slice or another.
    pub slice: Option<String>,
    /// The id of the pod's sandbox.
    pub pod: String,
}

/// Whether a plugin of this run directory has made the slice for a pod or container, which may not have begun yet.
pub fn is_noted(run: &Path, slice: &str) -> bool {
    let plugins = fs::read_dir(run.join("nri")).into_iter().flatten().flatten();
    plugins.map(|entry| Notes { folder: entry.path() }).any(|notes| {
        [Whose::Pod, Whose::Container].into_iter().any(|whose| {
            let mut all = notes.ids(whose).into_iter();
            all.any(|id| notes.read(whose, &id).and_then(|note| note.slice).as_deref() == Some(slice))
        })
    })
}

impl Notes {
    /// The notes of the plugin of this name.
    ///
    /// # Errors
    /// [`Code::RunDir`].
    pub fn of(run: &RunDir, plugin: &str) -> Result<Self, Fault> {
        let notes = Self {
            folder: run.path().join("nri").join(plugin),
        };
        for whose in [Whose::Pod, Whose::Container] {
            let folder = notes.of_all(whose);
            let made = DirBuilder::new().mode(0o700).recursive(true).create(&folder);
            made.map_err(|error| {
                Fault::new(Code::RunDir, format!("cannot make `{}`", folder.display())).because(&error)
            })?;
        }
        Ok(notes)
    }

    fn of_all(&self, whose: Whose) -> PathBuf {
        self.folder.join(match whose {
            Whose::Pod => "pods",
            Whose::Container => "containers",
        })
    }

    /// The note of a pod or container.
    pub fn read(&self, whose: Whose, id: &str) -> Option<Note> {
        let file = self.of_all(whose).join(Some(id).filter(|id| is_id(id))?);
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`Code::RunDir`]; [`Code::Nri`] for an id that is none.
    pub fn write(&self, whose: Whose, id: &str, note: &Note) -> Result<(), Fault> {
        if !is_id(id) {
            return Err(super::fault::fault(
                "the runtime's id of a pod or container is none",
            ));
        }
        let file = self.of_all(whose).join(id);
        let aside = self.folder.join(format!("{id}.new"));
        let write = || -> std::io::Result<()> {
            fs::write(&aside, serde_json::to_vec(note)?)?;
            fs::rename(&aside, &file)
        };
        write().map_err(|error| {
            Fault::new(Code::RunDir, format!("cannot write `{}`", file.display())).because(&error)
        })
    }

    /// Removes it.
    pub fn remove(&self, whose: Whose, id: &str) {
        if is_id(id) {
            let _absent = fs::remove_file(self.of_all(whose).join(id));
        }
    }

    /// The ids that have notes.
    pub fn ids(&self, whose: Whose) -> Vec<String> {
        let entries = fs::read_dir(self.of_all(whose)).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_stands_in_a_note_is_known_before_its_container_begins() {
        let base = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&base.path().join("run")).expect("a run directory");
        assert!(!is_noted(run.path(), "train-0123"));
        let notes = Notes::of(&run, "10-divvy").expect("notes");
        let note = |slice: Option<&str>| Note {
            slice: slice.map(str::to_owned),
            pod: "ab".into(),
        };
        notes
            .write(Whose::Container, "cd", &note(Some("train-0123")))
            .expect("written");
        notes.write(Whose::Pod, "ab", &note(None)).expect("written");
        assert!(is_noted(run.path(), "train-0123") && !is_noted(run.path(), "train"));
        notes.remove(Whose::Container, "cd");
        assert!(!is_noted(run.path(), "train-0123"));
    }
}
