//! Lasting slices that go with something: a container, as its first process or as the folder that its engine keeps of it.
//! When that is gone and nothing runs in the slice any more, the agent deletes it. docs/adr/0031.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use divvy_model::{Attendant, Code, Fault, SliceRecord};

use crate::api::Attend;
use crate::daemon::{Daemon, State};
use crate::life::records::store;
use crate::life::slice::Slice;
use crate::system::peer::Peer;
use crate::system::privilege;
use crate::system::procs;
use crate::system::watched::Watched;

impl Daemon {
    /// Says what a lasting slice goes with from now on.
    ///
    /// # Errors
    /// [`Code::UnknownSlice`], [`Code::NotAllowed`], [`Code::NotLasting`]; [`Code::Usage`] for a process that has ended and
    /// for a path that is not there.
    pub fn attend(&self, peer: Peer, which: &str, ask: &Attend) -> Result<SliceRecord, Fault> {
        let attendant = match ask {
            Attend::Process(pid) => of_process(*pid)?,
            Attend::Path(path) => {
                // Who may not look there himself is not to learn from his slice's end whether it is there.
                peer.may_change(self.uid, self.uid)?;
                of_path(path)?
            }
        };
        let mut state = self.state();
        let slice = state.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
        slice.record.require_lasting("it ends with its program")?;
        slice.go_with(Some(attendant));
        let record = slice.stored_form();
        store(&self.run, &record)?;
        Ok(slice.shown())
    }

    /// Deletes the slices whose attendants are gone, unless something runs in them: then it is tried again.
    pub(crate) fn delete_unattended(&self, state: &mut State) {
        let slices = state.slices.values().filter(|slice| slice.is_unattended());
        let ids: Vec<String> = slices.map(|slice| slice.record.id.clone()).collect();
        for id in ids {
            let _busy = self.delete(state, &id);
        }
    }
}

impl Daemon {
    /// Told by the auditor of the slices that have a container: those that go with their containers are noted as taken, and
    /// deleted when the last has gone, or none came in time. Answers whether another round is to make sure of that soon.
    pub(crate) fn note_containers(&self, seen: &HashSet<String>) -> bool {
        /// Rounds without any of a slice's containers that make sure: one of them may be just becoming its program.
        const SURE: u32 = 2;
        let now = unix_seconds();
        let mut state = self.state();
        let mut missed = Vec::new();
        for slice in state.slices.values_mut() {
            let Some(Attendant::Containers { until_unix_s, taken }) = &mut slice.record.attendant else {
                continue;
            };
            let id = slice.record.id.clone();
            match (seen.contains(&id), *taken) {
                (true, true) => {}
                (true, false) => {
                    *taken = true;
                    self.keep_taken(slice);
                }
                (false, false) if now < *until_unix_s => {}
                (false, _) => missed.push(id),
            }
        }
        let rounds = |id: String| {
            let before = state.missed.get(&id).copied().unwrap_or_default();
            (id, before + 1)
        };
        state.missed = missed.into_iter().map(rounds).collect();
        let is_unsure = state.missed.values().any(|rounds| *rounds < SURE);
        let sure = state.missed.iter().filter(|(_, rounds)| **rounds >= SURE);
        let over: Vec<String> = sure.map(|(id, _)| id.clone()).collect();
        for id in over {
            let _busy = self.delete(&mut state, &id);
        }
        is_unsure
    }

    /// Notes the slices that a container took since the last call, whether it is there still or not, and has the auditor look
    /// for it.
    pub(crate) fn note_openings(&self, state: &mut State) {
        let opened = self.openings.take();
        for id in &opened {
            let Some(slice) = state.slices.get_mut(id) else {
                continue;
            };
            if let Some(Attendant::Containers { taken, .. }) = &mut slice.record.attendant {
                *taken = true;
                self.keep_taken(slice);
            }
        }
        if !opened.is_empty() {
            self.opened.store(true, Ordering::Relaxed);
            self.strays.give();
        }
    }

