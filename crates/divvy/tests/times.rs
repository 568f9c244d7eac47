//! Slices that end by the clock, and settings that an agent reads again.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use common::{Host, kill, until};

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
fn a_run_that_was_stopped_keeps_no_slice_beyond_its_time() {
    let host = Host::new();
    // One that serves its slice by itself, and one that has joined.
    host.text(&["slice", "create", "lesson", "--memory", "1GiB", "--ttl", "2s"]);
    let start = |words: &[&str]| {
        host.divvy(&[&["run"], words, &["--", "sleep", "1000"]].concat())
            .stderr(Stdio::null())
            .spawn()
            .expect("divvy starts")
    };
    let mut runs = [
        start(&["--slice", "lesson"]),
        start(&["--name", "own", "--memory", "1GiB", "--ttl", "2s"]),
    ];
    until("both are there", || {
        let slices = host.slices();
        let runs = |name: &str| {
            slices
                .iter()
                .any(|slice| slice["name"] == name && slice["state"] == "running")
        };
        runs("lesson") && runs("own")
    });
    runs.iter().for_each(|run| kill(run.id(), "STOP"));
    // Meanwhile the name is taken, and for how long is said.
    until("its time is over", || {
        kinds_of_events(&host)
            .iter()
            .filter(|kind| *kind == "slice_expired")
            .count()
            == 2
    });
    let (_, said) = host.refused(&["run", "--name", "own", "--memory", "1GiB", "--", "true"]);
    assert!(
        said.contains("error[D0021]") && said.contains("the name is free within 1"),
        "{said}"
    );
    until("both are gone", || host.slices().is_empty());
    for run in &mut runs {
        assert!(!run.wait().expect("it was killed").success());
    }
    host.text(&["run", "--name", "own", "--memory", "1GiB", "--", "true"]);
}

#[test]
fn no_time_is_no_time_for_a_program() {
    let host = Host::new();
    for words in [
        &["run", "--memory", "1GiB", "--ttl", "0s", "--", "true"][..],
        &["slice", "create", "a", "--memory", "1GiB", "--ttl", "0h"],
        &["slice", "create", "a", "--memory", "1GiB", "--idle-ttl", "0s"],
        &["slice", "create", "a", "--memory", "1GiB", "--ttl", "20ms"],
        &["container", "cdi", "slice", "--memory", "1GiB", "--ttl", "0s"],
    ] {
        let (_, said) = host.refused(words);
        assert!(
            said.contains("no time in which a program can run") && said.contains("hint: write 1s"),
            "{said}"
        );
    }
}

/// What the agent answers to a request of ours.
fn ask(host: &Host, method: &str, path: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(host.run_dir().join("agent.sock")).expect("it listens");
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: divvy\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

#[test]
fn a_slice_that_goes_with_another_process_may_idle_no_longer_for_that() {
    let host = Host::new();
    host.text(&["slice", "create", "kept", "--memory", "1GiB", "--idle-ttl", "2s"]);
    let answer = ask(&host, "POST", "/v1/slices/kept/attend", "{\"process\": 1}");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        host.text(&["inspect", "kept"])
            .contains("until process 1 has ended")
    );
    until("it is deleted", || host.slices().is_empty());
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
    write("user_slices = 2\nquantum = \"10ms\"\nidle_timeout = \"50s\"");
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

    let checked = text(&["config", "check"]).1;
    assert!(
        checked.contains("still has 60s for idle_timeout, not 50s"),
        "{checked}"
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
    assert_eq!(
        row(&shown, "idle_timeout"),
        ["idle_timeout", "50s", "60s"],
        "{shown}"
    );
    let told = host.text(&["events", "-o", "json"]);
    assert!(
        told.contains("when the agent starts again: idle_timeout, quantum"),
        "{told}"
    );
}

#[test]
fn a_reload_while_the_agent_starts_does_not_end_it() {
    let host = Host::new();
    std::fs::create_dir_all(host.run_dir()).expect("a folder");
    // It waits for the lock of an agent that is on its way out.
    let lock = std::fs::File::create(host.run_dir().join("agent.lock")).expect("a file");
    lock.lock().expect("free");
    let mut agent = host
        .divvy(&["agent", "serve"])
        .stderr(Stdio::null())
        .spawn()
        .expect("divvy starts");
    let waits = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", agent.id())).expect("it lives");
        let files = files
            .flatten()
            .filter_map(|file| std::fs::read_link(file.path()).ok());
        files.into_iter().any(|file| file.ends_with("agent.lock"))
    };
    until("it waits", waits);
    kill(agent.id(), "HUP");
    drop(lock);
    until("it serves, or has ended", || {
        host.run_dir().join("agent.sock").exists() || agent.try_wait().expect("ours").is_some()
    });
    until("the settings were read again", || {
        kinds_of_events(&host).contains(&"settings_reloaded".to_owned())
    });
    host.text(&["agent", "stop"]);
    agent.wait().expect("it has ended");
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
        ("DIVVY_USER_TTL", "0s"),
        ("DIVVY_IDLE_TTL", "10ms"),
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

#[test]
fn a_file_is_checked_as_a_service_s_agent_reads_it() {
    let host = Host::new();
    let file = host.folder().join("new.toml");
    let check = |text: &str, variable: &str| {
        std::fs::write(&file, text).expect("written");
        let words = ["config", "check", file.to_str().expect("text")];
        // What this user has set counts for this user's commands.
        let output = host
            .divvy(&words)
            .env("DIVVY_USER_SLICES", variable)
            .output()
            .expect("divvy starts");
        (
            output.status.code(),
            String::from_utf8(output.stderr).expect("text"),
        )
    };
    assert_eq!(check("user_slices = 3", "2").0, Some(0));
    let (status, said) = check("user_slices = 0", "2");
    assert!(
        status == Some(1) && said.contains("user_slices"),
        "hidden by the variable: {said}"
    );
    for (size, status) in [("0", 1), ("15MiB", 1), ("16MiB", 0)] {
        let (found, said) = check(&format!("worker_memory = \"{size}\""), "2");
        assert_eq!(found, Some(status), "{size}: {said}");
    }
    assert_eq!(check("user_memory = [", "2").0, Some(1));
    let (status, said) = host.refused(&["config", "check", "/nonexistent.toml"]);
    assert!(status == 2 && said.contains("there is no file"), "{said}");
}
