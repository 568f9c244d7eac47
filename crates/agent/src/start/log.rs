//! The agent's log file: a full log is put aside once, and a new one is begun.

use std::fs::{File, symlink_metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use divvy_model::{Code, Fault};
use rustix::fs::{FileType, OFlags, fstat};

use crate::start::rundir::LOG;
use crate::start::rundir::RunDir;

/// The largest size of the log, in bytes. With the one before it there is twice as much.
pub(crate) const LARGEST: u64 = 8 << 20;

/// The log before this one.
const ASIDE: &str = "agent.log.1";

/// Begins a new log where standard error is the log of this run directory, and that has more than `largest` bytes.
/// Returns whether it did.
///
/// # Errors
/// The system's reason why no new one can be made: then the old one goes on.
pub(crate) fn bound(run: &RunDir, largest: u64) -> io::Result<bool> {
    let stderr = fstat(rustix::stdio::stderr())?;
    if FileType::from_raw_mode(stderr.st_mode) != FileType::RegularFile {
        return Ok(false);
    }
    let Some(new) = begun(run, largest, (stderr.st_dev, stderr.st_ino))? else {
        return Ok(false);
    };
    rustix::stdio::dup2_stdout(&new)?;
    rustix::stdio::dup2_stderr(&new)?;
    Ok(true)
}

/// A new log, where the file of this device and number is the present one and too large.
fn begun(run: &RunDir, largest: u64, (device, number): (u64, u64)) -> io::Result<Option<File>> {
    let there = symlink_metadata(run.log())?;
    if (there.dev(), there.ino()) != (device, number) || there.len() <= largest {
        return Ok(None);
    }
    run.folder()?.rename(LOG, ASIDE)?;
    open_log(run).map(Some).map_err(io::Error::other)
}

/// The log, for appending, readable by its owner only.
///
/// # Errors
/// [`Code::RunDir`] when it cannot be opened.
pub fn open_log(run: &RunDir) -> Result<File, Fault> {
    run.folder()
        .and_then(|folder| folder.open_to_write(LOG, OFlags::APPEND, 0o600))
        .map_err(|error| {
            Fault::new(
                Code::RunDir,
                format!("cannot write the log `{}`", run.log().display()),
            )
            .because(&error)
        })
}

/// Puts a log aside that is too large, before an agent begins to write to it.
pub(crate) fn begin(run: &RunDir) {
    if symlink_metadata(run.log()).is_ok_and(|log| log.len() > LARGEST) {
        // Where it cannot be put aside it goes on.
        let _goes_on = run.folder().and_then(|folder| folder.rename(LOG, ASIDE));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    #[test]
    fn a_full_log_is_put_aside_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let own = |file: &File| {
            let meta = file.metadata().expect("it is open");
            (meta.dev(), meta.ino())
        };
        let mut log = open_log(&run).expect("a log");
        let write = |text: &str, log: &mut File| {
            log.write_all(text.as_bytes()).expect("written");
            if let Some(new) = begun(&run, 8, own(log)).expect("it can") {
                *log = new;
            }
        };
        write("first", &mut log);
        assert!(!run.path().join(ASIDE).exists());
        write(" line\n", &mut log);
        assert_eq!(
            fs::read_to_string(run.path().join(ASIDE)).expect("aside"),
            "first line\n"
        );
        write("second line\n", &mut log);
        assert_eq!(
            fs::read_to_string(run.path().join(ASIDE)).expect("aside"),
            "second line\n"
        );
        assert_eq!(log.metadata().expect("open").len(), 0);
        let mode = log.metadata().expect("open").mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = File::open("/dev/null").expect("there");
        assert!(
            begun(&run, 0, own(&other)).expect("it can").is_none(),
            "not our log"
        );
        assert!(!bound(&run, 0).expect("it can"), "standard error is the test's");
    }
}
