//! What the device says beside what the ledgers say: outsiders, and tenants that do not account for all they hold.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use divvy_tests::MIB;
use divvy_tests::build::binaries;
use divvy_tests::clients::{probe, python_tenant, system_python};
use divvy_tests::host::{Host, finish, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use rustix::process::Signal;
use serde_json::Value;

/// A program on the host's emulated device, in no slice at all.
fn outside(host: &Host, program: impl AsRef<std::ffi::OsStr>) -> Command {
    // The emulated driver by its own name, and no limiter in front.
    let folder = host.folder().join("driver");
    std::fs::create_dir(&folder).expect("made");
    let driver = binaries().join("libdivvy_emulated_cuda.so");
    std::os::unix::fs::symlink(driver, folder.join("libcuda.so.1")).expect("linked");
    let mut command = host.command(program);
    command.env("LD_LIBRARY_PATH", folder);
    command
}

/// A part of the Python tenant in the slice `name` of 1 GiB, which `divvy slice create` made.
fn part(host: &Host, name: &str, python: &Path, arguments: &[&str]) -> (Tenant, Value) {
    let mut command = host.divvy(["run", "--slice", name, "--"]);
    command.arg(python).arg(python_tenant()).args(arguments);
    let (tenant, hello) = Tenant::start_with_line(command);
    assert_eq!(hello["error"], 0, "{hello}");
    (tenant, hello)
}

fn created(host: &Host, name: &str, policy: &str) {
    let words = ["slice", "create", name, "--memory", "1GiB", "--policy", policy];
    succeeded(&finish(&mut host.divvy(words)));
}

/// A tenant in the slice `name` with 300 MiB that others may open, and the name that they open them by.
fn sharer(host: &Host, name: &str, python: &Path) -> (Tenant, String) {
    let (tenant, hello) = part(host, name, python, &["share", "300"]);
    (tenant, hello["handle"].as_str().expect("a handle").to_owned())
}

#[test]
fn memory_of_no_living_process_is_shown_and_promised_to_no_slice() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    created(&host, "gone", "strict");
    let (maker, handle) = sharer(&host, "gone", &python);
    let mut command = outside(&host, &python);
    command.arg(python_tenant()).args(["open_shared", &handle]);
    let (holder, hello) = Tenant::start_with_line(command);
    assert_eq!(hello["error"], 0, "{hello}");
    maker.signal(Signal::KILL);
    // Its owner is dead and the process that has it open makes no call: no process has it in its figure.
    until("it is seen", || {
        let sharing = host.json(["devices"])["items"][0]["sharing"].clone();
        let seen = sharing["memory_overhead_bytes"] == 300 * MIB && sharing["memory_unmanaged_bytes"] == 0;
        seen.then_some(())
    });
    let refused = finish(&mut host.run("78.5GiB", "true"));
    let said = divvy_tests::host::stderr(&refused);
    assert!(
        said.contains("error[D0012]") && said.contains("300 MiB is in use for no living process"),
        "{said}"
    );
    drop(holder);
    until("it is gone", || {
        (host.json(["devices"])["items"][0]["sharing"]["memory_overhead_bytes"] == 0).then_some(())
    });
}

#[test]
fn what_a_ledger_keeps_for_the_dead_hides_nothing() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    created(&host, "heirs", "best-effort");
    let (maker, handle) = sharer(&host, "heirs", &python);
    let (_holder, _) = part(&host, "heirs", &python, &["open_shared", &handle]);
    maker.signal(Signal::KILL);
    until("its memory is its slice's and no process's", || {
        let shown = host.json(["inspect", "heirs"]);
        let processes = shown["processes"].as_array()?;
        let held = |process: &Value| process["memory_used_bytes"].as_u64();
        let by_processes: u64 = processes.iter().filter_map(held).sum();
        (processes.len() == 1 && by_processes == 0 && shown["memory_used_bytes"] == 300 * MIB).then_some(())
    });
    // As much past the ledger as the ledger has for the dead.
    let driver = host.folder().join("mathlib.so");
    std::fs::copy(binaries().join("libdivvy_emulated_cuda.so"), &driver).expect("copied");
    let driver = driver.to_str().expect("a plain path").to_owned();
    let _past = part(&host, "heirs", &python, &["past", "300", &driver]);
    until("it is seen beside that", || {
        (host.json(["inspect", "heirs"])["memory_overhead_bytes"] == 300 * MIB).then_some(())
    });
    let sharing = host.json(["devices"])["items"][0]["sharing"].clone();
    assert_eq!(
        sharing["memory_overhead_bytes"], 0,
        "it is the slice's: {sharing}"
    );
}

