//! MIG on the emulated device, as an administrator and a user meet it: dividing a GPU, running in an instance, and what
//! cannot be changed meanwhile.

use std::process::Command;

use divvy_tests::clients::{probe, python, tools_python};
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};
use serde_json::Value;

/// Memory of a `1g.10gb` of an H100.
const SMALL: u64 = 9984 * MIB;

fn apply(host: &Host, instances: &str) -> Command {
    host.divvy(["mig", "apply", "--device", "0", "--yes", "--instances", instances])
}

/// The MIG devices that `divvy devices` shows: profile and UUID, in order.
fn instances(host: &Host) -> Vec<(String, String)> {
    let list = host.json(["devices"]);
    let items = list["items"].as_array().expect("devices").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    items
        .filter(|device| !device["hardware"]["mig_instance"].is_null())
        .map(|device| {
            (
                text(&device["hardware"]["mig_instance"]["profile"]),
                text(&device["uuid"]),
            )
        })
        .collect()
}

fn uuid(host: &Host, profile: &str) -> String {
    let found = instances(host).into_iter().find(|(name, _)| name == profile);
    found.unwrap_or_else(|| panic!("no {profile}")).1
}

/// A probe on a device, with or without a slice's limit.
fn tenant(host: &Host, flags: &[&str]) -> Tenant {
    let mut command = host.divvy(["run"].into_iter().chain(flags.iter().copied()));
    command.arg("--").arg(probe());
    Tenant::start(command)
}

fn refused(host: &Host, instances: &str) -> String {
    let output = finish(&mut apply(host, instances));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn a_gpu_is_divided_used_guarded_and_divided_again() {
    let host = Host::new();
    let said = succeeded(&finish(&mut apply(&host, "3g.40gb,2g.20gb,1g.10gb:6")));
    assert!(said.contains("turn MIG mode on"), "{said}");
    let map = said.lines().last().expect("a map");
    assert!(
        map.contains("[2g.20gb") && map.contains("[3g.40gb") && map.contains("[1g.10gb"),
        "{map}"
    );
    let names: Vec<String> = instances(&host).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["3g.40gb", "2g.20gb", "1g.10gb"]);
    // A program in an instance, with no limiter in between: its memory and no more.
    let small = uuid(&host, "1g.10gb");
    let mut alone = tenant(&host, &["--isolation", "env", "--device", &small]);
    assert_eq!(alone.memory(), (SMALL, SMALL));
    assert_eq!(alone.allocate(GIB), Ok(()));
    let full = alone
        .allocate(9 * GIB)
        .expect_err("the instance is full, and the GPU is not");
    assert!(full.contains("OUT_OF_MEMORY"), "{full}");
    assert!(alone.copies());
    // Beside it one in another instance, whose memory is its own.
    let two = uuid(&host, "2g.20gb");
    let mut beside = tenant(&host, &["--isolation", "env", "--device", &two]);
    assert_eq!(beside.memory(), (20_091 * MIB, 20_091 * MIB));
    // Nothing changes under either; the refusal names who runs there, and what is not in the way may change.
    let said = refused(&host, "7g.80gb");
    assert!(said.contains("probe (process "), "{said}");
    let said = refused(&host, "none");
    assert!(said.contains("MIG mode") && said.contains("probe"), "{said}");
    succeeded(&finish(&mut apply(&host, "2g.20gb,1g.10gb:6,1g.10gb,1g.10gb")));
    assert_eq!(alone.memory().1, SMALL, "it did not notice");
    assert!(alone.end().success() && beside.end().success());
    until("both are gone", || {
        host.json(["ps"])["items"].as_array()?.is_empty().then_some(())
    });
    succeeded(&finish(&mut apply(&host, "7g.80gb")));
    assert_eq!(instances(&host).len(), 1);
    let said = succeeded(&finish(&mut apply(&host, "7g.80gb")));
    assert!(said.contains("nothing to change"), "{said}");
    succeeded(&finish(&mut apply(&host, "none")));
    assert_eq!(instances(&host), []);
    let mut whole = tenant(&host, &["--isolation", "env", "--device", "0"]);
    assert_eq!(whole.memory().1, 81_559 * MIB);
    let said = refused(&host, "7g.80gb");
    assert!(
        said.contains("MIG mode of GPU 0") && said.contains("probe"),
        "{said}"
    );
    assert!(whole.end().success());
}

