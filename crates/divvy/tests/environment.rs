//! `divvy env`: what it prints, and that `explain` finds what `set` meant.

mod common;

use common::Host;
use serde_json::Value;

fn visible(document: &Value) -> Vec<(String, Vec<u64>)> {
    let items = document["items"].as_array().expect("a list");
    items
        .iter()
        .map(|item| {
            assert!(!item["steps"].as_array().expect("steps").is_empty());
            let list = item["visible"].as_array().expect("indices");
            (
                item["runtime"].as_str().expect("a name").to_owned(),
                list.iter().filter_map(Value::as_u64).collect(),
            )
        })
        .collect()
}

#[test]
fn what_set_prints_is_what_explain_finds_for_every_runtime() {
    let host = Host::new();
    let four = |words: &[&str]| {
        let output = host
            .divvy(words)
            .env("DIVVY_EMULATED", "h100*4")
            .output()
            .expect("divvy starts");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let json: Value = serde_json::from_str(&four(&["env", "set", "--devices", "2,0", "--format", "json"]))
        .expect("an object");
    assert_eq!(json["HIP_VISIBLE_DEVICES"], "0,1");
    assert_eq!(json["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
    let pairs: Vec<String> = json
        .as_object()
        .expect("an object")
        .iter()
        .map(|(name, value)| format!("{name}={}", value.as_str().expect("text")))
        .collect();
    let mut words = vec!["-o", "json", "env", "explain"];
    words.extend(pairs.iter().map(String::as_str));
    let explained: Value = serde_json::from_str(&four(&words)).expect("a document");
    assert_eq!(explained["kind"], "VisibleDevices");
    assert_eq!(explained["warnings"], Value::Array(Vec::new()));
    let names = ["rocm", "hip", "opencl", "openmp", "cuda"].map(|name| (name.to_owned(), vec![2, 0]));
    assert_eq!(visible(&explained), names);
    for (format, start) in [
        ("shell", "export ROCR_VISIBLE_DEVICES='GPU-"),
        ("docker", "--env ROCR_VISIBLE_DEVICES=GPU-"),
        ("systemd", "Environment=\"ROCR_VISIBLE_DEVICES=GPU-"),
    ] {
        let text = four(&[
            "env",
            "set",
            "--devices",
            "2,0",
            "--for",
            "rocm",
            "--format",
            format,
        ]);
        assert!(text.starts_with(start) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn an_environment_is_a_shells_a_processs_or_given() {
    let host = Host::new();
    let mut shell = host.divvy(&["-o", "json", "env", "explain", "--count", "3"]);
    let output = shell
        .env("ROCR_VISIBLE_DEVICES", "0x2")
        .output()
        .expect("divvy starts");
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(visible(&document)[0].1, [2]);

    let mut sleep = std::process::Command::new("sleep")
        .arg("60")
        .env("HIP_VISIBLE_DEVICES", "1")
        .spawn()
        .expect("sleep starts");
    let pid = sleep.id().to_string();
    // Until it is `sleep`, its environment is still the tester's.
    common::until("sleep has its own environment", || {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains("HIP_VISIBLE_DEVICES=1"))
    });
    let document = host.json(&["env", "explain", "--pid", &pid, "--count", "3"]);
    sleep.kill().expect("it is ours");
    sleep.wait().expect("it ends");
    assert_eq!(visible(&document)[1].1, [1]);

    let text = host.text(&["env", "explain", "--count", "3", "ROCR_VISIBLE_DEVICES=010"]);
    assert!(
        text.contains("rocm    no devices") && text.contains("there is no device 8"),
        "{text}"
    );
    assert!(text.contains("no isolation"), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let host = Host::new();
    let (status, said) = host.refused(&["env", "set", "--devices", "7"]);
    assert!(status == 1 && said.contains("D0011"), "{said}");
    let (status, said) = host.refused(&["env", "set", "--devices", "0,0"]);
    assert!(status == 2 && said.contains("named twice"), "{said}");
    let (status, said) = host.refused(&["env", "set", "--devices", "0", "--for", "metal"]);
    assert!(status == 2 && said.contains("no runtime"), "{said}");
    let (status, said) = host.refused(&["env", "explain", "ROCR"]);
    assert!(status == 2 && said.contains("KEY=VALUE"), "{said}");
    let (status, said) = host.refused(&["env", "explain", "--pid", "4194305"]);
    assert!(status == 2 && said.contains("no process"), "{said}");
}

#[test]
fn the_env_level_tells_every_runtime() {
    let host = Host::new();
    let mut words = vec!["run", "--dry-run", "--memory", "1GiB"];
    words.extend(["--isolation", "env", "--policy", "best-effort", "--", "true"]);
    let plan = host.json(&words);
    let environment = plan["environment"].as_object().expect("variables");
    let uuid = plan["device"]["uuid"].as_str().expect("a UUID");
    assert_eq!(environment["CUDA_VISIBLE_DEVICES"], uuid);
    assert_eq!(environment["HIP_VISIBLE_DEVICES"], "0");
    assert_eq!(environment["GPU_DEVICE_ORDINAL"], "0");
    assert!(
        environment["ROCR_VISIBLE_DEVICES"]
            .as_str()
            .expect("text")
            .starts_with("GPU-")
    );
    assert!(!environment.contains_key("DIVVY_SLICE"));
}

#[test]
fn variables_are_json_where_output_is() {
    let host = Host::new();
    let words = ["env", "set", "--devices", "1", "--count", "2", "--for", "cuda"];
    let variables = host.json(&words);
    let shown = variables["CUDA_VISIBLE_DEVICES"]
        .as_str()
        .expect("text")
        .to_owned();
    // A format that is named is meant.
    let shell = host.text(&[&["-o", "json"], &words[..], &["--format", "shell"]].concat());
    assert!(
        shell.contains(&format!("export CUDA_VISIBLE_DEVICES='{shown}'")),
        "{shell}"
    );
}