#[test]
fn who_is_in_no_slice_is_shown_as_such() {
    let host = Host::new();
    let mut outsider = Tenant::start(outside(&host, probe()));
    assert_eq!(outsider.allocate(300 * MIB), Ok(()));
    let mut inside = host.probe("inside", "1GiB");
    assert_eq!(inside.allocate(100 * MIB), Ok(()));
    let shown = || host.json(["ps"]);
    let list = shown();
    assert_eq!(list["items"].as_array().expect("items").len(), 1, "{list}");
    let unmanaged = &list["unmanaged"];
    assert_eq!(unmanaged.as_array().expect("a list").len(), 1, "{list}");
    assert_eq!(unmanaged[0]["pid"], outsider.pid(), "{list}");
    assert!(
        unmanaged[0]["memory_used_bytes"].as_u64().expect("bytes") >= 300 * MIB,
        "{list}"
    );
    let table = succeeded(&finish(&mut host.divvy(["ps"])));
    let line = table
        .lines()
        .find(|line| line.starts_with("(unmanaged)"))
        .expect("a line");
    assert!(
        line.contains("no slice") && line.contains(&format!("probe {}", outsider.pid())),
        "{table}"
    );
    assert_eq!(succeeded(&finish(&mut host.divvy(["ps", "-q"]))), "inside\n");
    // It is counted: its memory is not promised to others.
    let refused = finish(&mut host.run("78.5GiB", "true"));
    assert_eq!(refused.status.code(), Some(125));
    assert!(outsider.end().success());
    until("it is gone", || {
        shown()["unmanaged"]
            .as_array()
            .expect("a list")
            .is_empty()
            .then_some(())
    });
}

