//! Lifetime anchors of lasting slices: a container, by its first process or by the folder that its engine keeps of it.
//! When the anchor is gone and nothing runs in the slice any more, the agent deletes the slice. docs/adr/0031.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use divvy_model::{Code, Fault, LifetimeAnchor};

use crate::system::privilege;
use crate::system::procs;
use crate::system::watched::Watched;

/// Seconds since the epoch.
pub(crate) fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// The lifetime anchor for a slice's containers; the first has to come within so many milliseconds.
pub(crate) fn of_containers(within_ms: u64) -> LifetimeAnchor {
    LifetimeAnchor::Containers {
        until_unix_s: unix_seconds().saturating_add(within_ms.div_ceil(1000)),
        taken: false,
    }
}

/// The lifetime anchor for a process.
///
/// # Errors
/// [`Code::Usage`] when it has ended.
pub(crate) fn of_process(pid: u32) -> Result<LifetimeAnchor, Fault> {
    let start_ticks = procs::start_ticks(pid)
        .ok_or_else(|| Fault::new(Code::Usage, format!("there is no process {pid} to go with")))?;
    Ok(LifetimeAnchor::Process { pid, start_ticks })
}

/// The lifetime anchor for a file or folder.
///
/// # Errors
/// [`Code::Usage`] when it is not there.
pub(crate) fn of_path(path: &Path) -> Result<LifetimeAnchor, Fault> {
    let anchor = LifetimeAnchor::Path(path.into());
    if !path.is_absolute() || OpenAnchor::of(&anchor).is_gone() {
        let what = path.display();
        return Err(Fault::new(
            Code::Usage,
            format!("there is no `{what}` to go with"),
        ));
    }
    Ok(anchor)
}

/// A slice's lifetime anchor, held open so that each look costs nothing and cannot mistake it for another.
#[derive(Debug)]
pub(crate) enum OpenAnchor {
    /// A process; none where it had ended from the start.
    Process(Option<Watched>),
    /// A file or folder.
    Path(PathBuf),
    /// Its containers, which the auditor looks for: see [`crate::life::anchors::LifetimeAnchors::note_containers`].
    Containers,
}

impl OpenAnchor {
    /// Opens a lifetime anchor.
    pub fn of(anchor: &LifetimeAnchor) -> Self {
        match anchor {
            LifetimeAnchor::Process { pid, start_ticks } => Self::Process(Watched::again(*pid, *start_ticks)),
            LifetimeAnchor::Path(path) => Self::Path(path.clone()),
            LifetimeAnchor::Containers { .. } => Self::Containers,
        }
    }

    /// Whether the lifetime anchor is gone. One that cannot be looked at is not gone.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Process(process) => !process.as_ref().is_some_and(Watched::is_alive),
            Self::Path(path) => privilege::look(path).is_err_and(|error| error.kind() == ErrorKind::NotFound),
            Self::Containers => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_gone(anchor: &LifetimeAnchor) -> bool {
        OpenAnchor::of(anchor).is_gone()
    }

    #[test]
    fn a_process_is_gone_when_it_has_ended_reaped_or_not() {
        let own = of_process(std::process::id()).expect("we live");
        assert!(!is_gone(&own));
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("a process");
        let anchor = of_process(child.id()).expect("it lives");
        assert!(!is_gone(&anchor));
        child.kill().expect("killed");
        while !is_gone(&anchor) {
            std::thread::yield_now();
        }
        child.wait().expect("reaped");
        assert!(is_gone(&anchor));
        // Another process has its number now.
        let LifetimeAnchor::Process { pid, start_ticks } = own else {
            panic!("a process");
        };
        let start_ticks = start_ticks + 1;
        assert!(is_gone(&LifetimeAnchor::Process { pid, start_ticks }));
    }

    #[test]
    fn a_path_is_gone_when_it_is_not_there_and_not_when_it_cannot_be_looked_at() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = base.path().join("container");
        assert_eq!(of_path(&folder).expect_err("not there").code, Code::Usage);
        assert!(of_path(Path::new(".")).is_err());
        std::fs::create_dir(&folder).expect("a folder");
        let anchor = of_path(&folder).expect("there");
        assert!(!is_gone(&anchor));
        std::fs::remove_dir(&folder).expect("removed");
        assert!(is_gone(&anchor));
        let below_a_file = LifetimeAnchor::Path("/proc/self/stat/x".into());
        assert!(!is_gone(&below_a_file));
    }
}
