//! The folder of a run's results. All of a run's state is files here, so that a run that was cut off at any moment has what it
//! found, and the next goes on from there.
//!
//! - `NAME.jsonl`: what the part found, a line each
//! - `NAME.outcome.json`: how it ended; there once it has
//! - `report.json` and `report.md`: all of it, written again after each part
//! - `machine.json`: the card and the driver that it was found on
//! - `.lock`: held by the run that is at work there
//!
//! The kit may be run by root. So the folder has to be the user's own, closed to others, and no link in it is followed.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{getegid, geteuid};
use serde::{Deserialize, Serialize};

use crate::finding::Finding;
use crate::machine::Machine;

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
    /// The run's own time was up in it, or a signal ended the run: it is run again.
    Cut,
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
            Self::Cut => "cut off",
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
    /// Makes the folder where it is missing, and makes sure that it is this user's and can be written in.
    ///
    /// # Errors
    /// The system's reason, or why the folder is not safe to write in.
    pub fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o755).create(path)?;
        let folder = Self {
            path: path.canonicalize()?,
        };
        let meta = fs::metadata(&folder.path)?;
        if let Some(why) = unsafe_to_write(
            (meta.uid(), meta.gid(), meta.mode()),
            (geteuid().as_raw(), getegid().as_raw()),
        ) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        // A user that can rename it could put another one in its place.
        let unmapped = unmapped_owner();
        for above in folder.path.ancestors().skip(1) {
            let meta = fs::metadata(above)?;
            // In a user namespace, as of Apptainer, this is how root's own folders look.
            let owner = if Some(meta.uid()) == unmapped {
                0
            } else {
                meta.uid()
            };
            if let Some(why) = unsafe_above(
                (owner, meta.gid(), meta.mode()),
                (geteuid().as_raw(), getegid().as_raw()),
            ) {
                let why = format!("{}: {why}", above.display());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        }
        drop(folder.create(".lock")?);
        Ok(folder)
    }

    /// Keeps other runs out of the folder, for as long as the answer lives.
    ///
    /// # Errors
    /// That another run is at work there.
    pub fn lock(&self) -> io::Result<File> {
        let file = self.create(".lock")?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let why = "another run is at work there";
                Err(io::Error::new(io::ErrorKind::ResourceBusy, why))
            }
            // Some file systems have no locks.
            _ => Ok(file),
        }
    }

    /// Keeps the results of one card, driver and version of Divvy apart from others': a folder may come along to another
    /// machine, where the kit would go on as if all of them were found there.
    ///
    /// # Errors
    /// Whose the results are, or the system's reason.
    pub fn belong_to(&self, machine: &Machine) -> io::Result<()> {
        const FILE: &str = "machine.json";
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "not known".to_owned());
        let own = [
            text(&machine.gpu),
            text(&machine.driver),
            env!("CARGO_PKG_VERSION").to_owned(),
        ];
        let known = fs::read(self.path.join(FILE)).unwrap_or_default();
        match serde_json::from_slice::<[String; 3]>(&known) {
            Ok(known) if known != own => {
                let [gpu, driver, version] = known;
                let why = format!(
                    "the results there are of {gpu}, driver {driver}, Divvy {version}; choose another with --out"
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
            Ok(_) => Ok(()),
            Err(_) => self.replace(FILE, &serde_json::to_vec(&own)?),
        }
    }

    /// Opens a file in the folder, empty. A link in its place is not followed.
    ///
    /// # Errors
    /// The system's reason.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.path.join(name))
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
        self.create(&format!("{part}.jsonl")).map(drop)
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
        options.append(true).create(true).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(self.findings_file(part))?;
        Ok(Sink { file })
    }

    /// What a part has found. A line that was cut off is left out, and so is what was known of a check before its end.
    #[must_use]
    pub fn findings(&self, part: &str) -> Vec<Finding> {
        let text = fs::read_to_string(self.findings_file(part)).unwrap_or_default();
        let mut all: Vec<Finding> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let last: HashMap<String, usize> = all
            .iter()
            .enumerate()
            .map(|(at, finding)| (finding.check.clone(), at))
            .collect();
        let mut at = 0..;
        all.retain(|finding| {
            let is_last = at.next() == last.get(&finding.check).copied();
            !finding.is_interim || is_last
        });
        all
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
        let aside = format!(".{name}.new");
        self.create(&aside)?.write_all(content)?;
        fs::rename(self.path.join(aside), self.path.join(name))
    }

    fn findings_file(&self, part: &str) -> PathBuf {
        self.path.join(format!("{part}.jsonl"))
    }

    fn outcome_file(&self, part: &str) -> PathBuf {
        self.path.join(format!("{part}.outcome.json"))
    }
}

/// The number under which this user namespace shows all users that it does not know; none where it knows all.
fn unmapped_owner() -> Option<u32> {
    let mapped = fs::read_to_string("/proc/self/uid_map").ok()?;
    let shown = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    unmapped(&mapped, shown.trim().parse().ok()?)
}

/// The same, of the text of a map of users: each line has the first inside, the first outside, and how many.
fn unmapped(map: &str, shown: u32) -> Option<u32> {
    let is_mapped = map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&u64::from(shown))
    });
    (!is_mapped).then_some(shown)
}