#[test]
fn a_tenant_that_corrupts_its_own_ledger_is_reported() {
    // What a memset takes of a device is modelled: by this machine's processors it is long, and passes the gate.
    let host = Host::with_devices("h100,timing=model");
    let mut tenant = host.probe("liar", "1GiB");
    let mut honest = host.probe("honest", "1GiB");
    assert_eq!(tenant.allocate(600 * MIB), Ok(()));
    assert_eq!(honest.allocate(600 * MIB), Ok(()));
    // As a process of the same user may on the cooperative level: it sets its own charges to zero.
    let id = host.json(["inspect", "liar"])["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let socket = host.run_directory().join("slices").join(id).join("control.sock");
    let pages = divvy_ledger::attach::recall(&socket, 0).expect("pages");
    let file = std::fs::File::from(pages.ledger.share().expect("a descriptor"));
    // The word that says what is in use in all.
    file.write_all_at(&[0; 8], 64).expect("written");

    until("it is reported", || {
        let shown = host.json(["inspect", "liar"]);
        let reported = shown["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one == "overuse"))
            || shown["usage_unknown"] == true;
        reported.then_some(())
    });
    let shown = host.json(["inspect", "honest"]);
    assert!(
        shown["conditions"].is_null() && shown["usage_unknown"].is_null(),
        "{shown}"
    );
    assert_eq!(shown["memory_used_bytes"], 600 * MIB, "{shown}");
    assert!(honest.allocate(500 * MIB).is_err(), "its limit is what it was");
    assert!(honest.copies() && tenant.copies());
}

#[test]
fn a_whole_device_is_one_tenants_alone_and_without_a_limiter() {
    let host = Host::new();
    let mut command = host.divvy(["run", "--name", "solo", "--whole", "--"]);
    command.arg(probe());
    let mut solo = Tenant::start(command);
    let (_, total) = solo.memory();
    let shown = host.json(["inspect", "solo"]);
    assert_eq!(shown["whole"], true, "{shown}");
    assert_eq!(shown["memory_limit_bytes"], total, "all of it: {shown}");
    assert_eq!(
        solo.ask("environment DIVVY_SLICE")["value"],
        serde_json::Value::Null
    );
    // No more of Divvy in its process than the device needs that is emulated.
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", solo.pid())).expect("maps");
    assert!(
        !maps.contains("limit_cuda") && !maps.contains("divvy-ledger"),
        "{maps}"
    );

    assert_eq!(solo.allocate(300 * MIB), Ok(()));
    let shown = host.json(["inspect", "solo"]);
    assert!(
        shown["memory_used_bytes"].as_u64().expect("bytes") >= 300 * MIB,
        "{shown}"
    );
    assert_eq!(shown["processes"][0]["pid"], solo.pid(), "{shown}");
    assert!(
        host.json(["ps"])["unmanaged"]
            .as_array()
            .expect("a list")
            .is_empty()
    );
    let refused = finish(&mut host.run("1GiB", "true"));
    let said = divvy_tests::host::stderr(&refused);
    assert!(
        said.contains("error[D0012]") && said.contains("slice solo holds the whole device"),
        "{said}"
    );
    assert!(
        !said.contains("outside any slice"),
        "no unmanaged process holds its memory: {said}"
    );
    assert!(solo.end().success());

    // And no slice gets it whole that is not alone.
    let _other = host.probe("other", "1GiB");
    let refused = finish(&mut host.divvy(["run", "--whole", "--", "true"]));
    let said = divvy_tests::host::stderr(&refused);
    assert!(
        said.contains("error[D0012]") && said.contains("cannot be had whole"),
        "{said}"
    );
}

#[test]
fn an_allocation_waits_for_room_where_the_slice_says_so() {
    let host = Host::new();
    succeeded(&finish(&mut host.divvy([
        "slice", "create", "waiting", "--memory", "1GiB", "--on-oom", "wait=60s",
    ])));
    let joined = || {
        let mut command = host.divvy(["run", "--slice", "waiting", "--"]);
        command.arg(probe());
        Tenant::start(command)
    };
    let (mut first, mut second) = (joined(), joined());
    assert_eq!(first.allocate(700 * MIB), Ok(()));
    second.tell(&format!("allocate {}", 700 * MIB));
    host.until_used("waiting", 700 * MIB);
    first.free();
    assert!(second.answer()["error"].is_null(), "it waited and got it");
    // The terms are the record's: a restarted agent grants the same.
    host.kill_agent();
    assert_eq!(
        host.json(["inspect", "waiting"])["on_oom_wait_ns"],
        60_000_000_000_u64
    );
    first.tell(&format!("allocate {}", 700 * MIB));
    second.free();
    assert!(first.answer()["error"].is_null());
}

/// The driver below opened under a name of its own, with the limiter loaded and never asked.
fn by_path(host: &Host, name: &str, policy: &str) -> Option<std::process::Command> {
    let driver = host.folder().join("mathlib.so");
    std::fs::copy(binaries().join("libdivvy_emulated_cuda.so"), &driver).expect("copied");
    let mut command = host.divvy([
        "run", "--name", name, "--memory", "1GiB", "--policy", policy, "--",
    ]);
    command
        .arg(system_python()?)
        .arg(python_tenant())
        .args(["past", "2000"])
        .arg(driver);
    Some(command)
}

#[test]
fn a_driver_that_is_opened_by_its_path_is_refused() {
    let host = Host::new();
    let Some(mut command) = by_path(&host, "strict", "strict") else {
        return;
    };
    // It waits for a line that never comes: only the agent ends it.
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    let input = child.stdin.take();
    let output = child.wait_with_output().expect("ended");
    drop(input);
    let said = divvy_tests::host::stderr(&output);
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("\"error\": 0"),
        "it had the memory: {said}"
    );
    assert_eq!(output.status.code(), Some(128 + 15), "{said}");
    assert!(said.contains("error[D0022]: process "), "{said}");
    assert!(said.contains("uses a device without being counted"), "{said}");
    assert!(
        said.contains("hint: a driver that is opened as libcuda.so.1"),
        "{said}"
    );
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(events.contains("bypassed"), "{events}");
    until("the device is free again", || {
        host.slices().is_empty().then_some(())
    });
}

#[test]
fn a_driver_that_is_opened_by_its_path_is_counted_where_the_policy_lets_it() {
    let host = Host::new();
    let Some(command) = by_path(&host, "lax", "best-effort") else {
        return;
    };
    let mut tenant = Tenant::start(command);
    let table = until("it is counted", || {
        let table = succeeded(&finish(&mut host.divvy(["ps"])));
        table.contains("1 past the limiter").then_some(table)
    });
    assert!(table.contains("overuse"), "{table}");
    let shown = host.json(["inspect", "lax"]);
    assert_eq!(
        shown["bypasses"],
        serde_json::json!(["foreign-libcuda: 1"]),
        "{shown}"
    );
    assert_eq!(tenant.ask("")["ended"], serde_json::json!(true));
    assert!(tenant.end().success());
}

/// The process itself does not see it: the loader hands out what the limiter has loaded. The agent does, by the
/// device's own account.
#[test]
fn who_uses_the_limiter_and_the_driver_below_it_is_seen_to_hold_more_than_is_charged() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    let mut honest = host.probe("honest", "1GiB");
    created(&host, "both", "strict");
    let driver = binaries().join("libdivvy_emulated_cuda.so");
    let driver = driver.to_str().expect("a plain path");
    // Together more than the slice may have.
    let (mut tenant, hello) = part(&host, "both", &python, &["both", "300", "900", driver]);
    assert_eq!(hello["error"], 0, "it has the memory: {hello}");
    let shown = until("it is seen", || {
        let shown = host.json(["inspect", "both"]);
        let counted = shown["bypasses"].as_array().is_some_and(|all| !all.is_empty());
        (counted && shown["memory_overhead_bytes"] == 900 * MIB).then_some(shown)
    });
    assert_eq!(shown["memory_used_bytes"], 300 * MIB, "{shown}");
    assert_eq!(
        shown["conditions"],
        serde_json::json!(["over_limit", "overuse"]),
        "{shown}"
    );
    assert_eq!(
        shown["bypasses"],
        serde_json::json!(["unexplained-memory: 1"]),
        "{shown}"
    );
    let events = succeeded(&finish(&mut host.divvy(["events"])));
    assert!(
        events.contains("hold 900 MiB more than they account for"),
        "{events}"
    );
    // No process is ended for it, it has no headroom left, and its neighbour has what it was promised.
    let answer = tenant.ask("");
    assert_eq!(answer, serde_json::json!({"error": 2, "freed": 0}));
    assert_eq!(honest.allocate(1000 * MIB), Ok(()));
    // Given back, its headroom is its own again.
    until("it is gone", || {
        host.json(["inspect", "both"])["memory_overhead_bytes"]
            .is_null()
            .then_some(())
    });
    assert!(tenant.end().success());
}

