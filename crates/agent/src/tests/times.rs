//! Slices whose time is over, by the host's clock.

use divvy_host::Nvidia;
use divvy_model::SliceRecord;

use crate::api::events::EventKind;
use crate::daemon::Daemon;
use crate::life::anchor::unix_seconds;
use crate::life::slice::Slice;
use crate::start::rundir::RunDir;
use crate::start::settings::Settings;

const ID: &str = "0123abcd";

#[test]
fn programs_are_asked_again_when_their_time_is_over_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
    let settings = Settings {
        emulated: Some("h100".into()),
        ..Settings::default()
    };
    let no_page_server = |_: &RunDir, _: &str| std::process::Command::new("false");
    let daemon = Daemon::start_over(run, settings, no_page_server, Nvidia::absent()).expect("it starts");
    let record = SliceRecord {
        id: ID.into(),
        name: "lesson".into(),
        ..SliceRecord::default()
    };
    // No process is in it, so none is signalled.
    let slice = Slice::new(record, None, &[]);
    daemon.state.lock().slices.insert(ID.into(), slice);
    let ends_at = |at: u64| {
        let mut state = daemon.state.lock();
        let slice = state.slices.get_mut(ID).expect("it stays");
        slice.record.expires_unix_s = Some(at);
        drop(state);
        daemon.expiries.look();
    };
    let asked = || {
        let events = daemon.journal.after(0);
        let expired = events
            .iter()
            .filter(|event| event.kind == EventKind::SliceExpired);
        expired.count()
    };
    let now = unix_seconds();
    ends_at(now - 1);
    ends_at(now - 1);
    assert_eq!(asked(), 1, "once");
    // The host's clock was set back, and comes to the same point again.
    ends_at(now + 3600);
    ends_at(now - 1);
    assert_eq!(asked(), 2, "they have their grace again");
}
