//! What people watch GPUs with: inside a slice it shows the slice, outside the devices and everybody on them.

use std::process::Command;

use divvy_tests::clients::{nvtop, probe, tool, tools_python};
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::{GIB, MIB, isolation, processes};
use serde_json::Value;

/// Memory of the emulated H100.
const WHOLE: u64 = 81_559 * MIB;

/// A host with two devices, and on the first of them alice with 256 of 1024 MiB in use and bob with 512 of 2048.
struct Shared {
    host: Host,
    alice: Tenant,
    bob: Tenant,
}

impl Shared {
    fn new() -> Self {
        let host = Host::with_devices("h100*2");
        let tenant = |name: &str, limit: &str, bytes: u64| {
            let create = ["slice", "create", name, "--memory", limit, "--device", "0"];
            succeeded(&finish(&mut host.divvy(create)));
            let mut command = host.divvy(["run", "--slice", name, "--"]);
            command.arg(probe());
            let mut tenant = Tenant::start(command);
            assert_eq!(tenant.allocate(bytes), Ok(()));
            tenant
        };
        let alice = tenant("alice", "1GiB", 256 * MIB);
        let bob = tenant("bob", "2GiB", 512 * MIB);
        Self { host, alice, bob }
    }

    /// What a command prints beside alice's program, in her slice.
    fn inside(&self, program: &[&str]) -> String {
        let mut command = self.host.divvy(["run", "--slice", "alice", "--"]);
        succeeded(&finish(wide(command.args(program))))
    }

    /// The processes that hold alice's and bob's memory, as the device knows them. On the level `enforced` these are workers.
    fn holders(&self) -> (u32, u32) {
        let holder = |tenant: &Tenant| match isolation::asked_for() {
            Some(_) => processes::worker_of(tenant.pid()).expect("it has a worker"),
            None => tenant.pid(),
        };
        (holder(&self.alice), holder(&self.bob))
    }

    /// What it prints outside of all slices.
    fn outside(&self, program: &[&str]) -> String {
        let mut command = self.host.divvy(["run", "--observe", "--"]);
        succeeded(&finish(wide(command.args(program))))
    }
}

/// Tools fit their tables to a terminal, and here there is none.
fn wide(command: &mut Command) -> &mut Command {
    command
        .env("COLUMNS", "120")
        .env("LINES", "40")
        .env("TERM", "xterm")
}

/// The interpreter, and a script of the tools' folder, as words of a command line.
fn text(path: std::path::PathBuf) -> String {
    path.into_os_string().into_string().expect("a path in UTF-8")
}

/// Whether `line` holds `part`: a number, such as a process id, as a word of its own.
fn holds(line: &str, part: &str) -> bool {
    if part.bytes().all(|byte| byte.is_ascii_digit()) {
        return line
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|word| word == part);
    }
    line.contains(part)
}

/// The only line of `shown` that holds all of `parts`.
#[track_caller]
fn line<'a>(shown: &'a str, parts: &[&str]) -> &'a str {
    let mut found = shown
        .lines()
        .filter(|line| parts.iter().all(|part| holds(line, part)));
    match (found.next(), found.next()) {
        (Some(line), None) => line,
        (None, _) => panic!("no line with {parts:?} in\n{shown}"),
        (Some(_), Some(_)) => panic!("several lines with {parts:?} in\n{shown}"),
    }
}

#[test]
fn nvidia_ml_py_sees_the_slice_inside_and_all_outside() {
    let Some(python) = tools_python() else { return };
    let shared = Shared::new();
    let (python, look) = (text(python), text(tool("look.py")));
    let alice = shared.alice.pid().to_string();

    let devices: Value = serde_json::from_str(&shared.inside(&[&python, &look])).expect("JSON");
    assert_eq!(
        devices.as_array().map(Vec::len),
        Some(1),
        "the slice has one device"
    );
    let seen = &devices[0];
    let device = shared.host.slice("alice").device_uuid;
    assert_eq!(
        (&seen["index"], &seen["uuid"]),
        (&0.into(), &device.as_str().into())
    );
    let memory = serde_json::json!([GIB, 256 * MIB, 768 * MIB]);
    assert_eq!((&seen["memory"], &seen["second"]), (&memory, &memory));
    assert_eq!(seen["processes"], serde_json::json!({ &alice: 256 * MIB }));
    assert_eq!(seen["graphics"], 0);
    // The tenants' work at their start may still be in the window that it is computed over.
    let busy = seen["utilization"].as_u64();
    assert!(busy.is_some_and(|percent| percent <= 100), "{busy:?}");
    let bar1 = seen["bar1_total"].as_u64().expect("bytes");
    assert_eq!(
        bar1,
        128 * GIB / (WHOLE / MIB) * 1024 + (128 * GIB % (WHOLE / MIB)) * 1024 / (WHOLE / MIB)
    );
    assert_eq!(
        shared.host.slice("alice").processes.len(),
        1,
        "who looks takes no place in the ledger"
    );

    let devices: Value = serde_json::from_str(&shared.outside(&[&python, &look])).expect("JSON");
    assert_eq!(devices.as_array().map(Vec::len), Some(2));
    assert_eq!(
        devices[0]["memory"],
        serde_json::json!([WHOLE, 768 * MIB, WHOLE - 768 * MIB])
    );
    let (of_alice, of_bob) = shared.holders();
    assert_eq!(
        devices[0]["processes"],
        serde_json::json!({ of_alice.to_string(): 256 * MIB, of_bob.to_string(): 512 * MIB })
    );
    assert_eq!(devices[0]["name"], "NVIDIA H100 80GB HBM3");
    assert_eq!(devices[1]["memory"], serde_json::json!([WHOLE, 0, WHOLE]));
}

