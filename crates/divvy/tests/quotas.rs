//! One card, thirty students: what one user may have, and the slice each gets without asking.

mod common;

use std::process::{Command, Stdio};

use common::{Host, until};

const GIB: u64 = 1 << 30;

/// `divvy` under settings that the agent, started by it, takes over.
fn with(host: &Host, settings: &[(&str, &str)], words: &[&str]) -> Command {
    let mut command = host.divvy(words);
    command.envs(settings.iter().copied());
    command
}

fn refused(mut command: Command) -> String {
    let output = command.output().expect("divvy starts");
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_user_has_so_much_and_no_more() {
    let host = Host::new();
    let settings = [("DIVVY_USER_MEMORY", "8GiB"), ("DIVVY_USER_SLICES", "2")];
    let made = with(&host, &settings, &["slice", "create", "a", "--memory", "6GiB"]).output();
    assert!(made.expect("divvy starts").status.success());
    let (_, said) = host.refused(&["run", "--memory", "3GiB", "--", "true"]);
    assert!(said.contains("error[D0017]: cannot reserve 3 GiB"), "{said}");
    assert!(said.contains("may have 8 GiB of it"), "{said}");
    assert!(said.contains("because: slice a holds 6 GiB"), "{said}");
    assert!(said.contains("hint: 2 GiB of that is left"), "{said}");
    let (status, said) = host.refused(&["resize", "a", "--memory", "9GiB"]);
    assert_eq!((status, said.contains("error[D0035]")), (1, true), "{said}");
    host.text(&["slice", "create", "b", "--memory", "1GiB"]);
    let (_, said) = host.refused(&["run", "--memory", "1GiB", "--", "true"]);
    assert!(
        said.contains("error[D0017]") && said.contains("2 slices"),
        "{said}"
    );
    host.text(&["resize", "a", "--memory", "7GiB"]);
    // A run inside a slice takes its memory from the slice.
    host.text(&["run", "--slice", "a", "--", "true"]);
}

#[test]
fn each_user_has_a_slice_that_need_not_be_asked_for() {
    let host = Host::new();
    let settings = [("DIVVY_DEFAULT_SLICE", "2GiB")];
    let run = || {
        with(&host, &settings, &["run", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("divvy starts")
    };
    // All at once: one of them makes it, all are in it.
    let mut runs: Vec<_> = (0..4).map(|_| run()).collect();
    until("four runs in one slice", || {
        let slices = host.slices();
        slices.len() == 1 && slices[0]["runs"].as_array().is_some_and(|runs| runs.len() == 4)
    });
    let slice = &host.slices()[0];
    assert_eq!(
        (&slice["lasting"], &slice["memory_limit_bytes"]),
        (&true.into(), &(2 * GIB).into())
    );
    let user = Command::new("id").arg("-un").output().expect("id runs").stdout;
    assert_eq!(slice["name"], String::from_utf8(user).expect("text").trim());
    for run in &mut runs {
        drop(run.stdin.take());
        assert!(run.wait().expect("divvy ends").success());
    }
    assert_eq!(host.slices().len(), 1, "it stays");
    // An explicit request gets what it asks for.
    host.text(&["run", "--memory", "1GiB", "--", "true"]);
}

#[test]
fn settings_that_make_no_sense_are_said_before_an_agent_is_started() {
    let host = Host::new();
    for (name, value, what) in [
        ("DIVVY_MAX_SLICES", "0", "at least 1"),
        ("DIVVY_MAX_SLICES", "many", "whole number"),
        ("DIVVY_USER_SLICES", "0", "at least 1"),
        ("DIVVY_USER_MEMORY", "8", "no unit"),
        ("DIVVY_DEFAULT_SLICE", "0%", "zero"),
        ("DIVVY_OVERSUBSCRIPTION", "0.5", "from 1 to 1000"),
        ("DIVVY_IDLE_TIMEOUT", "soon", "a duration"),
        ("DIVVY_CONTEXT_MEMORY", "512", "no unit"),
        ("DIVVY_EMULATED", "h1000", "choose one of h100"),
        (
            "DIVVY_EMULATED",
            "h100,kernels=fast",
            "write interpreted or compiled",
        ),
    ] {
        for words in [
            &["run", "--memory", "1GiB", "--", "true"][..],
            &["slice", "create", "a", "--memory", "1GiB"],
        ] {
            let said = refused(with(&host, &[(name, value)], words));
            assert!(
                said.contains("error[D000") && said.contains(what),
                "{name}={value}: {said}"
            );
            assert!(said.contains(&format!("comes from {name}")), "{said}");
        }
    }
    assert!(!host.run_dir().join("agent.log").exists(), "no agent was started");
}

#[test]
fn visible_devices_are_the_ones_there_are_to_choose_from() {
    let host = Host::new();
    let divvy = |visible: &str, words: &[&str]| {
        let mut command = host.divvy(words);
        command
            .env("DIVVY_EMULATED", "h100*3")
            .env("CUDA_VISIBLE_DEVICES", visible);
        command
    };
    let listed = host
        .divvy(&["devices", "-q"])
        .env("DIVVY_EMULATED", "h100*3")
        .output()
        .expect("divvy starts");
    let uuids: Vec<String> = String::from_utf8(listed.stdout)
        .expect("text")
        .lines()
        .map(str::to_owned)
        .collect();
    let shown = |visible: &str, words: &[&str]| {
        let words = [
            &["run", "--memory", "1GiB"][..],
            words,
            &["--", "printenv", "CUDA_VISIBLE_DEVICES"],
        ]
        .concat();
        let output = divvy(visible, &words).output().expect("divvy starts");
        assert!(output.status.success(), "{visible} {words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    assert_eq!(shown("2,0", &[]), uuids[2], "the first that is shown");
    assert_eq!(shown("2,0", &["--device", "0"]), uuids[0]);
    assert_eq!(shown(&uuids[1], &[]), uuids[1]);
    assert_eq!(shown(&uuids[1][..12], &["--device", "1"]), uuids[1], "a prefix");
    for (visible, words) in [
        ("2,0", &["--device", "1"][..]),
        ("", &[]),
        ("-1", &[]),
        ("7", &["--device", "0"]),
    ] {
        let words = [&["run", "--memory", "1GiB"][..], words, &["--", "true"]].concat();
        let said = refused(divvy(visible, &words));
        assert!(
            said.contains("error[D0018]") && said.contains("hint: "),
            "{visible}: {said}"
        );
    }
    // A full device is passed over in favour of the next one that is shown.
    let mut holder = divvy("2", &["run", "--memory", "100%", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("divvy starts");
    until("it is held", || {
        host.slices().iter().any(|slice| slice["state"] == "running")
    });
    assert_eq!(shown("2,0", &[]), uuids[0]);
    drop(holder.stdin.take());
    holder.wait().expect("divvy ends");
}

#[test]
fn a_context_is_inside_its_slice() {
    let host = Host::new();
    let context = ("DIVVY_CONTEXT_MEMORY", "512MiB");
    for words in [
        &["run", "--memory", "511MiB", "--", "true"][..],
        &["slice", "create", "small", "--memory", "511MiB"],
    ] {
        let said = refused(with(&host, &[context], words));
        assert!(
            said.contains("error[D0025]") && said.contains("ask for at least 512 MiB"),
            "{said}"
        );
    }
    // Nothing is set aside beside it: the device is exactly full.
    for half in ["a", "b"] {
        let words = &["slice", "create", half, "--memory", "50%"];
        let made = with(&host, &[context], words).output().expect("divvy starts");
        assert!(made.status.success(), "{made:?}");
    }
    assert!(
        host.slices()
            .iter()
            .all(|slice| slice["context_bytes"] == 512 << 20)
    );
    let said = refused(with(&host, &[context], &["resize", "a", "--memory", "511MiB"]));
    assert!(said.contains("error[D0025]"), "{said}");
}

/// docs/one-card-thirty-students.md.
fn page() -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/one-card-thirty-students.md"
    );
    std::fs::read_to_string(path).expect("the page")
}

#[test]
fn what_the_page_says_works_in_its_order() {
    let page = page();
    // What root does once, and an agent that two users share, are tried by `attacks::students`.
    let commands: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("$ "))
        .filter(|line| line.starts_with("divvy "))
        .collect();
    let of_file = page
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let settings: Vec<&str> = of_file.expect("settings").lines().collect();
    assert_eq!(
        (commands.len(), settings.len()),
        (8, 9),
        "{commands:?} {settings:?}"
    );
    let of_several = |line: &&str| !line.starts_with("run_dir") && !line.starts_with("admit_others");
    let settings: Vec<&str> = settings.into_iter().filter(of_several).collect();
    let host = Host::new();
    let folder = host.folder().join("config/divvy");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("config.toml"), settings.join("\n")).expect("written");
    for command in commands {
        // The class's programs are not here.
        let words = command.split(' ').skip(1);
        let words = words.filter(|word| !word.ends_with(".py"));
        let words: Vec<&str> = words
            .map(|word| if word == "python" { "true" } else { word })
            .collect();
        host.text(&words);
    }
    // The slice of a run that asked for nothing stays; what was for once, or was deleted, does not.
    let slices = host.slices();
    assert_eq!(slices.len(), 1, "{slices:?}");
    assert_eq!(slices[0]["memory_limit_bytes"], 2 * GIB);
    let (_, said) = host.refused(&["run", "--memory", "3GiB", "--", "true"]);
    assert!(
        said.contains("2 GiB of that is left") && said.contains("divvy slice delete"),
        "{said}"
    );
}
