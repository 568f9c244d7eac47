//! What `-o json` prints is what docs/schema says: every verb's real output, and what the schemas refuse.

mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use common::schema::complaints;
use common::{Host, until};
use serde_json::{Value, json};

/// The document that `divvy` with these words prints, on either stream; it must be as its kind's schema says.
fn checked(host: &Host, seen: &mut BTreeSet<String>, words: &[&str]) -> Value {
    let output = host.finish(&[&["-o", "json"], words].concat());
    let text = match output.stdout.is_empty() {
        false => output.stdout,
        true => output.stderr,
    };
    let document: Value = serde_json::from_slice(&text)
        .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", String::from_utf8_lossy(&text)));
    let kind = document["kind"].as_str().expect("a kind").to_owned();
    let wrong = complaints(&kind, &document);
    assert!(wrong.is_empty(), "{words:?}: {wrong:#?}");
    seen.insert(kind);
    document
}

/// What the agent answers over HTTP: the status and the body.
fn get(host: &Host, path: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(host.run_dir().join("agent.sock")).expect("it listens");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: divvy\r\nConnection: close\r\n\r\n"
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head
        .split(' ')
        .nth(1)
        .expect("a status")
        .parse()
        .expect("a number");
    (status, body.to_owned())
}

#[test]
fn a_path_that_there_is_not_is_not_found_and_health_is_a_word() {
    let host = Host::new();
    let _one = host.idle("one", "1GiB");
    assert_eq!(get(&host, "/healthz"), (200, "ok\n".into()));
    let (status, body) = get(&host, "/v1/nothing");
    assert!(
        status == 404 && body.contains("the agent knows no such request"),
        "{status}: {body}"
    );
}

#[test]
fn every_document_is_as_its_schema_says() {
    let host = Host::new();
    let mut seen = BTreeSet::new();
    for words in [
        &["devices"][..],
        &["ps"],
        &["topology"],
        &["history"],
        &["advise"],
        &["doctor"],
        &["config", "show"],
        &["explain"],
        &["explain", "D0031"],
        &["explain", "sharing"],
        &["env", "explain"],
        &["explain", "isolation"],
        &["mig", "list"],
        &["mps", "status"],
        &["partition", "list"],
        &["vgpu", "list"],
        &["vm", "status"],
        &["vm", "doctor"],
        &[
            "vm",
            "prepare",
            "--sysroot",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/hosts/passthrough"),
        ],
        &[
            "vm",
            "openstack",
            "check",
            "--api",
            "/dev/null",
            "--compute",
            "/dev/null",
        ],
        &["cdi", "list"],
        &["cdi", "generate", "--dry-run"],
        &["cdi", "validate"],
        &["k8s", "top"],
        &["run", "--dry-run", "--memory", "1GiB", "--", "true"],
        &["run", "--observe", "--dry-run", "--", "true"],
        &["emulate", "check", "--", "true"],
        &["emulate", "profile", "--", "true"],
        &["emulate", "trace", "--", "true"],
        &[
            "k8s",
            "plan",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/plan/small.yaml"),
        ],
    ] {
        checked(&host, &mut seen, words);
    }
    let _one = host.idle("one", "1GiB");
    for words in [
        &[
            "slice",
            "create",
            "lasting",
            "--memory",
            "2GiB",
            "--compute",
            "25%",
        ][..],
        &["slice", "list"],
        &["ps"],
        &["devices"],
        &["inspect", "one"],
        &["inspect", "absent"],
        &["kill", "one", "--dry-run"],
        &["agent", "status"],
        &["doctor"],
        &["ps", "--what"],
    ] {
        checked(&host, &mut seen, words);
    }
    // No verb prints this one; programs ask for it.
    let (status, compute) = get(&host, "/v1/compute");
    let compute: Value = serde_json::from_str(&compute).expect("a document");
    assert_eq!(
        (status, complaints("ComputeList", &compute)),
        (200, Vec::new()),
        "{compute}"
    );
    seen.insert("ComputeList".into());
    for line in host.text(&["-o", "json", "events"]).lines() {
        let event: Value = serde_json::from_str(line).expect("a line is a document");
        assert_eq!(complaints("Event", &event), [""; 0], "{line}");
        seen.insert("Event".into());
    }
    // Its contents come with the first look.
    until("a picture", || {
        let top = host.divvy(&["-o", "json", "top", "--interval", "100ms"]);
        let Some(line) = first_line(top) else { return false };
        let picture: Value = serde_json::from_str(&line).expect("a line is a document");
        assert_eq!(complaints("Usage", &picture), [""; 0], "{line}");
        seen.insert("Usage".into())
    });
    // Those that are left take a GPU or a container engine, or change the machine.
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    let all = std::fs::read_dir(folder).expect("a folder").flatten();
    let left: Vec<String> = all
        .filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned()))
        .filter(|kind| !seen.contains(kind))
        .collect();
    for kind in &left {
        let elsewhere = [
            "CdiSlice",
            "ContainerPlan",
            "EngineConfiguration",
            // `divvy selftest`, which the scenarios run.
            "KitReport",
            "MigChanges",
            "MigPlan",
        ];
        assert!(elsewhere.contains(&kind.as_str()), "nothing was seen of {kind}");
    }
}

fn first_line(mut command: std::process::Command) -> Option<String> {
    use std::io::BufRead;
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("a pipe");
    let read = std::io::BufReader::new(output).read_line(&mut line);
    let _ended = child.kill();
    let _reaped = child.wait();
    (read.is_ok() && !line.is_empty()).then_some(line)
}

#[test]
fn what_drifts_from_its_schema_is_refused() {
    let host = Host::new();
    let devices = checked(&host, &mut BTreeSet::new(), &["devices"]);
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut document = devices.clone();
        change(&mut document);
        complaints("DeviceList", &document)
    };
    assert_eq!(changed(&|_| {}), [""; 0]);
    let device = |document: &mut Value| document["items"][0].take();
    for (what, change) in [
        (
            "a new field",
            &(|one: &mut Value| one["colour"] = json!("green")) as &dyn Fn(&mut Value),
        ),
        ("a word that was another type", &|one| {
            one["memory_total_bytes"] = json!("80GiB");
        }),
        ("a number below nothing", &|one| one["index"] = json!(-1)),
        ("an unknown word", &|one| one["kind"] = json!("abacus")),
        ("a field that is gone", &|one| {
            drop(one.as_object_mut().expect("fields").remove("uuid"));
        }),
    ] {
        let complaints = changed(&|document| {
            let mut one = device(document);
            change(&mut one);
            document["items"][0] = one;
        });
        assert_eq!(complaints.len(), 1, "{what}: {complaints:?}");
    }
    assert_eq!(
        changed(&|document| document["apiVersion"] = json!("divvy/v2")).len(),
        1
    );
}
