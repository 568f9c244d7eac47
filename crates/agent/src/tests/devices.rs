//! Which emulated devices belong to which user, and that no request gets a device that it did not name.

use std::time::Duration;

use divvy_host::nvidia::{DeviceUse, NvidiaLibrary, NvidiaReport};
use divvy_host::{Nvidia, Nvlinks};
use divvy_model::{Bytes, Code, DeviceKind, Fault, Hardware, MemoryAmount, Selector, SliceRequest};

use crate::api::{CreateSlice, CreatedSlice};
use crate::daemon::Daemon;
use crate::start::rundir::RunDir;
use crate::start::settings::Settings;
use crate::system::peer::Peer;

const GIB: u64 = 1 << 30;

/// A GPU of 22 GiB.
pub(super) struct Fake(pub String);

impl NvidiaLibrary for Fake {
    fn report(&self) -> NvidiaReport {
        let record = serde_json::json!({
            "index": 0, "uuid": self.0, "name": "NVIDIA L4", "kind": "gpu", "pci_address": "0000:65:00.0",
            "memory_total_bytes": 22 * GIB, "memory_reserved_bytes": 0, "memory_used_bytes": 0, "sm_count": 58,
            "compute_capability": "8.9",
        });
        NvidiaReport {
            devices: vec![serde_json::from_value(record).expect("a record")],
            ..NvidiaReport::default()
        }
    }

    fn usage(&self, _uuid: &str) -> DeviceUse {
        DeviceUse::default()
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

struct Host {
    _folder: tempfile::TempDir,
    daemon: Daemon,
}

impl Host {
    /// An agent of a machine with one small GPU, which admits others.
    fn with_gpu(tag: &str) -> Self {
        let uuid = format!("GPU-{:08x}-{tag}-0000-0000-000000000000", std::process::id());
        let minute = Duration::from_secs(60);
        Self::over(None, Nvidia::over(move || Fake(uuid), minute, minute))
    }

    fn over(emulated: Option<&str>, nvidia: Nvidia) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let run = RunDir::open(&folder.path().join("run")).expect("a run directory");
        let settings = Settings {
            admit_others: true,
            emulated: emulated.map(str::to_owned),
            ..Settings::default()
        };
        let no_page_server = |_: &RunDir, _: &str| std::process::Command::new("false");
        Self {
            _folder: folder,
            daemon: Daemon::start_over(run, settings, no_page_server, nvidia).expect("it starts"),
        }
    }

    fn ask(&self, uid: u32, gib: u64, change: impl FnOnce(&mut CreateSlice)) -> Result<CreatedSlice, Fault> {
        let mut ask = CreateSlice {
            request: SliceRequest {
                memory: Some(MemoryAmount::Bytes(Bytes(gib * GIB))),
                ..SliceRequest::default()
            },
            command: vec!["true".into()],
            dry_run: true,
            ..CreateSlice::default()
        };
        change(&mut ask);
        let pid = std::process::id();
        self.daemon.requests.create(Peer::new(uid, pid), &ask)
    }

    fn count(&self) -> usize {
        self.daemon.lists.devices().len()
    }
}

/// A user who is neither root nor the agent's own.
const ALICE: u32 = 64_321;

fn emulated(spec: &str) -> impl FnOnce(&mut CreateSlice) {
    let spec = spec.to_owned();
    move |ask| ask.emulated = Some(spec)
}

fn named(product: &str) -> impl FnOnce(&mut CreateSlice) {
    let product = product.to_owned();
    move |ask| ask.request.select(vec![Selector::Emulated(product)])
}

#[test]
fn another_users_emulated_devices_are_not_made() {
    let host = Host::with_gpu("0001");
    let refusal = host.ask(ALICE, 1, emulated("h100*16")).expect_err("not hers");
    assert_eq!(refusal.code, Code::NotAllowed, "{refusal:?}");
    assert_eq!(host.count(), 1);
    // The machine's own user may do so, and a dry run leaves no trace.
    let own = host.daemon.uid;
    let made = host.ask(own, 40, emulated("h100")).expect("made for the look");
    assert_eq!(made.device.kind, DeviceKind::Emulated);
    assert_eq!(host.count(), 1);
}

#[test]
fn nothing_lands_on_an_emulated_device_that_was_not_asked_for() {
    let host = Host::with_gpu("0002");
    let real = |ask: &mut CreateSlice| ask.dry_run = false;
    let by_name = |ask: &mut CreateSlice| {
        named("h100")(ask);
        real(ask);
    };
    let made = host.ask(ALICE, 1, by_name).expect("asked for by name");
    assert_eq!(made.device.kind, DeviceKind::Emulated);
    assert_eq!(host.count(), 2);
    let refusal = host.ask(host.daemon.uid, 60, |_| {}).expect_err("no GPU has it");
    assert_eq!(refusal.code, Code::OverDevice, "{refusal:?}");
    let by_index = |ask: &mut CreateSlice| ask.request.select(vec![Selector::Index(1)]);
    let refusal = host.ask(ALICE, 1, by_index).expect_err("a number is no name");
    assert_eq!(refusal.code, Code::UnknownDevice, "{refusal:?}");
    let uuid = made.device.uuid;
    let by_uuid = |ask: &mut CreateSlice| ask.request.select(vec![Selector::Uuid(uuid)]);
    assert!(host.ask(ALICE, 1, by_uuid).is_ok());
}

#[test]
fn a_dry_run_and_a_refusal_make_no_devices() {
    let host = Host::with_gpu("0003");
    host.ask(ALICE, 1, named("h100")).expect("it would fit");
    assert_eq!(host.count(), 1);
    assert!(host.ask(ALICE, 1, named("h100*16")).is_err());
    let over = |ask: &mut CreateSlice| {
        named("h100")(ask);
        ask.dry_run = false;
    };
    assert_eq!(
        host.ask(ALICE, 90, over).expect_err("too much").code,
        Code::OverDevice
    );
    assert_eq!(host.count(), 1);
}

#[test]
fn a_machine_of_emulated_devices_hands_out_its_own_and_no_others() {
    let host = Host::over(Some("l4"), Nvidia::absent());
    let made = host.ask(ALICE, 1, emulated("l4")).expect("it is here");
    assert_eq!(made.device.profile.as_deref(), Some("l4"));
    let by_name = |ask: &mut CreateSlice| {
        named("h100")(ask);
        ask.dry_run = false;
    };
    host.ask(ALICE, 1, by_name).expect("asked for by name");
    let refusal = host
        .ask(host.daemon.uid, 60, |_| {})
        .expect_err("the machine's own is an L4");
    assert_eq!(refusal.code, Code::OverDevice, "{refusal:?}");
}
