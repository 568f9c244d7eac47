//! A run inside a slice: what it gets comes out of that slice.

use divvy_tests::build::binaries;
use divvy_tests::clients::probe;
use divvy_tests::host::{Host, finish, stderr, succeeded};
use divvy_tests::tenant::Tenant;
use divvy_tests::wait::until;
use divvy_tests::{GIB, MIB};

/// A shell in a slice of `memory`, which starts what it is told to.
fn inside(host: &Host, name: &str, memory: &str, script: &str) -> std::process::Output {
    let mut command = host.divvy([
        "run", "--name", name, "--memory", memory, "--", "sh", "-c", script, "sh",
    ]);
    command
        .arg(binaries().join("divvy"))
        .arg(probe())
        .current_dir(host.folder());
    finish(&mut command)
}

#[test]
fn a_child_slice_takes_from_its_parent_and_gives_back() {
    let host = Host::new();
    // Two probes in one slice: the parent's own, and one in a slice inside, by way of a shell.
    let mut command = host.divvy(["run", "--name", "outer", "--memory", "4GiB", "--", "sh", "-c"]);
    command
        .arg("mkfifo in && (\"$0\" run --name inner --memory 1GiB -- \"$1\" <in >out & echo $! >inner.pid); exec \"$1\"")
        .arg(binaries().join("divvy"))
        .arg(probe())
        .current_dir(host.folder());
    let mut outer = Tenant::start(command);
    let mut inner_input = std::fs::OpenOptions::new()
        .write(true)
        .open(host.folder().join("in"))
        .expect("the inner probe reads");
    until("the inner slice", || {
        host.slices()
            .iter()
            .any(|slice| slice.name == "inner")
            .then_some(())
    });
    let shown = host.json(["inspect", "outer"]);
    assert_eq!(shown["memory_lent_bytes"], GIB, "{shown}");
    assert_eq!(host.json(["inspect", "inner"])["parent_id"], shown["id"]);
    assert_eq!(outer.memory(), (3 * GIB, 3 * GIB));
    assert!(outer.allocate(3 * GIB + 512).is_err());
    assert_eq!(outer.allocate(2 * GIB), Ok(()));

    // It grows by what is free there, and by no more; it counts once on the device.
    succeeded(&finish(&mut host.divvy(["resize", "inner", "--memory", "50%"])));
    assert_eq!(host.slice("inner").memory_limit_bytes, 2 * GIB);
    let refused = finish(&mut host.divvy(["resize", "inner", "--memory", "3GiB"]));
    assert!(stderr(&refused).contains("error[D0028]"), "{}", stderr(&refused));
    let devices = host.json(["devices"]);
    assert_eq!(devices["items"][0]["sharing"]["memory_promised_bytes"], 4 * GIB);
    let refused = finish(&mut host.divvy(["resize", "outer", "--memory", "1GiB"]));
    assert!(stderr(&refused).contains("error[D0025]"), "{}", stderr(&refused));
    assert!(outer.allocate(MIB).is_err(), "all of it is held or lent");

    // An agent that dies forgets nothing of it.
    host.kill_agent();
    assert_eq!(host.json(["inspect", "outer"])["memory_lent_bytes"], 2 * GIB);
    assert!(outer.allocate(MIB).is_err());

    use std::io::Write;
    writeln!(inner_input, "exit 0").expect("the inner probe reads");
    until("what was lent is back", || {
        (outer.memory().1 == 4 * GIB).then_some(())
    });
    assert_eq!(outer.allocate(2 * GIB), Ok(()));
    assert!(outer.end().success());
    until("no slice is left", || host.slices().is_empty().then_some(()));
}

#[test]
fn what_is_hidden_inside_a_slice_is_not_taken() {
    let host = Host::with_devices("h100*2");
    let run = |visible: &str| {
        let script = format!("CUDA_VISIBLE_DEVICES={visible} \"$0\" run --memory 1GiB -- \"$0\" ps -o json");
        let mut command = host.divvy(["run", "--memory", "2GiB", "--device", "0,1", "--", "sh", "-c"]);
        command.arg(script).arg(binaries().join("divvy"));
        finish(&mut command)
    };
    for nowhere in ["7", "-1"] {
        let refused = run(nowhere);
        assert!(stderr(&refused).contains("error[D0018]"), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("of this slice"), "{}", stderr(&refused));
    }
    let devices = host.json(["devices"]);
    for (shown, place) in [("1", 1), ("0,1", 0)] {
        let listed: serde_json::Value = serde_json::from_str(&succeeded(&run(shown))).expect("JSON");
        let inner = listed["items"].as_array().expect("slices").iter();
        let mut inner = inner.filter(|slice| slice["parent_id"].is_string());
        assert_eq!(
            inner.next().expect("it is there")["device_uuid"],
            devices["items"][place]["uuid"],
            "{listed}"
        );
    }
}

