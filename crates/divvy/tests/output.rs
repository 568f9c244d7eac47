//! What people and programs read: help, lists, documents. Snapshots hold what is stable.

mod common;

use std::process::Command;

use common::{Host, until};
use serde_json::Value;

/// The keys of a document, nested ones with dots.
fn keys(value: &Value, prefix: &str, into: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = if prefix.is_empty() {
                    key.clone()
                } else {
                    format!("{prefix}.{key}")
                };
                into.push(path.clone());
                keys(value, &path, into);
            }
        }
        Value::Array(items) => {
            if let Some(first) = items.first() {
                keys(first, &format!("{prefix}[]"), into);
            }
        }
        _ => {}
    }
}

fn shape(value: &Value) -> String {
    let mut all = Vec::new();
    keys(value, "", &mut all);
    all.sort();
    all.join("\n")
}

#[test]
fn help_opens_with_examples() {
    for verb in [
        "",
        "run",
        "devices",
        "env",
        "topology",
        "mig",
        "mps",
        "nri",
        "partition",
        "vgpu",
        "cdi",
        "podman",
        "docker",
        "oci-runtime",
        "runtime",
        "ps",
        "top",
        "events",
        "slice",
        "inspect",
        "resize",
        "kill",
        "doctor",
        "agent",
        "gpu",
        "container",
        "remote",
        "guest",
        "vm",
        "k8s",
        "config",
        "explain",
        "completions",
        "man",
        "nvcc",
        "slurm",
        "emulate",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_divvy"));
        command
            .args((!verb.is_empty()).then_some(verb))
            .arg("--help")
            .env("COLUMNS", "100");
        let output = command.output().expect("divvy starts");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(
            output.status.success() && text.contains("Examples:\n"),
            "{verb}: {text}"
        );
        // The first screen says what Divvy is, and fits.
        match verb {
            "" => assert!(text.starts_with("Divvy ") && text.lines().count() <= 45, "{text}"),
            _ => assert!(text.starts_with("Examples:\n"), "{verb}: {text}"),
        }
        let name = if verb.is_empty() {
            "help".into()
        } else {
            format!("help_{verb}")
        };
        insta::assert_snapshot!(name, text);
    }
}

#[test]
fn documents_keep_their_shape() {
    let host = Host::new();
    let _tenant = host.idle("one", "1GiB");
    insta::assert_snapshot!("device_list", shape(&host.json(&["devices"])));
    insta::assert_snapshot!("slice_list", shape(&host.json(&["ps"])));
    insta::assert_snapshot!("agent_status", shape(&host.json(&["agent", "status"])));
    insta::assert_snapshot!("config_list", shape(&host.json(&["config", "show"])));
}