#[test]
fn a_slice_of_an_instance_is_a_part_of_its_memory() {
    let host = Host::new();
    succeeded(&finish(&mut apply(&host, "3g.40gb,1g.10gb:6")));
    let small = uuid(&host, "1g.10gb");
    let mut tenant = tenant(&host, &["--name", "part", "--memory", "4GiB", "--device", &small]);
    assert_eq!(tenant.memory(), (4 * GIB, 4 * GIB));
    assert_eq!(tenant.allocate(GIB), Ok(()));
    assert!(tenant.allocate(4 * GIB).is_err());
    let slice = host.slice("part");
    assert_eq!((slice.device_uuid, slice.memory_used_bytes), (small.clone(), GIB));
    // Admission knows the instance's memory: 4 GiB are promised, 5.75 are left.
    let more =
        |memory: &str| finish(&mut host.divvy(["run", "--memory", memory, "--device", &small, "--", "true"]));
    assert_eq!(more("6GiB").status.code(), Some(125));
    succeeded(&more("5GiB"));
    // The GPU as a whole cannot be had while it is divided; without a choice an instance with enough memory is taken.
    let output = finish(&mut host.divvy(["run", "--memory", "1GiB", "--device", "0", "--", "true"]));
    assert!(stderr(&output).contains("is in MIG mode"), "{}", stderr(&output));
    let mut command = host.divvy([
        "run",
        "--memory",
        "30GiB",
        "--",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES",
    ]);
    assert_eq!(succeeded(&finish(&mut command)).trim(), uuid(&host, "3g.40gb"));
    assert!(tenant.end().success());
}

