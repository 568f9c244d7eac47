//! `divvy mig` away from a machine with MIG: tables, plans, refusals.

mod common;

use common::Host;

#[test]
fn products_and_plans_need_no_machine() {
    let host = Host::new();
    let list = host.json(&["mig", "list", "--product", "a30"]);
    assert_eq!(list["items"][0]["profiles"][0]["name"], "1g.6gb");
    let words = ["mig", "plan", "--product", "a30", "--want", "14,14,14,14"];
    let plan = host.json(&words);
    assert_eq!(plan["cannot_fit"], serde_json::Value::Array(Vec::new()));
    assert_eq!(
        plan["items"][0]["after"],
        "[1g.6gb   ][1g.6gb   ][1g.6gb   ][1g.6gb   ]"
    );
    // The same words on an A100, where 14 is a 2g: the fourth does not fit, and the exit status says so.
    let output = host.finish(&["mig", "plan", "--product", "a100-40gb", "--want", "14,14,14,14"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("cannot fit 14: the devices are full"), "{text}");
    let (status, said) = host.refused(&["mig", "plan", "--product", "l4", "--want", "1"]);
    assert!(status == 2 && said.contains("no product with MIG"), "{said}");
}

#[test]
fn what_is_wrong_with_a_request_is_told_first() {
    let host = Host::new();
    let (status, said) = host.refused(&[
        "mig",
        "apply",
        "--device",
        "0",
        "--instances",
        "1g.10gb:x",
        "--dry-run",
    ]);
    assert!(status == 2 && said.contains("D0081"), "{said}");
    let file = host.folder().join("mig.yaml");
    std::fs::write(&file, "version: v9\nmig-configs: {}\n").expect("a file");
    let (status, said) = host.refused(&["mig", "apply", "--file", file.to_str().expect("a path"), "--yes"]);
    assert!(status == 2 && said.contains("version `v9`"), "{said}");
    let (status, _) = host.refused(&["mig", "apply"]);
    assert_eq!(status, 2);
}