#[test]
fn kubectl_finds_the_verbs_of_a_cluster_under_its_plugins_name() {
    let host = Host::new();
    let link = host.folder().join("kubectl-divvy");
    std::os::unix::fs::symlink(common::divvy(), &link).expect("a link");
    // As kubectl starts it, with the words behind the plugin's name.
    let plugin = |words: &[&str]| {
        let mut command = std::process::Command::new(&link);
        command.args(words).env("DIVVY_RUN_DIR", host.run_dir());
        let output = command.env("DIVVY_EMULATED", "h100").output().expect("it starts");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(plugin(&["--help"]), host.text(&["k8s", "--help"]));
    let top = plugin(&["top", "-o", "json"]);
    assert!(top.contains("PodSliceList"), "{top}");
    assert_eq!(top, host.text(&["k8s", "top", "-o", "json"]));
}

#[test]
fn the_same_list_in_every_format() {
    let host = Host::new();
    let _tenant = host.idle("one", "1GiB");
    assert_eq!(host.text(&["ps", "-o", "name"]), "one\n");
    assert_eq!(host.text(&["ps", "-q"]), "one\n");
    let table = host.text(&["ps"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("NAME") && lines[1].starts_with("one "),
        "{table}"
    );
    assert!(lines[1].contains("1 GiB"), "{table}");
    let yaml = host.text(&["ps", "-o", "yaml"]);
    assert!(
        yaml.contains("kind: SliceList") && yaml.contains("name: one"),
        "{yaml}"
    );
    assert!(host.text(&["ps", "-o", "wide"]).contains("sleep 600"));
    assert!(host.text(&["inspect", "one"]).contains("not protected against"));
    assert!(host.text(&["inspect", "one"]).contains("policy       strict\n"));
    assert_eq!(host.json(&["inspect", "one"])["kind"], "Slice");
    let devices = host.json(&["devices"]);
    assert_eq!(devices["items"][0]["sharing"]["slice_count"], 1);
}

#[test]
fn settings_show_where_they_come_from() {
    let host = Host::new();
    let text = host.text(&["config", "show", "--origin"]);
    let line = text
        .lines()
        .find(|line| line.starts_with("emulated"))
        .expect("a line");
    assert!(
        line.contains("h100") && line.ends_with("DIVVY_EMULATED"),
        "{line}"
    );
    assert!(
        text.lines()
            .any(|line| line.starts_with("max_slices") && line.ends_with("default"))
    );
}

#[test]
fn every_code_has_a_story() {
    let host = Host::new();
    assert!(host.text(&["explain", "D0012"]).starts_with("D0012: "));
    assert!(host.text(&["explain", "d0012"]).starts_with("D0012: "));
    let (status, said) = host.refused(&["explain", "D9999"]);
    assert_eq!((status, said.contains("error[D0001]")), (2, true), "{said}");
    insta::assert_snapshot!("codes", host.text(&["explain"]));
}

#[test]
fn the_grammar_writes_completions_and_manual_pages() {
    let host = Host::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(host.text(&["completions", shell]).contains("divvy"), "{shell}");
    }
    let folder = host.folder().join("man");
    host.text(&["man", &folder.to_string_lossy()]);
    let page = std::fs::read_to_string(folder.join("divvy-run.1")).expect("a page");
    assert!(page.contains("memory"));
}

#[test]
fn watching_prints_again_and_again() {
    let host = Host::new();
    let mut child = host
        .divvy(&["ps", "--watch=50ms"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().expect("piped")));
    let lines: Vec<String> = lines.by_ref().take(5).map(|line| line.expect("text")).collect();
    // Each table says of when it is, and a line that is empty is between them.
    assert!(lines[0].ends_with('Z') && lines[3] > lines[0], "{lines:?}");
    assert!(
        lines[1].starts_with("NAME") && lines[2].is_empty() && lines[4] == lines[1],
        "{lines:?}"
    );
    child.kill().expect("killed");
    child.wait().expect("reaped");
}

#[test]
fn doctor_tries_a_program_in_a_slice() {
    let host = Host::new();
    // A look makes and starts nothing.
    let looked = host.json(&["doctor"]);
    let checks = looked["items"].as_array().expect("items");
    assert!(checks.iter().all(|check| check["check"] != "trial"), "{checks:?}");
    assert!(!host.run_dir().exists());
    let report = host.json(&["doctor", "--trial"]);
    let items = report["items"].as_array().expect("items");
    assert!(items.iter().all(|check| check["status"] != "fail"), "{items:?}");
    let trial = items
        .iter()
        .find(|check| check["check"] == "trial")
        .expect("a trial");
    assert!(
        trial["detail"].as_str().expect("text").contains("64MiB"),
        "{trial}"
    );
    until("nothing is left of it", || host.slices().is_empty());
}

#[test]
fn doctor_sees_what_is_wrong() {
    let host = Host::new();
    let output = host
        .divvy(&["doctor", "-o", "json"])
        .env("DIVVY_DRIVER", "/no/such.so")
        .output()
        .expect("starts");
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let items = report["items"].as_array().expect("items");
    let below = items
        .iter()
        .find(|check| check["category"] == "driver")
        .expect("a check");
    assert_eq!(below["status"], "fail");

    // A kernel without memory files, as some sandboxes are.
    let output = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "inject=memfd_create:error=ENOSYS",
        ])
        .arg(common::divvy())
        .args(["doctor", "-o", "json"])
        .env("DIVVY_RUN_DIR", host.run_dir())
        .env("DIVVY_EMULATED", "h100")
        .output();
    let required = std::env::var_os("DIVVY_REQUIRE_ALL").is_some();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            assert!(!required, "strace: {error}");
            return;
        }
    };
    let report: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let items = report["items"].as_array().expect("items");
    let pages = items
        .iter()
        .find(|check| check["check"] == "pages")
        .expect("a check");
    assert_eq!(
        (pages["status"].as_str(), output.status.code()),
        (Some("fail"), Some(1)),
        "{pages}"
    );
    assert!(
        pages["hint"]
            .as_str()
            .is_some_and(|hint| hint.contains("memfd_create"))
    );
}