#[test]
fn an_instance_is_made_for_a_slice_where_it_may_and_removed_after_it() {
    let host = Host::new();
    let share = ["run", "--share", "mig", "--memory"];
    let words = |memory: &'static str| share.into_iter().chain([memory, "--"]);
    // Not unless the agent may.
    let refused = finish(host.divvy(words("9GiB")).arg("true"));
    assert!(
        stderr(&refused).contains("no MIG instance"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(instances(&host), []);
    succeeded(&finish(&mut host.divvy(["agent", "stop"])));
    let start = |memory| {
        let mut command = host.divvy(words(memory));
        command.env("DIVVY_MIG_INSTANCES", "true").arg(probe());
        Tenant::start(command)
    };
    let mut small = start("9GiB");
    assert_eq!(small.memory().1, 9 * GIB);
    let mut large = start("30GiB");
    assert!(small.copies() && large.copies());
    let names = || -> Vec<String> { instances(&host).into_iter().map(|(name, _)| name).collect() };
    let mut both = names();
    both.sort();
    assert_eq!(both, ["1g.10gb", "3g.40gb"]);
    // A request without space is refused, and leaves nothing behind.
    let mut command = host.divvy(words("70GiB"));
    let refused = finish(command.env("DIVVY_MIG_INSTANCES", "true").arg("true"));
    assert!(
        stderr(&refused).contains("no GPU has room for an instance"),
        "{}",
        stderr(&refused)
    );
    // Its agent dies; the next one removes what it made.
    host.kill_agent();
    assert!(small.end().success());
    host.slices();
    until("the instance of the slice that ended is gone", || {
        (names() == ["3g.40gb"]).then_some(())
    });
    assert!(large.copies() && large.end().success());
    until("MIG mode is off again", || {
        let list = host.json(["mig", "list"]);
        (list["items"][0]["mig_mode"] == false).then_some(())
    });
    // One that was made by hand stays.
    succeeded(&finish(&mut apply(&host, "1g.10gb:6")));
    let mut by_hand = start("9GiB");
    assert!(by_hand.copies() && by_hand.end().success());
    until("its slice is gone", || host.slices().is_empty().then_some(()));
    assert_eq!(names(), ["1g.10gb"]);
}

/// The first one hands the end of MIG mode on to the second, which goes in the same round.
#[test]
fn all_instances_of_a_dead_agent_go_at_once_and_mig_mode_with_the_last() {
    let host = Host::new();
    let start = |memory: &str| {
        let mut command = host.divvy(["run", "--share", "mig", "--memory", memory, "--"]);
        command.env("DIVVY_MIG_INSTANCES", "true").arg(probe());
        Tenant::start(command)
    };
    let (small, large) = (start("9GiB"), start("30GiB"));
    host.kill_agent();
    assert!(small.end().success() && large.end().success());
    host.slices();
    until("MIG mode is off again", || {
        let list = host.json(["mig", "list"]);
        (list["items"][0]["mig_mode"] == false).then_some(())
    });
    assert_eq!(instances(&host), []);
}

#[test]
fn a_slice_in_which_nothing_runs_is_guarded_too() {
    let host = Host::new();
    succeeded(&finish(&mut apply(&host, "1g.10gb:6")));
    let small = uuid(&host, "1g.10gb");
    let create = ["slice", "create", "alice", "--memory", "4GiB", "--device", &small];
    succeeded(&finish(&mut host.divvy(create)));
    let said = refused(&host, "7g.80gb");
    assert!(said.contains("slice alice"), "{said}");
    succeeded(&finish(&mut host.divvy(["slice", "delete", "alice"])));
    succeeded(&finish(&mut apply(&host, "7g.80gb")));
}

#[test]
fn numba_sees_the_instances_multiprocessors_and_computes_there() {
    let Some(python) = python() else { return };
    let host = Host::new();
    succeeded(&finish(&mut apply(&host, "3g.40gb,1g.10gb:6")));
    const PROGRAM: &str = "
import numpy
from numba import cuda

@cuda.jit
def double(values):
    at = cuda.grid(1)
    if at < values.size:
        values[at] *= 2

device = cuda.get_current_device()
values = cuda.to_device(numpy.arange(1000, dtype=numpy.float32))
double[8, 128](values)
assert (values.copy_to_host() == 2 * numpy.arange(1000)).all()
print(len(cuda.gpus), device.name, device.MULTIPROCESSOR_COUNT)
";
    for (profile, multiprocessors) in [("1g.10gb", 16), ("3g.40gb", 60)] {
        let instance = uuid(&host, profile);
        let mut command = host.divvy(["run", "--memory", "2GiB", "--device", &instance, "--"]);
        let said = succeeded(&finish(command.arg(&python).args(["-c", PROGRAM])));
        let expected = format!("1 NVIDIA H100 80GB HBM3 MIG {profile} {multiprocessors}");
        assert_eq!(said.trim(), expected);
    }
}

#[test]
fn tools_see_the_slice_of_an_instance_inside_and_the_gpu_outside() {
    let Some(python) = tools_python() else { return };
    let host = Host::new();
    succeeded(&finish(&mut apply(&host, "1g.10gb:6")));
    let small = uuid(&host, "1g.10gb");
    const PROGRAM: &str = "
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
m = n.nvmlDeviceGetMemoryInfo(h)
print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetUUID(h), m.total)
if n.nvmlDeviceGetUUID(h).startswith('GPU-'):
    mig = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)
    print(n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetName(mig), n.nvmlDeviceGetMemoryInfo(mig).total)
";
    let mut command = host.divvy(["run", "--memory", "2GiB", "--device", &small, "--"]);
    let inside = succeeded(&finish(command.arg(&python).args(["-c", PROGRAM])));
    assert_eq!(inside.trim(), format!("1 {small} {}", 2 * GIB));
    let mut command = host.divvy(["run", "--observe", "--"]);
    let outside = succeeded(&finish(command.arg(&python).args(["-c", PROGRAM])));
    let last = format!("[1, 1] NVIDIA H100 80GB HBM3 MIG 1g.10gb {SMALL}");
    assert_eq!(outside.lines().last(), Some(last.as_str()), "{outside}");
}

