//! The folder of a run's results. All of a run's state is files here, so that a run that was cut off at any moment has what it
//! found, and the next goes on from there.
//!
//! - `NAME.jsonl`: what the part found, a line each
//! - `NAME.outcome.json`: how it ended; there once it has
//! - `report.json` and `report.md`: all of it, written again after each part

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::finding::Finding;

/// How a part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It came to its end.
    Done,
    /// It ended with an error, which is among its findings.
    Failed,
    /// A signal ended it.
    Crashed,
    /// It was ended when its time was up.
    TimedOut,
    /// It has not run, or the run was cut off in it.
    Missing,
}

impl Ending {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "FAILED",
            Self::Crashed => "CRASHED",
            Self::TimedOut => "OUT OF TIME",
            Self::Missing => "not run",
        }
    }
}

/// The outcome of one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The signal or the status with which it ended, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes the folder where it is missing, and makes sure that it can be written in.
    ///
    /// # Errors
    /// The system's reason.
    pub fn open(path: &Path) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let folder = Self {
            path: path.canonicalize()?,
        };
        let probe = folder.path.join(".probe");
        fs::write(&probe, b"divvy")?;
        fs::remove_file(&probe)?;
        Ok(folder)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a part: what an earlier run found of it is gone.
    ///
    /// # Errors
    /// The system's reason.
    pub fn begin(&self, part: &str) -> io::Result<()> {
        remove(&self.outcome_file(part))?;
        fs::write(self.findings_file(part), b"")
    }

    /// Ends a part.
    ///
    /// # Errors
    /// The system's reason.
    pub fn end(&self, part: &str, outcome: &Outcome) -> io::Result<()> {
        let text = serde_json::to_vec(outcome)?;
        self.replace(&format!("{part}.outcome.json"), &text)
    }

    /// Where a part writes what it finds.
    ///
    /// # Errors
    /// The system's reason.
    pub fn sink(&self, part: &str) -> io::Result<Sink> {
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).open(self.findings_file(part))?;
        Ok(Sink { file })
    }

    /// What a part has found. A line that was cut off is left out.
    #[must_use]
    pub fn findings(&self, part: &str) -> Vec<Finding> {
        let text = fs::read_to_string(self.findings_file(part)).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// How a part ended.
    #[must_use]
    pub fn outcome(&self, part: &str) -> Outcome {
        let missing = Outcome {
            ending: Ending::Missing,
            seconds: 0.0,
            why: None,
        };
        let text = fs::read(self.outcome_file(part)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or(missing)
    }

    /// Puts a file of this content in the place of whatever has the name: a reader sees the old one or the new one.
    ///
    /// # Errors
    /// The system's reason.
    pub fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let aside = self.path.join(format!(".{name}.{}", std::process::id()));
        fs::write(&aside, content)?;
        fs::rename(&aside, self.path.join(name))
    }

    fn findings_file(&self, part: &str) -> PathBuf {
        self.path.join(format!("{part}.jsonl"))
    }

    fn outcome_file(&self, part: &str) -> PathBuf {
        self.path.join(format!("{part}.outcome.json"))
    }
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Where findings go. Each is one write of one line, so that a part that is killed leaves whole lines.
#[derive(Debug)]
pub struct Sink {
    file: File,
}

impl Sink {
    /// Writes one down.
    ///
    /// # Errors
    /// The system's reason.
    pub fn put(&mut self, finding: &Finding) -> io::Result<()> {
        let mut line = serde_json::to_vec(finding)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict;

    #[test]
    fn what_was_found_before_a_cut_is_kept() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&base.path().join("deep/results")).expect("made");
        folder.begin("facts").expect("begun");
        let finding = Finding::fact("facts.name", "a card").bytes(80 << 30);
        folder
            .sink("facts")
            .expect("a sink")
            .put(&finding)
            .expect("written");
        let file = folder.path().join("facts.jsonl");
        let mut text = fs::read_to_string(&file).expect("there");
        text.push_str("{\"check\":\"facts.cut");
        fs::write(&file, text).expect("written");
        assert_eq!(folder.findings("facts"), [finding]);
        assert_eq!(folder.outcome("facts").ending, Ending::Missing);
        let outcome = Outcome {
            ending: Ending::Done,
            seconds: 1.5,
            why: None,
        };
        folder.end("facts", &outcome).expect("ended");
        assert_eq!(folder.outcome("facts"), outcome);
        folder.begin("facts").expect("again");
        assert!(folder.findings("facts").is_empty());
        assert_eq!(folder.outcome("facts").ending, Ending::Missing);
        assert!(Verdict::Fails < Verdict::Holds, "what fails comes first");
    }

    #[test]
    fn a_folder_that_cannot_be_written_in_is_refused() {
        assert!(Folder::open(Path::new("/proc/divvy")).is_err());
    }
}
