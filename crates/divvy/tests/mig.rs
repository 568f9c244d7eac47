//! `divvy gpu mig` away from a machine with MIG, on emulated devices, and over an NVML that is loaded as NVIDIA's would be.

mod common;

use std::process::Stdio;

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

#[test]
fn compute_instances_are_planned_made_shown_and_removed() {
    let host = Host::new();
    let words = [
        "mig",
        "plan",
        "--product",
        "h100",
        "--want",
        "1c.3g.40gb,2c.3g.40gb,1c.7g.80gb",
    ];
    let output = host.finish(&words);
    assert_eq!(output.status.code(), Some(1), "a 7g beside a 3g fits no H100");
    let words = [
        "mig",
        "plan",
        "--product",
        "h100",
        "--want",
        "1c.3g.40gb,2c.3g.40gb,1c.3g.40gb",
    ];
    let plan = host.json(&words);
    assert_eq!(
        plan["items"][0]["after"]
            .as_str()
            .expect("a map")
            .matches("[3g.40gb")
            .count(),
        2
    );
    let apply = |list: &str| host.text(&["mig", "apply", "--device", "0", "--yes", "--instances", list]);
    let said = apply("1c.3g.40gb,2c.3g.40gb,3g.40gb");
    assert!(said.contains(" with 2c.3g.40gb, 1c.3g.40gb\n"), "{said}");
    let list = host.json(&["mig", "list"]);
    let instances = list["items"][0]["instances"].as_array().expect("instances");
    let names: Vec<Vec<&str>> = instances
        .iter()
        .map(|instance| {
            let compute = instance["compute"].as_array().expect("compute instances");
            compute
                .iter()
                .map(|one| one["profile"].as_str().expect("a name"))
                .collect()
        })
        .collect();
    assert!(
        names.contains(&vec!["2c.3g.40gb", "1c.3g.40gb"]) && names.contains(&vec!["3g.40gb"]),
        "{names:?}"
    );
    let text = host.text(&["mig", "list"]);
    assert!(text.contains("    compute 0   2c.3g.40gb      free"), "{text}");
    let devices = host.json(&["devices"]);
    let profiles: Vec<&str> = devices["items"]
        .as_array()
        .expect("devices")
        .iter()
        .filter_map(|device| device["hardware"]["mig_instance"]["profile"].as_str())
        .collect();
    assert_eq!(profiles.len(), 3, "{profiles:?}");
    assert!(profiles.contains(&"1c.3g.40gb"), "{profiles:?}");
    // To shrink one is to remove it: that wants a yes.
    let (status, said) = host.refused(&["mig", "apply", "--device", "0", "--instances", "3g.40gb,3g.40gb"]);
    assert!(status == 2 && said.contains("--yes"), "{said}");
    let said = apply("3g.40gb,3g.40gb");
    assert!(
        said.contains("remove 2c.3g.40gb (compute instance 0 of instance")
            && said.contains("make 3g.40gb in instance"),
        "{said}"
    );
    let said = apply("3g.40gb,3g.40gb");
    assert!(said.starts_with("nothing to change"), "{said}");
    let (status, said) = host.refused(&[
        "mig",
        "apply",
        "--device",
        "0",
        "--yes",
        "--instances",
        "3c.4g.40gb",
    ]);
    assert!(status == 2 && said.contains("1c, 2c, 4c"), "{said}");
}

#[test]
fn a_library_named_by_divvy_nvml_is_driven_as_nvidias() {
    let host = Host::new();
    let library = common::divvy().with_file_name("libdivvy_emulated_nvml.so");
    let run = |words: &[&str]| {
        let mut command = host.divvy(words);
        let output = command
            .env_remove("DIVVY_EMULATED")
            .env("DIVVY_NVML", &library)
            .output()
            .expect("divvy starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (
            output.status.code(),
            String::from_utf8(output.stdout).expect("text"),
            said,
        )
    };
    let json = |words: &[&str]| -> serde_json::Value {
        let (status, text, said) = run(&[&["-o", "json"], words].concat());
        assert_eq!(status, Some(0), "{said}");
        serde_json::from_str(&text).expect("JSON")
    };
    let list = json(&["mig", "list"]);
    assert_eq!(list["items"][0]["mig_mode"], false);
    let words = [
        "mig",
        "apply",
        "--device",
        "0",
        "--yes",
        "--instances",
        "1c.3g.40gb:4,2c.3g.40gb:4,2g.20gb",
    ];
    let (status, _, said) = run(&words);
    assert_eq!(status, Some(0), "{said}");
    let devices = json(&["devices"]);
    let items = devices["items"].as_array().expect("devices");
    assert!(
        items[0]["kind"] == "gpu" && items[0]["hardware"]["mig_mode"] == true,
        "{}",
        items[0]
    );
    let mut seen: Vec<(u64, u64, &str)> = items[1..]
        .iter()
        .map(|device| {
            let place = &device["hardware"]["mig_instance"];
            assert_eq!(device["kind"], "mig");
            (
                place["gpu_instance"].as_u64().expect("an id"),
                place["compute_instance"].as_u64().expect("an id"),
                place["profile"].as_str().expect("a profile"),
            )
        })
        .collect();
    seen.sort_unstable();
    let profiles: Vec<&str> = seen.iter().map(|(.., profile)| *profile).collect();
    assert_eq!(profiles, ["2c.3g.40gb", "1c.3g.40gb", "2g.20gb"], "{seen:?}");
    assert!(
        seen[0].0 == seen[1].0 && seen[0].1 != seen[1].1 && seen[2].0 > 0,
        "{seen:?}"
    );
    let (status, text, said) = run(&["env", "explain", "CUDA_VISIBLE_DEVICES=0"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(
        text.contains("its GPU is in MIG mode, and its first instance is taken"),
        "{text}"
    );
}

#[test]
fn of_several_at_once_one_after_the_other_is_done() {
    let host = Host::new();
    let ones = ["1g.10gb"; 7].join(",");
    for _ in 0..4 {
        let started: Vec<_> = ["3g.40gb,3g.40gb", "7g.80gb", &ones]
            .map(|list| {
                let words = ["mig", "apply", "--device", "0", "--yes", "--instances", list];
                let mut command = host.divvy(&words);
                command
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("divvy starts")
            })
            .into();
        for child in started {
            let output = child.wait_with_output().expect("it ends");
            assert!(output.status.success(), "{output:?}");
        }
        let list = host.json(&["mig", "list"]);
        let held = list["items"][0]["instances"].as_array().expect("instances");
        let names: Vec<&str> = held
            .iter()
            .map(|one| one["profile"].as_str().expect("a name"))
            .collect();
        let whole = [&["3g.40gb"; 2][..], &["7g.80gb"], &["1g.10gb"; 7]];
        assert!(whole.contains(&&names[..]), "{names:?}");
    }
}

#[test]
fn names_do_not_drive_the_terminal_and_an_empty_list_divides_nothing() {
    let host = Host::new();
    let words = ["mig", "plan", "--product", "h100", "--want", "1g\x1b[2J"];
    let output = host.finish(&words);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("cannot fit 1g?[2J"), "{text:?}");
    // As from a shell's variable that is not set.
    for verb in [
        &["apply", "--device", "0", "--yes", "--instances"][..],
        &["plan", "--want"],
    ] {
        let (status, said) = host.refused(&[&["mig"], verb, &[""]].concat());
        assert!(status == 2 && said.contains("D0081"), "{said}");
    }
    assert_eq!(host.json(&["mig", "list"])["items"][0]["mig_mode"], false);
}