#[test]
fn never_more_than_the_parent_has() {
    let host = Host::with_devices("h100*2");
    for (flags, code) in [
        ("--memory 5GiB", "D0036"),
        ("--wait=20s --memory 5GiB", "D0036"),
        ("--wait=20s --memory 5GiB --device 0", "D0036"),
        ("--device 1 --memory 1GiB", "D0029"),
        ("--whole", "D0029"),
        ("--slice other", "D0029"),
    ] {
        if flags.contains("--slice") {
            succeeded(&finish(
                &mut host.divvy(["slice", "create", "other", "--memory", "1GiB"]),
            ));
        }
        // Neither a cleaned environment nor another process group helps: it is a child of the run all the same.
        for prefix in ["", "env -u DIVVY_SLICE setsid -w "] {
            let output = inside(
                &host,
                "outer",
                "4GiB",
                &format!("{prefix}\"$1\" run {flags} -- true"),
            );
            assert_eq!(output.status.code(), Some(125), "{flags}: {}", stderr(&output));
            assert!(
                stderr(&output).contains(&format!("error[{code}]")),
                "{flags}: {}",
                stderr(&output)
            );
        }
    }
    // Without a size it is simply in the parent.
    let output = inside(&host, "outer", "4GiB", "\"$1\" run -- \"$1\" ps -q");
    let shown = succeeded(&output);
    let mut names: Vec<&str> = shown.lines().collect();
    // Those of one second are in no particular order.
    names.sort_unstable();
    assert_eq!(names, ["other", "outer"]);
    // A slice in a slice in a slice.
    let deeper = "\"$1\" run --memory 50% --name b -- \"$1\" run --memory 50% --name c -- \"$1\" ps -o json";
    let output = inside(&host, "outer", "4GiB", deeper);
    let list: serde_json::Value = serde_json::from_str(&succeeded(&output)).expect("a list");
    let mut limits: Vec<(&str, u64)> = list["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|slice| {
            (
                slice["name"].as_str().expect("a name"),
                slice["memory_limit_bytes"].as_u64().expect("bytes"),
            )
        })
        .collect();
    limits.sort_unstable();
    let expected = [("b", 2 * GIB), ("c", GIB), ("other", GIB), ("outer", 4 * GIB)];
    assert_eq!(limits, expected);
}

/// A process that has left its parents, its session and its variables is where it was.
#[test]
fn a_daemon_is_inside_the_slice_that_it_was_started_in() {
    let host = Host::new();
    // It asks when the shells between it and the run are gone: that one's end is what it reads on `go`.
    let daemon = "cat go; grep PPid /proc/self/status >parent; \
        env -u DIVVY_SLICE -u LD_PRELOAD -u DIVVY_RUN_DIR DIVVY_RUN_DIR=\"$2\" \
        \"$1\" run --memory 30GiB -- true 2>said; echo $? >status.new; mv status.new status";
    let script = format!(
        "mkfifo go; (setsid sh -c '{daemon}' sh \"$1\" \"$DIVVY_RUN_DIR\" & ); echo >go; \
         until test -e status; do sleep 0.02; done; cat said >&2; exit $(cat status)"
    );
    let output = inside(&host, "outer", "1GiB", &script);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("error[D0036]"), "{said}");
}

#[test]
fn no_program_changes_the_limits_of_the_slice_that_it_is_in() {
    let host = Host::new();
    let _other = host.probe("other", "1GiB");
    for (script, code) in [
        ("\"$1\" resize outer --memory 8GiB", Some("D0029")),
        ("\"$1\" resize outer --memory 1GiB", Some("D0029")),
        ("\"$1\" resize other --memory 2GiB", Some("D0029")),
        (
            "\"$1\" run --memory 1GiB -- \"$1\" resize outer --memory 8GiB",
            Some("D0029"),
        ),
        (
            "\"$1\" run --memory 1GiB --name b -- sleep 600 & until \"$1\" ps -q | grep -qx b; do sleep 0.02; done; \
             \"$1\" resize b --memory 2GiB && \"$1\" kill b --yes",
            None,
        ),
    ] {
        let output = inside(&host, "outer", "4GiB", script);
        let said = stderr(&output);
        match code {
            Some(code) => {
                assert!(
                    said.contains(&format!("error[{code}]: this runs inside slice")),
                    "{script}: {said}"
                );
                assert!(said.contains("from outside"), "{said}");
            }
            None => {
                succeeded(&output);
            }
        }
    }
    assert_eq!(host.slice("other").memory_limit_bytes, GIB);
    succeeded(&finish(&mut host.divvy(["resize", "other", "--memory", "2GiB"])));
}

#[test]
fn who_waits_for_more_than_the_slice_will_ever_have_is_told() {
    let host = Host::new();
    // A run waits for what another in it has; it does not wait for what the slice itself no longer has.
    let script = "\"$1\" run --memory 2GiB --name first -- sleep 600 & \
        until \"$1\" ps -q | grep -qx first; do sleep 0.02; done; \
        \"$1\" run --wait=60s --memory 3GiB -- true 2>said & waiter=$!; \
        wait $waiter; status=$?; cat said >&2; \
        \"$1\" kill first --yes; exit $status";
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a run waits in it", || {
                let said = std::fs::read_to_string(host.folder().join("said")).unwrap_or_default();
                said.contains("cannot reserve 3 GiB inside slice outer")
                    .then_some(())
            });
            succeeded(&finish(&mut host.divvy(["resize", "outer", "--memory", "2GiB"])));
        });
        inside(&host, "outer", "4GiB", script)
    });
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains("error[D0036]: 3 GiB is more than slice outer has (2 GiB)"),
        "{said}"
    );
}
