//! The remembered events as lines of JSON in the run directory: last night's are known to the next agent, and are there
//! while none runs.

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::api::events::EventRecord;
use crate::start::rundir::RunDir;

const FILE: &str = "events.jsonl";
/// The file is written again, with what is remembered, when it has grown by so many bytes since.
const GROWTH: u64 = 1 << 20;

/// An event with the user whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The slice's user, for an event about a slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    pub event: EventRecord,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Kept {
    run: RunDir,
    file: Option<File>,
    /// The bytes that were added since it was written as a whole.
    grown: u64,
    is_told: bool,
}

impl Kept {
    /// The file of this run directory.
    pub fn of(run: RunDir) -> Self {
        Self {
            run,
            file: None,
            // The agent before may have ended within a line, so it is written as a whole first.
            grown: GROWTH,
            is_told: false,
        }
    }

    /// Adds an event, the last of `all`. Where it cannot be written, the log says so once until writing works again.
    pub fn add<'a>(&mut self, all: impl DoubleEndedIterator<Item = &'a Entry>) {
        match self.write(all) {
            Ok(()) => self.is_told = false,
            Err(error) => {
                // It may end within a line.
                self.grown = GROWTH;
                if !std::mem::replace(&mut self.is_told, true) {
                    tracing::warn!(%error, "events cannot be kept for the next agent");
                }
            }
        }
    }

    fn write<'a>(&mut self, mut all: impl DoubleEndedIterator<Item = &'a Entry>) -> io::Result<()> {
        if self.grown >= GROWTH {
            let mut lines = Vec::new();
            for entry in all {
                push(&mut lines, entry)?;
            }
            let folder = self.run.folder()?;
            folder.write(FILE, &lines, 0o600)?;
            self.file = Some(folder.open_to_write(FILE, OFlags::APPEND, 0o600)?);
            self.grown = 0;
            return Ok(());
        }
        let (Some(file), Some(last)) = (&mut self.file, all.next_back()) else {
            return Ok(());
        };
        let mut line = Vec::new();
        push(&mut line, last)?;
        file.write_all(&line)?;
        self.grown += line.len() as u64;
        Ok(())
    }
}

fn push(lines: &mut Vec<u8>, entry: &Entry) -> io::Result<()> {
    serde_json::to_writer(&mut *lines, entry)?;
    lines.push(b'\n');
    Ok(())
}

/// What an agent of this run directory left, oldest first. What is no event, or of a kind that this version does not
/// know, is passed over.
pub(crate) fn left(run: &RunDir) -> Vec<Entry> {
    let bytes = run
        .folder()
        .and_then(|folder| folder.read(FILE))
        .unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n');
    lines
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}

/// The events that the last agent of a run directory left, oldest first.
#[must_use]
pub fn read_events(run: &RunDir) -> Vec<EventRecord> {
    left(run).into_iter().map(|entry| entry.event).collect()
}
