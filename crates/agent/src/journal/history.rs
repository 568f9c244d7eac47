//! What ended slices used, as lines of JSON in the run directory. There are two files: the newest records are added to
//! one, and where that is full, what is remembered of both is written to the other. So the newest few thousand slices are
//! known, also to the next agent, and a user with many slices pushes out no other's ([`Remembered`]).

use std::collections::HashSet;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

use crate::api::events::EventKind;
use crate::api::history::HistoryRecord;
use crate::journal::remembered::Remembered;
use crate::journal::{Incident, Journal};
use crate::start::rundir::RunDir;

const FILE: &str = "history.jsonl";
const ASIDE: &str = "history.jsonl.1";
/// The largest size of a file, in bytes, and of what is remembered of both.
const LARGEST: u64 = 2 << 20;
/// The records of its own that a caller gets, and of others.
const NEWEST: usize = 1000;

/// Writes the history, and keeps it read.
pub(crate) struct History {
    run: RunDir,
    journal: Arc<Journal>,
    written: Mutex<Written>,
}

/// How the last write ended, and what is in the files.
struct Written {
    /// The file may end within a line.
    is_torn: bool,
    /// Records are being dropped, and that was reported.
    is_told: bool,
    /// The files' content, once it was needed.
    known: Option<Remembered>,
}

impl History {
    /// The history of this run directory.
    pub fn of(run: RunDir, journal: Arc<Journal>) -> Self {
        // The agent before may have ended within a line.
        let written = Mutex::new(Written {
            is_torn: true,
            is_told: false,
            known: None,
        });
        Self {
            run,
            journal,
            written,
        }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a record. Where it cannot be written it is dropped, and one event says so until writing works again.
    pub fn note(&self, record: &HistoryRecord) {
        let mut written = self.written();
        match self.append(record, &mut written) {
            Ok(()) => {
                written.is_torn = false;
                written.is_told = false;
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

    fn append(&self, record: &HistoryRecord, written: &mut Written) -> io::Result<()> {
        let folder = self.run.folder()?;
        let open = || folder.open_to_write(FILE, OFlags::APPEND, 0o600);
        let mut file = open()?;
        if file.metadata()?.len() > LARGEST {
            let known = match written.known.take() {
                Some(known) => known,
                None => read(&self.run)?,
            };
            let known = written.known.insert(known);
            // An end between these two leaves records in both files, which count once.
            folder.write(ASIDE, &known.lines()?, 0o600)?;
            folder.remove(FILE)?;
            file = open()?;
        }
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        let bytes = line.len();
        if written.is_torn {
            // An empty line is no record.
            line.insert(0, b'\n');
        }
        file.write_all(&line)?;
        if let Some(known) = &mut written.known {
            known.add(record.clone(), bytes);
        }
        Ok(())
    }

    /// The newest records, oldest first: so many of account `reader`, and as many of others. The files are read once; where
    /// they cannot be read there are none.
    pub fn newest(&self, reader: u32) -> Vec<HistoryRecord> {
        let mut written = self.written();
        if written.known.is_none() {
            written.known = read(&self.run)
                .inspect_err(|error| tracing::warn!(%error, "what slices used cannot be read"))
                .ok();
        }
        let known = written.known.as_ref();
        known.map_or_else(Vec::new, |known| known.newest(reader, NEWEST))
    }
}

/// The newest records of a run directory, oldest first: so many of account `reader`, and as many of others. What is no
/// record is passed over.
#[must_use]
pub fn read_history(run: &RunDir, reader: u32) -> Vec<HistoryRecord> {
    read(run).map_or_else(|_| Vec::new(), |known| known.newest(reader, NEWEST))
}

/// What is in the files. One that is not there has nothing.
fn read(run: &RunDir) -> io::Result<Remembered> {
    let mut known = Remembered::within(usize::try_from(LARGEST).unwrap_or(usize::MAX));
    let mut seen = HashSet::new();
    for name in [ASIDE, FILE] {
        let bytes = match run.folder()?.read(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            bytes => bytes?,
        };
        for line in bytes.split(|byte| *byte == b'\n') {
            let Ok(record) = serde_json::from_slice::<HistoryRecord>(line) else {
                continue;
            };
            if seen.insert((record.slice_id.clone(), record.ended_at.clone())) {
                known.add(record, line.len() + 1);
            }
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: usize) -> HistoryRecord {
        of_user(0, number)
    }

    fn of_user(uid: u32, number: usize) -> HistoryRecord {
        HistoryRecord {
            slice_id: format!("{number:08x}"),
            uid,
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
        let known = read_history(&run, 0);
        assert_eq!(history.newest(0), known, "what is remembered is what is written");
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
        assert_eq!(read_history(&run, 0).last(), Some(&record(7)));
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
        assert_eq!(read_history(&run, 0), [record(3)]);
        assert_eq!(history.newest(0), [record(3)]);
        assert_eq!(told(), 1);
    }
    #[test]
    fn a_user_with_many_slices_pushes_out_no_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let history = History::of(run.clone(), Arc::new(Journal::of(0)));
        for number in 0..3 {
            history.note(&of_user(1000, number));
        }
        // Both files are filled several times.
        for number in 3..3 * usize::try_from(LARGEST).expect("a size") / 500 {
            history.note(&of_user(1001, number));
        }
        let of = |records: &[HistoryRecord], uid| records.iter().filter(|record| record.uid == uid).count();
        for reader in [0, 1000, 1001] {
            let known = history.newest(reader);
            assert_eq!(of(&known, 1000), 3, "for {reader}");
            assert!(of(&known, 1001) > 900, "for {reader}");
            assert_eq!(known, read_history(&run, reader), "the next agent knows the same");
        }
    }

    #[test]
    fn records_in_both_files_count_once_and_files_are_read_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let history = History::of(run.clone(), Arc::new(Journal::of(0)));
        (0..3).for_each(|number| history.note(&record(number)));
        std::fs::copy(run.path().join(FILE), run.path().join(ASIDE)).expect("copied");
        assert_eq!(history.newest(0), [record(0), record(1), record(2)]);
        std::fs::remove_file(run.path().join(ASIDE)).expect("removed");
        std::fs::write(run.path().join(FILE), b"").expect("emptied");
        assert_eq!(history.newest(0).len(), 3, "it is not read again");
        history.note(&record(3));
        assert_eq!(history.newest(0).last(), Some(&record(3)));
    }
}