/// What the agent last found that the driver holds is not in the way once it is gone.
#[test]
fn room_that_came_back_a_moment_ago_is_found_before_a_request_is_refused() {
    let host = Host::new();
    let Some(python) = system_python() else { return };
    created(&host, "fresh", "best-effort");
    let driver = host.folder().join("mathlib.so");
    std::fs::copy(binaries().join("libdivvy_emulated_cuda.so"), &driver).expect("copied");
    let mut command = host.divvy(["run", "--slice", "fresh", "--"]);
    command
        .arg(&python)
        .arg(python_tenant())
        .args(["past", "600"])
        .arg(&driver);
    let (mut past, hello) = Tenant::start_with_line(command);
    assert_eq!(hello["error"], 0, "{hello}");
    let mut command = host.divvy(["run", "--slice", "fresh", "--"]);
    command.arg(probe());
    let mut tenant = Tenant::start(command);
    until("what it holds is taken off the room", || {
        let overhead = host.json(["inspect", "fresh"])["memory_overhead_bytes"].as_u64();
        overhead.is_some_and(|bytes| bytes >= 600 * MIB).then_some(())
    });
    tenant.allocate(700 * MIB).expect_err("it is held");
    past.signal(Signal::KILL);
    past.wait();
    // No process has asked the agent for anything since.
    tenant.allocate(700 * MIB).expect("it is free");
}

/// Where processes have numbers of their own, the agent shows them by the host's.
#[test]
fn a_process_in_a_namespace_of_its_own_is_one_of_its_slice() {
    let host = Host::new();
    let allowed = std::process::Command::new("unshare")
        .args(["-pf", "--mount-proc", "true"])
        .output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return;
    }
    let mut command = host.divvy(["run", "--name", "apart", "--memory", "1GiB", "--"]);
    command.args(["unshare", "-pf", "--mount-proc"]).arg(probe());
    let mut tenant = Tenant::start_in_container(command);
    assert_eq!(tenant.allocate(300 * MIB), Ok(()));
    let list = host.json(["ps"]);
    assert_eq!(list["unmanaged"], serde_json::json!([]), "{list}");
    let processes = list["items"][0]["processes"].as_array().expect("processes");
    assert_eq!(processes.len(), 1, "{list}");
    assert_ne!(processes[0]["pid"], 1, "{list}");
    assert!(tenant.end().success());
}
