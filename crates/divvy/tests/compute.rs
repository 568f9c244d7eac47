//! What a slice is promised of compute: asked for, refused, changed, shown.

mod common;

use std::process::{Child, Stdio};

use common::{Host, until};

fn create(host: &Host, name: &str, words: &[&str]) -> serde_json::Value {
    host.json(&[&["slice", "create", name, "--memory", "1GiB"], words].concat())
}

fn refused(host: &Host, name: &str, words: &[&str]) -> String {
    host.refused(&[&["slice", "create", name, "--memory", "1GiB"], words].concat())
        .1
}

/// The last word of this slice's row, in the column of shares.
fn shown(host: &Host, name: &str) -> String {
    let table = host.text(&["ps"]);
    let (head, rows) = table.split_once('\n').expect("a head");
    let (from, to) = (
        head.find("SHARE").expect("a column"),
        head.find("AGE").expect("one"),
    );
    let row = rows.lines().find(|row| row.starts_with(name)).expect("a row");
    // AGE is set to the right of its column.
    let words: Vec<&str> = row[from..to].split("  ").collect();
    words[0].trim().to_owned()
}

#[test]
fn promises_are_kept_or_not_made() {
    let host = Host::new();
    create(&host, "a", &["--compute", "60%", "--cap", "hard"]);
    let made = create(&host, "b", &["--compute", "10%"]);
    assert_eq!(
        (&made["compute"], &made["compute_cap"]),
        (&1000.into(), &serde_json::Value::Null)
    );
    // Soft or hard, what is promised already is not promised again.
    for words in [
        &["--compute", "31%"][..],
        &["--compute", "40%", "--cap", "hard"],
        &["--compute", "30.01%", "--class", "latency"],
    ] {
        let said = refused(&host, "c", words);
        assert!(said.contains("error[D0037]: cannot promise"), "{words:?}: {said}");
        assert!(
            said.contains("because: slice a has 60% hard, slice b has 10%"),
            "{said}"
        );
        assert!(said.contains("hint: 30% is free"), "{said}");
    }
    create(&host, "c", &["--compute", "30%", "--class", "latency"]);
    create(&host, "d", &["--weight", "50"]);
    create(&host, "e", &[]);
    let expected = [
        ("a", "60% hard"),
        ("b", "10%"),
        ("c", "30% latency"),
        ("d", "weight 50"),
        ("e", "-"),
    ];
    for (name, share) in expected {
        assert_eq!(shown(&host, name), share, "{name}");
    }
    assert!(host.text(&["inspect", "a"]).contains("60% hard"));
    let devices = host.json(&["devices"]);
    assert_eq!(devices["items"][0]["sharing"]["compute_promised_ratio"], 1.0);
    // The share of an ended slice is free again.
    host.text(&["slice", "delete", "a", "c"]);
    create(&host, "f", &["--compute", "90%", "--cap", "hard"]);
}

#[test]
fn soft_shares_alone_may_be_oversold() {
    let host = Host::new();
    for name in ["a", "b", "c"] {
        create(&host, name, &["--compute", "70%"]);
    }
    let said = refused(&host, "d", &["--compute", "1%", "--cap", "hard"]);
    assert!(
        said.contains("error[D0037]") && said.contains("hint: nothing is free"),
        "{said}"
    );
    let (_, said) = host.refused(&["resize", "a", "--class", "latency"]);
    assert!(said.contains("error[D0037]"), "{said}");
    assert_eq!(shown(&host, "a"), "70%", "a refusal changes nothing");
}

#[test]
fn invalid_terms_are_refused() {
    let host = Host::new();
    for (words, code, what) in [
        (&["--compute", "0%"][..], "D0002", "zero"),
        (&["--compute", "101%"], "D0002", "100%"),
        (&["--compute", "30"], "D0002", "30%"),
        (&["--compute", "-5%"], "D0002", "-5"),
        (&["--cap", "hard"], "D0038", "--compute 30%"),
        (&["--class", "latency"], "D0038", "--compute 30%"),
        (&["--weight", "5", "--cap", "hard"], "D0038", "--compute 30%"),
        (&["--cap", "firm"], "D0001", "soft or hard"),
        (&["--class", "fast"], "D0001", "latency or best-effort"),
        (&["--weight", "0"], "D0001", "from 1 to 10000"),
        (&["--weight", "5", "--compute", "5%"], "D0001", "--compute"),
    ] {
        let said = refused(&host, "a", words);
        assert!(
            said.contains(&format!("error[{code}]")) && said.contains(what),
            "{words:?}: {said}"
        );
    }
    let run = |words: &[&str]| host.refused(&[&["run"], words, &["--", "true"]].concat()).1;
    let said = run(&["--isolation", "env", "--compute", "30%"]);
    assert!(
        said.contains("error[D0022]: the `env` isolation keeps no program"),
        "{said}"
    );
    assert!(run(&["--whole", "--cap", "hard"]).contains("error[D0001]"));
    assert!(host.slices().is_empty());
    let output = host.finish(&[
        "run",
        "--isolation",
        "env",
        "--compute",
        "30%",
        "--policy",
        "best-effort",
        "--",
        "true",
    ]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("not enforced: the `env` isolation"),
        "{said}"
    );
}