#[test]
fn a_slice_of_its_own_follows_what_is_allocated_and_resized() {
    let Some(python) = tools_python() else { return };
    let mut shared = Shared::new();
    let (python, look) = (text(python), text(tool("look.py")));
    let memory = |shared: &Shared| {
        let devices: Value = serde_json::from_str(&shared.inside(&[&python, &look])).expect("JSON");
        devices[0]["memory"].clone()
    };
    assert_eq!(shared.alice.allocate(512 * MIB), Ok(()));
    assert_eq!(memory(&shared), serde_json::json!([GIB, 768 * MIB, 256 * MIB]));
    succeeded(&finish(
        &mut shared.host.divvy(["resize", "alice", "--memory", "2GiB"]),
    ));
    assert_eq!(
        memory(&shared),
        serde_json::json!([2 * GIB, 768 * MIB, 1280 * MIB])
    );
}

#[test]
fn gpustat_shows_the_slice_inside_and_all_outside() {
    let Some(python) = tools_python() else { return };
    let shared = Shared::new();
    let python = text(python);
    let gpustat = |arguments: &[&'static str]| [&[python.as_str(), "-m", "gpustat"], arguments].concat();
    let alice = shared.alice.pid();
    let held = |process: &Value| (process["pid"].clone(), process["gpu_memory_usage"].clone());

    let seen: Value = serde_json::from_str(&shared.inside(&gpustat(&["--json"]))).expect("JSON");
    assert_eq!(seen["gpus"].as_array().map(Vec::len), Some(1));
    let gpu = &seen["gpus"][0];
    assert_eq!(
        (&gpu["memory.total"], &gpu["memory.used"]),
        (&1024.into(), &256.into())
    );
    assert_eq!(gpu["processes"].as_array().map(Vec::len), Some(1));
    assert_eq!(held(&gpu["processes"][0]), (alice.into(), 256.into()));
    let shown = shared.inside(&gpustat(&["--no-color", "--show-pid"]));
    line(
        &shown,
        &[
            "[0] NVIDIA H100 80GB HBM3",
            "256 /  1024 MB",
            &format!("/{alice}(256M)"),
        ],
    );

    let seen: Value = serde_json::from_str(&shared.outside(&gpustat(&["--json"]))).expect("JSON");
    assert_eq!(seen["gpus"].as_array().map(Vec::len), Some(2));
    let gpu = &seen["gpus"][0];
    assert_eq!(
        (&gpu["memory.total"], &gpu["memory.used"]),
        (&81_559.into(), &768.into())
    );
    let mut processes: Vec<_> = gpu["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(held)
        .collect();
    processes.sort_by_key(|(pid, _)| pid.as_u64());
    let (of_alice, of_bob) = shared.holders();
    let mut expected = [(of_alice.into(), 256.into()), (of_bob.into(), 512.into())];
    expected.sort_by_key(|(pid, _): &(Value, Value)| pid.as_u64());
    assert_eq!(processes, expected);
}

#[test]
fn nvitop_shows_the_slice_inside_and_all_outside() {
    let Some(python) = tools_python() else { return };
    let shared = Shared::new();
    let nvitop = text(python.with_file_name("nvitop"));
    let (alice, bob) = (shared.alice.pid().to_string(), shared.bob.pid().to_string());

    let shown = shared.inside(&[&nvitop, "--once", "--ascii"]);
    line(&shown, &["256.0MiB / 1024MiB"]);
    line(&shown, &[&alice, "256.0MiB", "probe"]);
    assert!(
        !shown
            .lines()
            .any(|line| holds(line, &bob) && line.contains("probe")),
        "{shown}"
    );
    assert_eq!(shown.matches("H100 80GB HBM3").count(), 1, "{shown}");

    let shown = shared.outside(&[&nvitop, "--once", "--ascii"]);
    line(&shown, &["768.0MiB / 79.65GiB"]);
    line(&shown, &["0B / 79.65GiB"]);
    let (of_alice, of_bob) = shared.holders();
    line(&shown, &[&of_alice.to_string(), "256.0MiB"]);
    line(&shown, &[&of_bob.to_string(), "512.0MiB"]);
}

#[test]
fn nvtop_shows_the_slice_inside_and_all_outside() {
    let (Some(python), Some(nvtop)) = (tools_python(), nvtop()) else {
        return;
    };
    let shared = Shared::new();
    let (python, screen, nvtop) = (text(python), text(tool("screen.py")), text(nvtop));
    let (alice, bob) = (shared.alice.pid().to_string(), shared.bob.pid().to_string());

    let shown = shared.inside(&[&python, &screen, &alice, &nvtop]);
    line(&shown, &["MEM[", "0.250Gi/1.000Gi]"]);
    line(&shown, &[&alice, "Compute", "256MiB"]);
    assert!(
        !shown
            .lines()
            .any(|line| holds(line, &bob) && line.contains("Compute")),
        "{shown}"
    );
    assert!(
        shown.contains("Device 0") && !shown.contains("Device 1"),
        "{shown}"
    );

    let (of_alice, of_bob) = shared.holders();
    let (of_alice, of_bob) = (of_alice.to_string(), of_bob.to_string());
    let shown = shared.outside(&[&python, &screen, &of_bob, &nvtop]);
    line(&shown, &["0.750Gi/79.647Gi]"]);
    line(&shown, &[&of_alice, "Compute", "256MiB"]);
    line(&shown, &[&of_bob, "Compute", "512MiB"]);
    assert!(shown.contains("Device 1"), "{shown}");
}
