//! CDI files of each kind of device and slice, and of each version.

use std::path::Path;

use divvy_agent::container::{Below, Grant, Parts};
use divvy_container::cdi::{
    self, Device, DeviceNode, Edits, Emulated, Generated, IntelRdt, Mount, NetDevice, Options, Spec,
};
use divvy_host::built::Built;
use divvy_host::machine::{Sysroot, read};
use divvy_model::{DeviceKind, DeviceRecord, SliceRecord};
use divvy_tests::golden::golden;
use serde_json::json;

/// Two H100, the second in MIG mode with two instances, and NVIDIA's files where Debian puts them.
fn nvidia(root: &Path) -> Built {
    let built = Built::h100(root, 2);
    for (instance, minor) in [(1, 30), (5, 48)] {
        let mig = format!("proc/driver/nvidia/capabilities/gpu1/mig/gi{instance}");
        built.file(&format!("{mig}/access"), &format!("DeviceFileMinor: {minor}\n"));
        let own = format!("DeviceFileMinor: {}\n", minor + 1);
        built.file(&format!("{mig}/ci0/access"), &own);
    }
    for node in ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"] {
        built.file(&format!("dev/{node}"), "");
    }
    for program in ["nvidia-smi", "nvidia-cuda-mps-control"] {
        built.file(&format!("usr/bin/{program}"), "");
    }
    let folder = "usr/lib/x86_64-linux-gnu";
    for (name, version) in [
        ("libcuda.so", "1"),
        ("libnvidia-ml.so", "1"),
        ("libnvidia-ptxjitcompiler.so", "1"),
        ("libnvcuvid.so", "1"),
        ("libGLX_nvidia.so", "0"),
    ] {
        built.file(&format!("{folder}/{name}.550.54.15"), "");
        built.link(
            &format!("{folder}/{name}.{version}"),
            &format!("{name}.550.54.15"),
        );
    }
    built.file(&format!("{folder}/libnvidia-compiler.so.550.54.15"), "");
    built
}

/// The text of a machine's file, with its folder called /ROOT.
fn text(root: &Path, spec: &Spec) -> String {
    spec.to_json().replace(&root.display().to_string(), "/ROOT")
}

fn only(files: Vec<Generated>) -> Spec {
    assert_eq!(files.len(), 1);
    files.into_iter().next().expect("a file").spec
}

fn machine(build: impl FnOnce(&Path), options: &Options) -> String {
    let base = tempfile::tempdir().expect("a folder");
    let root = base.path().canonicalize().expect("a path");
    build(&root);
    let tree = Sysroot::at(&root);
    text(&root, &only(cdi::generate(&tree, &read(&tree).devices, options)))
}

#[test]
fn whole_devices() {
    let nvidias = |root: &Path| drop(nvidia(root));
    golden("cdi/nvidia.json", &machine(nvidias, &Options::default()));
    let all = Options {
        capabilities: "all".parse().expect("known"),
        ..Options::default()
    };
    golden("cdi/nvidia-all-capabilities.json", &machine(nvidias, &all));
    // A class with a dot in it came with 0.6.0.
    let kind = Options {
        kind: Some("example.com/gpu.h100".into()),
        ..Options::default()
    };
    golden("cdi/nvidia-own-kind.json", &machine(nvidias, &kind));
    for (name, partitions) in [("amd", 1), ("amd-partitioned", 2)] {
        let amds = |root: &Path| drop(Built::mi300x(root, partitions));
        golden(&format!("cdi/{name}.json"), &machine(amds, &Options::default()));
    }
    let device = |name: &str, uuid: Option<&str>| Emulated {
        name: name.into(),
        uuid: uuid.map(str::to_owned),
        grant: grant(&format!("/RUN/containers/device-{name}")),
    };
    let emulated = Options {
        emulated: vec![
            device("0", Some("GPU-00000000-1111-2222-3333-444444444444")),
            device("all", None),
        ],
        emulated_driver: "/RUN/stages/0123/lib".into(),
        ..Options::default()
    };
    golden("cdi/emulated.json", &machine(|_| {}, &emulated));
}

fn slice(name: &str) -> SliceRecord {
    serde_json::from_value(json!({
        "id": "0123456789ab", "name": name, "uid": 0, "device_uuid": "GPU-0", "memory_limit_bytes": 1 << 30,
        "memory_used_bytes": 0, "isolation": "cooperative", "policy": "strict",
        "created_at": "2026-01-01T00:00:00Z", "processes": [],
    }))
    .expect("a record")
}

fn grant(folder: &str) -> Grant {
    Grant {
        says: format!("{folder}/granted").into(),
        socket: format!("{folder}/pages").into(),
    }
}