#[test]
fn a_file_is_applied_and_watched() {
    let host = Host::with_devices("a30");
    let file = host.folder().join("mig.yaml");
    let write = |devices: &str| {
        let text = format!(
            "version: v1\nmig-configs:\n  all:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {devices}\n"
        );
        std::fs::write(&file, text).expect("a file");
    };
    write("{1g.6gb: 4}");
    let path = file.to_str().expect("a path");
    let mut command = host.divvy(["mig", "watch", "--file", path, "--interval", "1", "--yes"]);
    let mut watch = command
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("divvy starts");
    let profiles = || -> Vec<String> { instances(&host).into_iter().map(|(name, _)| name).collect() };
    until("the file is applied", || {
        (profiles() == ["1g.6gb"; 4]).then_some(())
    });
    // The command waits for programs that run in an instance.
    let small = uuid(&host, "1g.6gb");
    let mut tenant = tenant(&host, &["--isolation", "env", "--device", &small]);
    write("{2g.12gb: 2}");
    assert!(tenant.copies());
    assert_eq!(profiles(), ["1g.6gb"; 4]);
    assert!(tenant.end().success());
    until("the change is made when it is gone", || {
        (profiles() == ["2g.12gb"; 2]).then_some(())
    });
    watch.kill().expect("it runs");
    watch.wait().expect("it ends");
}

#[test]
fn what_is_wrong_with_a_request_is_told_and_changes_nothing() {
    let host = Host::with_devices("h100,l4");
    let hint = |said: &str, what: &str| assert!(said.contains(what) && said.contains("hint:"), "{said}");
    let wrong = |words: &[&str], status: i32| -> String {
        let output =
            finish(&mut host.divvy(["mig", "apply", "--yes"].into_iter().chain(words.iter().copied())));
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        stderr(&output)
    };
    let on_first = |instances: &str, status| wrong(&["--device", "0", "--instances", instances], status);
    hint(&on_first("2g.71gb", 2), "has no MIG profile `2g.71gb`");
    hint(&on_first("3g.40gb:2", 2), "cannot begin at memory slice 2");
    hint(&on_first("3g.40gb:0,1g.10gb:3", 1), "overlaps another instance");
    hint(&on_first("4g.40gb,4g.40gb", 1), "holds at most 1 of 4g.40gb");
    hint(
        &on_first("3g.40gb,3g.40gb,1g.10gb", 1),
        "cannot hold these instances together",
    );
    hint(
        &wrong(&["--device", "1", "--instances", "1g.10gb"], 1),
        "has no MIG",
    );
    let file = host.folder().join("mig.yaml");
    let write = |devices: &str, what: &str| {
        let entry = format!("devices: {devices}\n    mig-enabled: true\n    mig-devices: {what}");
        std::fs::write(&file, format!("version: v1\nmig-configs:\n  one:\n  - {entry}\n")).expect("a file");
    };
    let path = file.to_str().expect("a path");
    write("[7]", "{1g.10gb: 7}");
    hint(&wrong(&["--file", path], 1), "names GPU 7, which is not there");
    write("[0]", "{1g.10gb: 8}");
    hint(&wrong(&["--file", path], 1), "holds at most 7 of 1g.10gb");
    std::fs::write(&file, "\u{1}\u{2} rubbish").expect("a file");
    hint(&wrong(&["--file", path], 2), "no MIG configuration");
    assert_eq!(instances(&host), [], "nothing was changed");
    // The error names what cannot be read, and the way out.
    let list = host.json(["mig", "list"]);
    let gpu = list["items"][0]["uuid"].as_str().expect("a uuid");
    assert_eq!(list["items"][0]["mig_mode"], false);
    let state = host.run_directory().join(format!("emulated-{gpu}.1.mig"));
    std::fs::create_dir_all(host.run_directory()).expect("a folder");
    std::fs::write(state, "rubbish").expect("a file");
    let output = finish(&mut host.divvy(["run", "--memory", "1GiB", "--device", "0", "--", "true"]));
    assert!(
        !output.status.success(),
        "a device whose state is not known is not handed out"
    );
}