    /// Waits for the first containers of those slices that an agent before this one made.
    pub(crate) fn watch_for_containers(&self) {
        let slices: Vec<SliceRecord> = {
            let state = self.state();
            state.slices.values().map(|slice| slice.record.clone()).collect()
        };
        for slice in &slices {
            self.watch_for_container(slice);
        }
    }

    fn keep_taken(&self, slice: &mut Slice) {
        let record = slice.stored_form();
        if let Err(fault) = store(&self.run, &record) {
            tracing::warn!("{fault}: {}", fault.causes.join(": "));
        }
    }
}

fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// The attendant that containers are, the first of which has to come within so many milliseconds.
pub(crate) fn of_containers(within_ms: u64) -> Attendant {
    Attendant::Containers {
        until_unix_s: unix_seconds().saturating_add(within_ms.div_ceil(1000)),
        taken: false,
    }
}

/// The attendant that a process is.
///
/// # Errors
/// [`Code::Usage`] when it has ended.
pub(crate) fn of_process(pid: u32) -> Result<Attendant, Fault> {
    let start_ticks = procs::start_ticks(pid)
        .ok_or_else(|| Fault::new(Code::Usage, format!("there is no process {pid} to go with")))?;
    Ok(Attendant::Process { pid, start_ticks })
}

fn of_path(path: &Path) -> Result<Attendant, Fault> {
    let attendant = Attendant::Path(path.into());
    if !path.is_absolute() || Anchor::of(&attendant).is_gone() {
        let what = path.display();
        return Err(Fault::new(
            Code::Usage,
            format!("there is no `{what}` to go with"),
        ));
    }
    Ok(attendant)
}

/// What a slice goes with, held so that each look costs nothing and cannot mistake it for another.
#[derive(Debug)]
pub(crate) enum Anchor {
    /// A process; none where it was gone from the start.
    Process(Option<Watched>),
    /// A file or folder.
    Path(PathBuf),
    /// Its containers, which the auditor looks for: see [`Daemon::note_containers`].
    Containers,
}

impl Anchor {
    /// Takes hold of an attendant.
    pub fn of(attendant: &Attendant) -> Self {
        match attendant {
            Attendant::Process { pid, start_ticks } => Self::Process(Watched::again(*pid, *start_ticks)),
            Attendant::Path(path) => Self::Path(path.clone()),
            Attendant::Containers { .. } => Self::Containers,
        }
    }

    /// Whether it is gone. What cannot be looked at is not.
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

    fn is_gone(attendant: &Attendant) -> bool {
        Anchor::of(attendant).is_gone()
    }

    #[test]
    fn a_process_is_gone_when_it_has_ended_reaped_or_not() {
        let own = of_process(std::process::id()).expect("we live");
        assert!(!is_gone(&own));
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("a process");
        let attendant = of_process(child.id()).expect("it lives");
        assert!(!is_gone(&attendant));
        child.kill().expect("killed");
        while !is_gone(&attendant) {
            std::thread::yield_now();
        }
        child.wait().expect("reaped");
        assert!(is_gone(&attendant));
        // Its number in another's hands.
        let Attendant::Process { pid, start_ticks } = own else {
            panic!("a process");
        };
        let start_ticks = start_ticks + 1;
        assert!(is_gone(&Attendant::Process { pid, start_ticks }));
    }

    #[test]
    fn a_path_is_gone_when_it_is_not_there_and_not_when_nobody_can_say() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = base.path().join("container");
        assert_eq!(of_path(&folder).expect_err("not there").code, Code::Usage);
        assert!(of_path(Path::new(".")).is_err());
        std::fs::create_dir(&folder).expect("a folder");
        let attendant = of_path(&folder).expect("there");
        assert!(!is_gone(&attendant));
        std::fs::remove_dir(&folder).expect("removed");
        assert!(is_gone(&attendant));
        let below_a_file = Attendant::Path("/proc/self/stat/x".into());
        assert!(!is_gone(&below_a_file));
    }
}
