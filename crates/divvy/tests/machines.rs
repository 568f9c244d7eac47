//! `divvy devices`, `topology` and `env` on captured machines.

mod common;

use common::Host;
use divvy_host::built::Built;

#[test]
fn a_captured_machine_is_shown_in_the_place_of_this_one() {
    let host = Host::new();
    let built = Built::mi300x(host.folder().join("mi300x"), 8);
    let root = built.root().to_str().expect("a path").to_owned();
    let devices = host.json(&["devices", "--sysroot", &root]);
    let items = devices["items"].as_array().expect("a list");
    assert_eq!(items.len(), 64);
    assert_eq!(items[9]["hardware"]["partition"]["compute"], "CPX");
    assert_eq!(items[9]["index"], 9);
    let wide = host.text(&["devices", "--sysroot", &root, "-o", "wide"]);
    assert!(
        wide.contains("amdgpu") && wide.contains("gen5 x16") && wide.contains("CPX/NPS4"),
        "{wide}"
    );
    let topology = host.json(&["topology", "--sysroot", &root]);
    assert_eq!(topology["items"][0]["links"][8], "xgmi");
    let set = host.text(&["env", "set", "--devices", "63,9", "--sysroot", &root]);
    assert!(
        set.starts_with("export ROCR_VISIBLE_DEVICES='63,9'\nexport HIP_VISIBLE_DEVICES='0,1'\n"),
        "{set}"
    );

    let built = Built::passed_through(host.folder().join("vfio"));
    let root = built.root().to_str().expect("a path").to_owned();
    let wide = host.text(&["devices", "--sysroot", &root, "-o", "wide"]);
    assert!(
        wide.contains("vfio-pci") && wide.contains("NVIDIA L40S"),
        "{wide}"
    );
    let (status, said) = host.refused(&[
        "env",
        "set",
        "--devices",
        "0",
        "--for",
        "cuda",
        "--sysroot",
        &root,
    ]);
    assert!(
        status == 1 && said.contains("cuda does not see device 0"),
        "{said}"
    );
    let (status, said) = host.refused(&["devices", "--sysroot", "/nonexistent"]);
    assert!(status == 2 && said.contains("no folder"), "{said}");
}

#[test]
fn partitions_and_masks_of_a_captured_machine() {
    let host = Host::new();
    let built = Built::mi300x(host.folder().join("mi300x"), 1);
    let root = built.root().to_str().expect("a path").to_owned();
    let list = host.json(&["partition", "list", "--sysroot", &root]);
    assert_eq!(list["items"][7]["compute"], "SPX");
    let (status, said) = host.refused(&["partition", "set", "CPX", "--sysroot", &root]);
    assert!(status == 2 && said.contains("--dry-run"), "{said}");
    let dry = host.text(&["partition", "set", "CPX", "--dry-run", "--sysroot", &root]);
    assert_eq!(
        dry.lines().filter(|line| line.starts_with("would write")).count(),
        16
    );
    host.text(&["partition", "set", "CPX", "--yes", "--sysroot", &root]);
    let again = host.text(&["partition", "set", "CPX/NPS4", "--yes", "--sysroot", &root]);
    assert_eq!(again, "nothing to change\n");
    let set = [
        "env",
        "set",
        "--devices",
        "1,0",
        "--for",
        "rocm",
        "--compute",
        "50%",
        "--sysroot",
        &root,
    ];
    let text = host.text(&set);
    assert!(text.contains("HSA_CU_MASK='0:0-151;1:0-151'"), "{text}");
    let (status, said) = host.refused(&["env", "set", "--devices", "0", "--compute", "50%"]);
    assert!(status == 1 && said.contains("AMD"), "{said}");
}

#[test]
fn mps_and_virtual_gpus_say_what_is_not_there() {
    let host = Host::new();
    // An emulated device has an emulated daemon.
    assert!(
        host.text(&["mps", "start"])
            .starts_with("started the MPS daemon of GPU-")
    );
    assert!(
        host.text(&["mps", "limit", "--compute", "30%"])
            .starts_with("limited the clients of GPU-")
    );
    assert_eq!(host.json(&["mps", "status"])["running"], true);
    let (status, said) = host.refused(&["mps", "partition", "2"]);
    assert!(
        status == 1 && said.contains("refuses `sm_partition add"),
        "{said}"
    );
    assert!(
        host.text(&["mps", "stop"])
            .starts_with("ended the MPS daemon of GPU-")
    );
    assert_eq!(host.json(&["mps", "status"])["running"], false);
    let root = host.folder().to_str().expect("a path").to_owned();
    let list = host.json(&["vgpu", "list", "--sysroot", &root]);
    assert_eq!(list["items"], serde_json::Value::Array(Vec::new()));
    let output = host.finish(&["vgpu", "list", "--sysroot", &root]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("no device here offers"),
        "{said}"
    );
    let (status, said) = host.refused(&["vgpu", "free", "0000:01:00.0", "--sysroot", &root]);
    assert!(status == 1 && said.contains("no virtual GPU"), "{said}");
}
