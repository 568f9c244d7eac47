//! What `divvy container oci-runtime` makes of a container's configuration: of devices of every CDI file that is golden.
//! `cargo xtask oracle` has the crate container-device-interface do the same, and compares.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use divvy_container::cdi::{self, DeviceNode, Spec};
use divvy_container::oci;
use divvy_tests::golden::golden;
use serde_json::{Value, json};

/// A container's configuration in the shape in which podman 4.3 writes it, with something of everything that is added to.
fn container() -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0, "additionalGids": [10]},
            "args": ["sh"],
            "cwd": "/",
            "env": ["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=all"],
        },
        "root": {"path": "/rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/etc/ld.so.preload", "type": "bind", "source": "/somebodys", "options": ["bind"]},
        ],
        "linux": {
            "devices": [{"path": "/dev/nvidiactl", "type": "c", "major": 1, "minor": 9}],
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
        },
    })
}

/// Nodes that every machine has, with one mode and one owner everywhere, in the places of a GPU's. `/dev/null` is not
/// among them: a container's runtime may give its standard input, which it often is, to the container's user.
fn with_nodes_of_everybody(spec: &mut Spec) {
    let everybodys = ["/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
    let mut known: BTreeMap<String, &str> = BTreeMap::new();
    let all = spec
        .devices
        .iter_mut()
        .map(|device| &mut device.container_edits)
        .chain([&mut spec.container_edits]);
    for node in all.flat_map(|edits| &mut edits.device_nodes) {
        let DeviceNode { path, host_path, .. } = node;
        let next = everybodys[known.len() % everybodys.len()];
        *host_path = (*known.entry(path.clone()).or_insert(next)).into();
    }
    // A node's place on the host came with 0.5.0.
    let Spec {
        kind,
        devices,
        container_edits,
        ..
    } = spec.clone();
    *spec = Spec::new(&kind, devices, container_edits);
}

/// The configuration with these devices of the file.
fn after(spec: &Spec, names: &[&str]) -> Value {
    let mut config = container();
    let devices = names
        .iter()
        .map(|name| spec.devices.iter().find(|device| device.name == **name));
    let devices = devices.map(|device| &device.expect("a device").container_edits);
    for edits in std::iter::once(&spec.container_edits).chain(devices) {
        oci::apply(&mut config, edits).expect("applied");
    }
    config
}

#[test]
fn injected() {
    let golden_files = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/cdi");
    let mut files: Vec<PathBuf> = std::fs::read_dir(golden_files)
        .expect("golden files")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(files.len() >= 16, "all kinds and versions: {files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a golden file");
        let mut spec = cdi::parse(&file, &text).expect("a CDI file");
        with_nodes_of_everybody(&mut spec);
        let names: Vec<&str> = spec.devices.iter().map(|device| &*device.name).collect();
        // The first, the first two together, and the last, which is `all` where there is such.
        let mut requests = vec![names[..1].to_vec()];
        if let [one, two, ..] = names[..] {
            requests.push(vec![one, two]);
            requests.push(names[names.len() - 1..].to_vec());
        }
        let requests: Vec<Value> = requests
            .iter()
            .map(|names| {
                let devices: Vec<String> = names.iter().map(|name| format!("{}={name}", spec.kind)).collect();
                json!({"devices": devices, "after": after(&spec, names)})
            })
            .collect();
        let case = json!({"before": container(), "cdi": spec, "requests": requests});
        let name = file.file_name().expect("a name").to_string_lossy();
        golden(&format!("oci/{name}"), &format!("{case:#}\n"));
    }
}
