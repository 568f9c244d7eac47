//! Lasting slices that go with something: a container, as its first process or as the folder that its engine keeps of it.
//! When that is gone and nothing runs in the slice any more, the agent deletes it. docs/adr/0031.

use std::io::ErrorKind;
use std::path::Path;

use divvy_model::{Attendant, Code, Fault, SliceRecord};

use crate::api::Attend;
use crate::daemon::{Book, Daemon, Peer};
use crate::privilege;
use crate::procs;
use crate::records::store;
use crate::watched::Watched;

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
        let mut book = self.book();
        let slice = book.find(which, peer)?;
        peer.may_change(slice.record.uid, self.uid)?;
        slice.record.require_lasting("it ends with its program")?;
        slice.record.attendant = Some(attendant);
        let record = slice.stored_form();
        store(&self.run, &record)?;
        Ok(slice.shown())
    }

    /// Deletes the slices whose attendants are gone, unless something runs in them: then it is tried again.
    pub(crate) fn delete_unattended(&self, book: &mut Book) {
        let gone = |record: &SliceRecord| record.lasting && record.attendant.as_ref().is_some_and(is_gone);
        let slices = book.slices.values().filter(|slice| gone(&slice.record));
        let ids: Vec<String> = slices.map(|slice| slice.record.id.clone()).collect();
        for id in ids {
            let _busy = self.delete(book, &id);
        }
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
    if !path.is_absolute() || is_gone(&attendant) {
        let what = path.display();
        return Err(Fault::new(
            Code::Usage,
            format!("there is no `{what}` to go with"),
        ));
    }
    Ok(attendant)
}

/// What cannot be looked at is not gone.
fn is_gone(attendant: &Attendant) -> bool {
    match attendant {
        Attendant::Process { pid, start_ticks } => Watched::again(*pid, *start_ticks).is_none(),
        Attendant::Path(path) => {
            privilege::look(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