fn parts(below: Below, device: Option<&str>) -> Parts {
    Parts {
        socket: "/RUN/boxes/0123456789ab".into(),
        limiter: "/RUN/stages/4567".into(),
        limiter_files: "/RUN/stages/4567/lib".into(),
        preload: "/RUN/containers/0123456789ab/ld.so.preload".into(),
        below,
        device: device.map(grant),
    }
}

#[test]
fn slices() {
    let emulated = parts(
        Below::Folder("/RUN/stages/0123/lib".into()),
        Some("/RUN/containers/0123456789ab/device"),
    );
    let spec = cdi::slice_spec(&slice("alice"), &cdi::SliceNodes::default(), &emulated);
    assert_eq!(spec.cdi_version, "0.4.0", "old engines read it");
    golden("cdi/slice-emulated.json", &spec.to_json());
    // A name that CDI's grammar does not have.
    let spec = cdi::slice_spec(&slice("_alice"), &cdi::SliceNodes::default(), &emulated);
    golden("cdi/slice-by-id.json", &spec.to_json());

    let of_machine = |build: &dyn Fn(&Path), choose: &dyn Fn(&DeviceRecord) -> bool, below: Option<&str>| {
        let base = tempfile::tempdir().expect("a folder");
        let root = base.path().canonicalize().expect("a path");
        build(&root);
        let tree = Sysroot::at(&root);
        let device = read(&tree).devices.into_iter().find(choose).expect("a device");
        let nodes = cdi::nodes_of(&tree, &[device], &cdi::Capabilities::default()).expect("its nodes");
        let below = below.map_or(Below::Worker, |below| Below::Driver(root.join(below)));
        text(
            &root,
            &cdi::slice_spec(&slice("alice"), &nodes, &parts(below, None)),
        )
    };
    let driver = "usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15";
    let nvidias = |root: &Path| drop(nvidia(root));
    let whole = |device: &DeviceRecord| device.kind == DeviceKind::Gpu;
    golden(
        "cdi/slice-nvidia.json",
        &of_machine(&nvidias, &whole, Some(driver)),
    );
    let instance = |device: &DeviceRecord| device.kind == DeviceKind::Mig;
    golden(
        "cdi/slice-mig.json",
        &of_machine(&nvidias, &instance, Some(driver)),
    );
    // With workers: no node, no file of the driver's.
    let without = of_machine(&nvidias, &whole, None);
    assert!(
        without.contains("/run/divvy/slice") && !without.contains("/dev/"),
        "{without}"
    );
    golden("cdi/slice-enforced.json", &without);
}

/// For each version the content that needs it, and nothing that came later. Those from 0.7.0 on are never ours: we read them
/// in `divvy container cdi validate`.
#[test]
fn versions() {
    let device = |name: &str| Device {
        name: name.into(),
        container_edits: Edits {
            env: vec!["A=b".into()],
            ..Edits::default()
        },
        ..Device::default()
    };
    let mut seen = Vec::new();
    let mut write = |kind: &str, device: Device, common: Edits| {
        let spec = Spec::new(kind, vec![device], common);
        golden(&format!("cdi/version-{}.json", spec.cdi_version), &spec.to_json());
        seen.push(spec.cdi_version);
    };
    let kind = "example.com/gpu";
    write(kind, device("a"), Edits::default());
    let mounts = vec![Mount {
        host_path: "tmpfs".into(),
        container_path: "/x".into(),
        kind: "tmpfs".into(),
        ..Mount::default()
    }];
    let common = Edits {
        mounts,
        ..Edits::default()
    };
    write(kind, device("a"), common);
    let device_nodes = vec![DeviceNode {
        path: "/dev/x".into(),
        host_path: "/dev/null".into(),
        ..DeviceNode::default()
    }];
    let common = Edits {
        device_nodes,
        ..Edits::default()
    };
    write(kind, device("0"), common);
    let mut annotated = device("a");
    annotated
        .annotations
        .insert("example.com/note".into(), "x".into());
    write("example.com/gpu.h100", annotated, Edits::default());
    let common = Edits {
        additional_gids: vec![44],
        intel_rdt: Some(IntelRdt {
            clos_id: "x".into(),
            ..IntelRdt::default()
        }),
        ..Edits::default()
    };
    write(kind, device("a"), common);
    let common = Edits {
        net_devices: vec![NetDevice {
            host_interface_name: "eth1".into(),
            name: "net0".into(),
        }],
        ..Edits::default()
    };
    write(kind, device("a"), common);
    assert_eq!(seen, ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "1.1.0"]);
}
