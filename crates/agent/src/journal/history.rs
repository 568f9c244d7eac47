//! What ended slices used, as lines of JSON in the run directory. There are two files: a full one is put aside, and the
//! one that was aside goes. So the newest few thousand slices are known, also to the next agent.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;

use crate::api::events::EventKind;
use crate::api::history::HistoryRecord;
use crate::journal::{Incident, Journal};
use crate::start::rundir::RunDir;

const FILE: &str = "history.jsonl";
const ASIDE: &str = "history.jsonl.1";
/// The largest size of a file, in bytes.
const LARGEST: u64 = 2 << 20;
/// The records that a caller gets.
const NEWEST: usize = 1000;

/// Writes the history.
pub(crate) struct History {
    run: RunDir,
    journal: Arc<Journal>,
    written: Mutex<Written>,
}

/// How the last write ended.
struct Written {
    /// The file may end within a line.
    is_torn: bool,
    /// Records are being dropped, and that was reported.
    is_told: bool,
}

impl History {
    /// The history of this run directory.
    pub fn of(run: RunDir, journal: Arc<Journal>) -> Self {
        // The agent before may have ended within a line.
        let written = Mutex::new(Written {
            is_torn: true,
            is_told: false,
        });
        Self {
            run,
            journal,
            written,
        }
    }

    /// Keeps a record. Where it cannot be written it is dropped, and one event says so until writing works again.
    pub fn note(&self, record: &HistoryRecord) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match self.append(record, written.is_torn) {
            Ok(()) => {
                *written = Written {
                    is_torn: false,
                    is_told: false,
                };
            }
            Err(error) => {
                written.is_torn = true;
                if !std::mem::replace(&mut written.is_told, true) {
                    tracing::warn!(%error, "what slices used cannot be kept");
                    self.journal.note(Incident {
                        kind: EventKind::HistoryDropped,
                        slice: None,
                        owner: None,
                        device: None,
                        run: None,
                        message: format!("what slices used cannot be kept: {error}"),
                    });
                }
            }
        }
    }

    fn append(&self, record: &HistoryRecord, is_torn: bool) -> io::Result<()> {
        let folder = self.run.folder()?;
        let open = || folder.open_to_write(FILE, OFlags::APPEND, 0o600);
        let mut file = open()?;
        if file.metadata()?.len() > LARGEST {
            folder.rename(FILE, ASIDE)?;
            file = open()?;
        }
        // An empty line is no record.
        let mut line = if is_torn { vec![b'\n'] } else { Vec::new() };
        serde_json::to_writer(&mut line, record)?;
        line.push(b'\n');
        file.write_all(&line)
    }
}

/// The newest records of a run directory, oldest first. What is no record is passed over.
#[must_use]
pub fn read_history(run: &RunDir) -> Vec<HistoryRecord> {
    let mut records = Vec::new();
    for name in [ASIDE, FILE] {
        let bytes = run
            .folder()
            .and_then(|folder| folder.read(name))
            .unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        records.extend(lines.filter_map(|line| serde_json::from_slice::<HistoryRecord>(line).ok()));
    }
    records.split_off(records.len().saturating_sub(NEWEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: usize) -> HistoryRecord {
        HistoryRecord {
            slice_id: format!("{number:08x}"),
            command: vec!["x".repeat(500)],
            ..HistoryRecord::default()
        }
    }

    #[test]
    fn the_newest_records_are_kept_in_two_files_that_do_not_grow() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let history = History::of(run.clone(), Arc::new(Journal::of(0)));
        let many = 3 * usize::try_from(LARGEST).expect("a size") / 500;
        (0..many).for_each(|number| history.note(&record(number)));
        let known = read_history(&run);
        assert_eq!(known.len(), NEWEST);
        assert_eq!(known.last(), Some(&record(many - 1)), "the newest comes last");
        for name in [FILE, ASIDE] {
            let length = std::fs::metadata(run.path().join(name)).expect("a file").len();
            assert!(length < LARGEST + 1000, "{name}: {length}");
        }
        // An agent that was killed within a line; the next one's records are whole.
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(run.path().join(FILE))
            .expect("a file");
        file.write_all(b"{\"slice_id\": \"torn").expect("written");
        History::of(run.clone(), Arc::new(Journal::of(0))).note(&record(7));
        assert_eq!(read_history(&run).last(), Some(&record(7)));
    }

    #[test]
    fn a_disk_that_takes_no_more_is_one_event() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let journal = Arc::new(Journal::of(0));
        let history = History::of(run.clone(), journal.clone());
        std::fs::create_dir(run.path().join(FILE)).expect("something that is no file");
        history.note(&record(1));
        history.note(&record(2));
        let told = || journal.next(0, crate::api::viewer::Viewer::ROOT).len();
        assert_eq!(told(), 1);
        std::fs::remove_dir(run.path().join(FILE)).expect("removed");
        history.note(&record(3));
        assert_eq!(read_history(&run), [record(3)]);
        assert_eq!(told(), 1);
    }
}