#[test]
fn a_live_slice_changes_its_terms() {
    let host = Host::new();
    let _tenant = host.idle("train", "1GiB");
    create(&host, "other", &["--compute", "50%", "--cap", "hard"]);
    let (status, said) = host.refused(&["resize", "train"]);
    assert_eq!(
        (status, said.contains("nothing was said to change")),
        (2, true),
        "{said}"
    );
    let said = host.text(&["resize", "train", "--compute", "40%"]);
    assert_eq!(said, "train went from compute - to 40%\n");
    assert_eq!(
        host.slice("train")["memory_limit_bytes"],
        1_u64 << 30,
        "memory stays as it is"
    );
    let said = host.text(&["resize", "train", "--cap", "hard", "--dry-run"]);
    assert_eq!(said, "train would go from compute 40% to 40% hard\n");
    host.text(&["resize", "train", "--cap", "hard", "--memory", "2GiB"]);
    assert_eq!(shown(&host, "train"), "40% hard");
    // Its own 40 % is not in its way.
    host.text(&["resize", "train", "--compute", "50%"]);
    let (_, said) = host.refused(&["resize", "train", "--compute", "51%"]);
    assert!(
        said.contains("error[D0037]") && said.contains("50% is free"),
        "{said}"
    );
    let (_, said) = host.refused(&["resize", "train", "--weight", "50"]);
    assert!(said.contains("error[D0038]"), "a hard cap is no weight: {said}");
    // A restarted agent knows what was recorded.
    host.kill_agent();
    assert_eq!(shown(&host, "train"), "50% hard");
    let said = host.text(&["resize", "train", "--weight", "50", "--cap", "soft"]);
    assert_eq!(said, "train went from compute 50% hard to weight 50\n");
}

#[test]
fn a_user_is_promised_so_much_and_no_more() {
    let host = Host::new();
    let made = host
        .divvy(&["slice", "create", "a", "--memory", "1GiB", "--compute", "20%"])
        .env("DIVVY_USER_COMPUTE", "30%")
        .output()
        .expect("divvy starts");
    assert!(made.status.success(), "{made:?}");
    let said = refused(&host, "b", &["--compute", "11%"]);
    assert!(said.contains("error[D0017]: cannot promise 11%"), "{said}");
    assert!(
        said.contains("because: slice a has 20%") && said.contains("hint: 10% of that is left"),
        "{said}"
    );
    let (_, said) = host.refused(&["resize", "a", "--compute", "31%"]);
    assert!(said.contains("error[D0035]"), "never: {said}");
    create(&host, "b", &["--compute", "10%"]);
    create(&host, "c", &["--weight", "100"]);
}

#[test]
fn who_waits_for_a_share_gets_it_when_it_is_free() {
    let host = Host::new();
    create(&host, "a", &["--compute", "80%", "--cap", "hard"]);
    let mut waiter: Child = host
        .divvy(&[
            "run",
            "--wait",
            "--name",
            "b",
            "--memory",
            "1GiB",
            "--compute",
            "30%",
            "--",
            "sleep",
            "600",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(waiter.stderr.take().expect("piped")));
    let line = lines.next().expect("a line").expect("text");
    assert!(
        line.contains("waiting for room, place 1 of 1: cannot promise 30%"),
        "{line}"
    );
    assert!(line.contains("slice a has 80% hard"), "{line}");
    host.text(&["resize", "a", "--compute", "70%"]);
    until("the waiter has its share", || {
        host.slices()
            .iter()
            .any(|slice| slice["name"] == "b" && slice["state"] == "running")
    });
    waiter.kill().expect("killed");
    waiter.wait().expect("reaped");
}

#[test]
fn inside_a_slice_shares_are_of_that_slice() {
    let host = Host::new();
    // Each inner run prints what its own record says; the last one asks for more than is left.
    let script = r#"
        set -e
        "$DIVVY" run --name half --memory 1GiB --compute 50% -- sleep 600 &
        while [ -z "$("$DIVVY" ps -q | grep -x half)" ]; do sleep 0.05; done
        "$DIVVY" run --name more --memory 1GiB --compute 51% -- true || true
        "$DIVVY" run --name first --memory 1GiB --compute 10% --class latency -- true || true
        "$DIVVY" ps -o json
        kill %1; wait %1 || true
    "#;
    let output = host
        .divvy(&[
            "run",
            "--name",
            "outer",
            "--memory",
            "8GiB",
            "--compute",
            "40%",
            "--cap",
            "hard",
            "--",
            "bash",
            "-c",
            script,
        ])
        .env("DIVVY", common::divvy())
        .output()
        .expect("divvy starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("error[D0028]: cannot promise 51% of slice outer's compute"),
        "{said}"
    );
    assert!(said.contains("hint: 50% is free in it"), "{said}");
    assert!(
        said.contains("error[D0038]: nothing inside slice outer is latency-critical"),
        "{said}"
    );
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    let slices = list["items"].as_array().expect("items");
    let half = slices
        .iter()
        .find(|slice| slice["name"] == "half")
        .expect("there");
    assert_eq!(
        (&half["compute"], &half["compute_cap"]),
        (&5000.into(), &"hard".into()),
        "under its cap"
    );
}