/// Why a folder of this owner, group and mode is not for this user and group to write in.
fn unsafe_to_write(
    (owner, group, mode): (u32, u32, u32),
    (user, own_group): (u32, u32),
) -> Option<&'static str> {
    const GROUP_WRITES: u32 = 0o020;
    const OTHERS_WRITE: u32 = 0o002;
    if owner != user {
        return Some("the folder is another user's");
    }
    // A user's own group is the user alone on many systems.
    let group_writes = mode & GROUP_WRITES != 0 && group != own_group;
    (mode & OTHERS_WRITE != 0 || group_writes).then_some("others may write in the folder")
}

/// Why a folder above the results is not safe: another user could rename what is in it. In a sticky one, as
/// /tmp, only its owner can.
fn unsafe_above(
    (owner, group, mode): (u32, u32, u32),
    (user, own_group): (u32, u32),
) -> Option<&'static str> {
    const STICKY: u32 = 0o1000;
    match owner {
        0 if mode & STICKY != 0 => None,
        0 => unsafe_to_write((user, group, mode), (user, own_group)),
        _ => unsafe_to_write((owner, group, mode), (user, own_group)),
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
    fn what_was_known_of_a_check_goes_with_its_end() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(base.path()).expect("made");
        folder.begin("cost").expect("begun");
        let mut sink = folder.sink("cost").expect("a sink");
        let mut put = |finding: &Finding| sink.put(finding).expect("written");
        let first = Finding::fact("cost.a", "after one round").so_far();
        let second = Finding::fact("cost.a", "after two rounds").so_far();
        let other = Finding::promise("cost.b", false, "it costs more");
        for finding in [&first, &other, &second] {
            put(finding);
        }
        assert_eq!(folder.findings("cost"), [other.clone(), second]);
        let end = Finding::promise("cost.a", true, "after all rounds");
        put(&end);
        // What is no interim finding stays, whatever comes after it.
        let again = Finding::promise("cost.b", true, "it costs nothing");
        put(&again);
        assert_eq!(folder.findings("cost"), [other, end, again]);
    }

    #[test]
    fn no_link_is_followed_and_one_run_works_at_a_time() {
        let base = tempfile::tempdir().expect("a folder");
        let victim = base.path().join("victim");
        fs::write(&victim, "as it was").expect("written");
        let path = base.path().join("results");
        fs::create_dir(&path).expect("made");
        for name in ["facts.jsonl", ".lock", ".report.md.new", "facts.log"] {
            std::os::unix::fs::symlink(&victim, path.join(name)).expect("a link");
        }
        assert!(Folder::open(&path).is_err());
        fs::remove_file(path.join(".lock")).expect("a link");
        let folder = Folder::open(&path).expect("a folder");
        assert!(folder.begin("facts").is_err() && folder.sink("facts").is_err());
        assert!(folder.create("facts.log").is_err());
        assert!(folder.replace("report.md", b"text").is_err());
        assert_eq!(fs::read_to_string(&victim).expect("there"), "as it was");

        let held = folder.lock().expect("the first");
        let refused = folder.lock().expect_err("a second");
        assert!(refused.to_string().contains("another run"), "{refused}");
        drop(held);
        assert!(folder.lock().is_ok());
    }

    #[test]
    fn a_folder_of_others_is_refused() {
        let own = (1000, 100);
        for (folder, why) in [
            ((1000, 100, 0o40755), None),
            ((1000, 100, 0o40775), None),
            ((1000, 50, 0o40755), None),
            ((1000, 50, 0o40775), Some("others may write in the folder")),
            ((1000, 100, 0o41777), Some("others may write in the folder")),
            ((0, 100, 0o40755), Some("the folder is another user's")),
        ] {
            assert_eq!(unsafe_to_write(folder, own), why, "{folder:?}");
        }
        for (above, is_safe) in [
            ((0, 0, 0o40755), true),
            ((0, 0, 0o41777), true),
            ((0, 0, 0o40777), false),
            ((1000, 100, 0o40755), true),
            ((1001, 100, 0o40755), false),
            ((1001, 100, 0o41777), false),
        ] {
            assert_eq!(unsafe_above(above, own).is_none(), is_safe, "{above:?}");
        }
    }

    #[test]
    fn only_a_user_namespace_has_owners_that_it_does_not_know() {
        for (map, shown) in [
            ("         0          0 4294967295\n", None),
            ("         0       1000          1\n", Some(65534)),
            (
                "         0       1000          1\n         1     100000      65536\n",
                None,
            ),
            ("", Some(65534)),
        ] {
            assert_eq!(unmapped(map, 65534), shown, "{map}");
        }
    }

    #[test]
    fn results_of_another_machine_are_refused() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(base.path()).expect("made");
        let of = |gpu: &str, driver: &str| Machine {
            gpu: Some(gpu.into()),
            driver: Some(driver.into()),
            ..Machine::default()
        };
        folder.belong_to(&of("H100", "550.54")).expect("the first");
        folder.belong_to(&of("H100", "550.54")).expect("the same");
        for other in [of("L4", "550.54"), of("H100", "575.1")] {
            let refused = folder.belong_to(&other).expect_err("another");
            assert!(refused.to_string().contains("H100, driver 550.54"), "{refused}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_in_is_refused() {
        assert!(Folder::open(Path::new("/proc/divvy")).is_err());
    }
}
