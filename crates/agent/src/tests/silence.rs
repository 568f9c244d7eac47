//! A driver that hangs.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use divvy_host::nvidia::{DeviceUse, NvidiaLibrary, NvidiaReport};
use divvy_host::{Nvidia, Nvlinks};
use divvy_model::{Bytes, Code, Hardware, SliceRequest};

use crate::api::CreateSlice;
use crate::api::events::EventKind;
use crate::daemon::Daemon;
use crate::start::rundir::RunDir;
use crate::start::settings::Settings;
use crate::system::peer::Peer;
use divvy_model::Condition;

const GIB: u64 = 1 << 30;
const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

/// One GPU, whose driver can be made to hang and to come back.
#[derive(Clone, Default)]
struct Fake(Arc<(Mutex<bool>, Condvar)>);

impl Fake {
    fn uuid() -> String {
        // No agent of another test owns it.
        format!("GPU-{:08x}-0000-0000-0000-000000000000", std::process::id())
    }

    fn set(&self, hangs: bool) {
        *self.0.0.lock().expect("no panic") = hangs;
        self.0.1.notify_all();
    }
}

impl NvidiaLibrary for Fake {
    fn report(&self) -> NvidiaReport {
        let record = serde_json::json!({
            "index": 0, "uuid": Self::uuid(), "name": "NVIDIA H100", "kind": "gpu", "pci_address": "0000:65:00.0",
            "memory_total_bytes": 80 * GIB, "memory_reserved_bytes": GIB, "memory_used_bytes": 0, "sm_count": 132,
            "compute_capability": "9.0",
        });
        NvidiaReport {
            devices: vec![serde_json::from_value(record).expect("a record")],
            ..NvidiaReport::default()
        }
    }

    fn usage(&self, _uuid: &str) -> DeviceUse {
        let hangs = self.0.0.lock().expect("no panic");
        drop(self.0.1.wait_while(hangs, |hangs| *hangs).expect("no panic"));
        DeviceUse {
            used: Some(Bytes(2 * GIB)),
            processes: vec![(u32::MAX >> 1, Some(Bytes(2 * GIB)))],
        }
    }

    fn cuda_version(&self) -> Option<(u32, u32)> {
        None
    }

    fn utilization(&self, _uuid: &str) -> Vec<(u32, u32)> {
        Vec::new()
    }

    fn facts(&self, _uuid: &str) -> Hardware {
        Hardware::default()
    }

    fn links(&self) -> Nvlinks {
        Nvlinks::new()
    }
}

fn ask(name: &str, gib: u64) -> CreateSlice {
    let request = serde_json::json!({ "name": name });
    let request: SliceRequest = serde_json::from_value(request).expect("a request");
    CreateSlice {
        request: SliceRequest {
            memory: Some(divvy_model::MemoryAmount::Bytes(Bytes(gib * GIB))),
            ..request
        },
        command: vec!["true".into()],
        ..CreateSlice::default()
    }
}

#[test]
fn a_driver_that_hangs_stops_no_request_and_is_told_of_until_it_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
    let fake = Fake::default();
    let library = fake.clone();
    let nvidia = Nvidia::over(move || library, LONG, SOON);
    let no_page_server = |_: &RunDir, _: &str| std::process::Command::new("false");
    let daemon = Daemon::start_over(run, Settings::default(), no_page_server, nvidia).expect("it starts");
    let create = |name: &str, gib| {
        // Two callers: one that asks again, before it has taken up its slice, gets the same slice.
        let pid = match name {
            "one" => std::process::id(),
            _ => std::os::unix::process::parent_id(),
        };
        let peer = Peer::new(daemon.uid, pid);
        daemon.requests.create(peer, &ask(name, gib)).map(drop)
    };
    create("one", 8).expect("there is room");
    // 80 GiB, of which one is reserved, two are an unmanaged process's, and eight are promised.
    let sharing = daemon.lists.devices()[0]
        .sharing
        .clone()
        .expect("it is handed out");
    assert_eq!(sharing.memory_free_bytes, Bytes(69 * GIB));
    assert_eq!(
        create("two", 70).expect_err("more than there is").code,
        Code::DeviceFull
    );
    let over = create("two", 80).expect_err("more than can be had");
    assert_eq!(over.code, Code::OverDevice, "{over:?}");

    fake.set(true);
    daemon.state.lock().audited_at = None;
    assert!(daemon.tick(), "it goes on");
    assert!(daemon.status().driver_silent);
    let kinds = || -> Vec<EventKind> { daemon.journal.after(0).iter().map(|event| event.kind).collect() };
    daemon.tick();
    assert!(kinds().contains(&EventKind::DriverSilent), "{:?}", kinds());
    assert_eq!(daemon.lists.slices()[0].conditions, [Condition::DriverSilent]);
    let refusal = create("two", 1).expect_err("who uses it cannot be told");
    assert_eq!(refusal.code, Code::Driver, "{refusal:?}");
    assert_eq!(daemon.lists.devices().len(), 1);

    fake.set(false);
    while daemon.status().driver_silent {
        std::thread::yield_now();
    }
    daemon.tick();
    let told = kinds()
        .into_iter()
        .filter(|kind| *kind == EventKind::DriverAnswers);
    assert_eq!(told.count(), 1);
    assert_eq!(daemon.lists.slices()[0].conditions, []);
    create("two", 1).expect("it answers again");
}
