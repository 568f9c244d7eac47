//! Slices that end by the clock, and settings that an agent reads again.

mod common;

use std::process::Stdio;

use common::{Host, until};

fn kinds_of_events(host: &Host) -> Vec<String> {
    let said = host.text(&["events", "-o", "json"]);
    said.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an event"))
        .map(|event| event["kind"].as_str().expect("a kind").to_owned())
        .collect()
}

#[test]
fn programs_end_with_the_time_of_their_slice() {
    let host = Host::new();
    host.text(&["slice", "create", "lesson", "--memory", "1GiB", "--ttl", "1s"]);
    until("the slice is deleted", || {
        host.text(&["slice", "list", "-q"]).trim().is_empty()
    });
    let own = host
        .divvy(&["run", "--memory", "1GiB", "--ttl", "1s", "--", "sleep", "1000"])
        .output()
        .expect("divvy starts");
    // By TERM; by KILL where it began after that was sent.
    assert!(matches!(own.status.code(), Some(143 | 137)), "{own:?}");
    let said = String::from_utf8_lossy(&own.stderr);
    assert!(said.contains("the 1 s of this slice are over"), "{said}");
    let expired = kinds_of_events(&host)
        .iter()
        .filter(|kind| *kind == "slice_expired")
        .count();
    assert_eq!(expired, 2);
}

#[test]
fn a_slice_in_which_nothing_runs_goes_when_it_may_idle_no_longer() {
    let host = Host::new();
    host.text(&["slice", "create", "kept", "--memory", "1GiB"]);
    host.text(&["slice", "create", "idle", "--memory", "1GiB", "--idle-ttl", "1s"]);
    until("one is deleted", || {
        host.text(&["slice", "list", "-q"]).trim() == "kept"
    });
}

#[test]
fn an_agent_reads_its_settings_again() {
    let host = Host::new();
    let folder = host.folder().join("config/divvy");
    std::fs::create_dir_all(&folder).expect("a folder");
    let write = |text: &str| std::fs::write(folder.join("config.toml"), text).expect("written");
    let text = |words: &[&str]| {
        let output = host
            .divvy(words)
            .stderr(Stdio::inherit())
            .output()
            .expect("divvy starts");
        (
            output.status.success(),
            String::from_utf8(output.stdout).expect("text"),
        )
    };
    write("user_slices = 1\nquantum = \"5ms\"");
    assert!(text(&["slice", "create", "a", "--memory", "1GiB"]).0);
    assert!(
        !text(&["slice", "create", "b", "--memory", "1GiB"]).0,
        "one is all"
    );
    write("user_slices = 2\nquantum = \"10ms\"");
    let shown = text(&["config", "show"]).1;
    let row = |shown: &str, key: &str| -> Vec<String> {
        let row = shown.lines().find(|line| line.starts_with(key)).expect("a row");
        row.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(row(&shown, "user_slices"), ["user_slices", "2", "1"], "{shown}");
    assert!(
        text(&["config", "check"])
            .1
            .contains("still has 1 for user_slices, not 2")
    );

    let status: serde_json::Value =
        serde_json::from_str(&text(&["agent", "status", "-o", "json"]).1).expect("JSON");
    let pid = status["pid"].as_i64().expect("a pid") as i32;
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("it is ours");
    until("the settings are read", || {
        kinds_of_events(&host).contains(&"settings_reloaded".to_owned())
    });
    assert!(
        text(&["slice", "create", "b", "--memory", "1GiB"]).0,
        "two may be there now"
    );
    let shown = text(&["config", "show"]).1;
    assert_eq!(row(&shown, "user_slices").len(), 2, "{shown}");
    assert_eq!(
        row(&shown, "quantum"),
        ["quantum", "10ms", "5ms"],
        "it needs another start"
    );
}

#[test]
fn what_no_agent_would_start_with_is_found_beforehand() {
    let host = Host::new();
    let check = |settings: &[(&str, &str)]| {
        let output = host
            .divvy(&["config", "check"])
            .envs(settings.iter().copied())
            .output()
            .expect("divvy starts");
        (
            output.status.code(),
            String::from_utf8(output.stderr).expect("text"),
        )
    };
    assert_eq!(check(&[]).0, Some(0));
    for (key, value) in [
        ("DIVVY_USER_MEMORY", "4"),
        ("DIVVY_USER_COMPUTE", "250%"),
        ("DIVVY_USER_TTL", "4"),
        ("DIVVY_ISOLATION", "strong"),
        ("DIVVY_DEVICE", "tpu:"),
    ] {
        let (status, said) = check(&[(key, value)]);
        assert_eq!(status, Some(1), "{key}={value}: {said}");
    }
    let (status, said) = check(&[("DIVVY_DEFAULT_SLICE", "4GiB"), ("DIVVY_USER_MEMORY", "2GiB")]);
    assert!(
        status == Some(1) && said.contains("no user would get a default slice"),
        "{said}"
    );
}
