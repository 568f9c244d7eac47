//! CDI files of machines that are not here, as they would be written; and what is wrong with files that are wrong.

use std::fs;
use std::path::{Path, PathBuf};

use divvy_container::cdi::{self, Level, Options};
use divvy_host::built::Built;
use divvy_host::machine::{Sysroot, read};

/// The files of a machine, with its folder called ROOT.
fn files(root: &Path) -> String {
    let tree = Sysroot::at(root);
    let devices = read(&tree).devices;
    let mut text = String::new();
    for generated in cdi::generate(&tree, &devices, &Options::default()) {
        text.push_str(&format!("{}\n{}", generated.file, generated.spec.to_json()));
    }
    text.replace(&root.display().to_string(), "ROOT")
}

#[test]
fn mig_instances_have_their_capability_nodes_and_a_divided_gpu_is_not_given_out() {
    let base = tempfile::tempdir().expect("a folder");
    let root = base.path().canonicalize().expect("a path");
    let built = Built::h100(&root, 2);
    for (instance, minor) in [(1, 30), (5, 48)] {
        let mig = format!("proc/driver/nvidia/capabilities/gpu1/mig/gi{instance}");
        built.file(&format!("{mig}/access"), &format!("DeviceFileMinor: {minor}\n"));
        built.file(
            &format!("{mig}/ci0/access"),
            &format!("DeviceFileMinor: {}\n", minor + 1),
        );
    }
    for file in ["dev/nvidiactl", "dev/nvidia-uvm", "usr/bin/nvidia-smi"] {
        built.file(file, "");
    }
    let libraries = "usr/lib/x86_64-linux-gnu";
    for library in [
        "libcuda.so.550.54.15",
        "libnvidia-ml.so.550.54.15",
        "libnvidia-compiler.so.550.54.15",
    ] {
        built.file(&format!("{libraries}/{library}"), "");
    }
    built.link(&format!("{libraries}/libcuda.so.1"), "libcuda.so.550.54.15");
    built.link(
        &format!("{libraries}/libnvidia-ml.so.1"),
        "libnvidia-ml.so.550.54.15",
    );
    let text = files(&root);
    let spec: serde_json::Value =
        serde_json::from_str(text.split_once('\n').expect("a file").1).expect("JSON");
    assert_eq!(
        (&spec["cdiVersion"], &spec["kind"]),
        (&"0.5.0".into(), &"nvidia.com/gpu".into())
    );
    let nodes = |name: &str| -> Vec<String> {
        let devices = spec["devices"].as_array().expect("devices");
        let device = devices.iter().find(|device| device["name"] == name);
        let device = device.unwrap_or_else(|| panic!("no device {name} in {text}"));
        let nodes = device["containerEdits"]["deviceNodes"].as_array().expect("nodes");
        nodes
            .iter()
            .map(|node| node["path"].as_str().expect("a path").to_owned())
            .collect()
    };
    assert_eq!(nodes("0"), ["/dev/nvidia0"]);
    assert_eq!(
        nodes("1:0"),
        [
            "/dev/nvidia1",
            "/dev/nvidia-caps/nvidia-cap30",
            "/dev/nvidia-caps/nvidia-cap31"
        ]
    );
    assert_eq!(
        nodes("1:1"),
        [
            "/dev/nvidia1",
            "/dev/nvidia-caps/nvidia-cap48",
            "/dev/nvidia-caps/nvidia-cap49"
        ]
    );
    assert!(
        !text.contains("\"name\": \"1\""),
        "a GPU in MIG mode serves no container as a whole: {text}"
    );
    let mounts = spec["containerEdits"]["mounts"].as_array().expect("mounts");
    let mounted = |target: &str| {
        let mount = mounts.iter().find(|mount| mount["containerPath"] == target);
        mount.map(|mount| mount["hostPath"].as_str().unwrap_or_default().to_owned())
    };
    // The file itself: what a link leads to is not in the container.
    let real = Some(format!("ROOT/{libraries}/libcuda.so.550.54.15"));
    assert_eq!(mounted("/usr/lib64/libcuda.so.1"), real);
    assert_eq!(mounted("/usr/lib/x86_64-linux-gnu/libcuda.so"), real);
    assert!(mounted("/usr/lib64/libnvidia-compiler.so.550.54.15").is_some());
    assert_eq!(
        mounted("/usr/bin/nvidia-smi"),
        Some("ROOT/usr/bin/nvidia-smi".into())
    );
    assert!(
        !text.contains("libnvcuvid"),
        "what was not asked for is not given"
    );
}

/// A tree from elsewhere has links where the driver's files and nodes are, which lead out of it: an engine would follow them.
#[test]
fn links_of_a_tree_lead_nowhere_out_of_it() {
    let base = tempfile::tempdir().expect("a folder");
    let root = base.path().canonicalize().expect("a path").join("tree");
    let built = Built::h100(&root, 1);
    let libraries = "usr/lib/x86_64-linux-gnu";
    let secret = base.path().join("secret");
    fs::write(&secret, "").expect("written");
    let secret = secret.display().to_string();
    built.link(&format!("{libraries}/libcuda.so.1"), &secret);
    built.link(&format!("{libraries}/libnvidia-ml.so.1"), "../../../../secret");
    built.link(&format!("{libraries}/libnvidia-compiler.so.550.54.15"), &secret);
    built.link("usr/bin/nvidia-smi", &secret);
    for node in ["nvidia0", "nvidiactl"] {
        built.link(&format!("dev/{node}"), "/dev/null");
    }
    // One that stays inside, from the tree's own root.
    built.file(&format!("{libraries}/nvidia/libnvidia-cfg.so.550"), "");
    built.link(
        &format!("{libraries}/libnvidia-cfg.so.1"),
        &format!("/{libraries}/nvidia/libnvidia-cfg.so.550"),
    );
    let text = files(&root);
    for gone in [
        "secret",
        "libcuda",
        "libnvidia-ml",
        "compiler",
        "nvidia-smi",
        "nvidiactl",
        "/dev/null",
    ] {
        assert!(!text.contains(gone), "{gone}: {text}");
    }
    assert!(
        text.contains(&format!("ROOT/{libraries}/nvidia/libnvidia-cfg.so.550")),
        "{text}"
    );
    assert!(!text.contains("ROOT/dev/nvidia0"), "{text}");
}

#[test]
fn partitions_of_amds_have_a_render_node_each_and_names_that_cdi_takes() {
    let base = tempfile::tempdir().expect("a folder");
    let root = base.path().canonicalize().expect("a path");
    let _built = Built::mi300x(&root, 8);
    let tree = Sysroot::at(&root);
    let files = cdi::generate(&tree, &read(&tree).devices, &Options::default());
    let spec = &files[0].spec;
    assert_eq!(
        (spec.kind.as_str(), spec.cdi_version.as_str()),
        ("amd.com/gpu", "0.5.0")
    );
    let nodes = |name: &str| {
        let device = spec
            .devices
            .iter()
            .find(|device| device.name == name)
            .expect("a device");
        let paths = device
            .container_edits
            .device_nodes
            .iter()
            .map(|node| node.path.clone());
        paths.collect::<Vec<_>>()
    };
    assert_eq!(nodes("9"), ["/dev/dri/renderD139"]);
    assert_eq!(nodes("GPU-5a3f000000001001:1"), ["/dev/dri/renderD139"]);
    assert_eq!(nodes("all").len(), 64);
    assert_eq!(spec.container_edits.device_nodes[0].path, "/dev/kfd");
    assert!(
        spec.devices
            .iter()
            .all(|device| cdi::is_device_name(&device.name))
    );
    assert_eq!(
        cdi::parse(Path::new("x.json"), &spec.to_json()).as_ref(),
        Ok(spec)
    );
}

/// What `divvy container cdi validate` says of these files, in one directory or in several.
fn said(files: &[(&str, &str)]) -> Vec<(Level, String)> {
    let base = tempfile::tempdir().expect("a folder");
    let mut directories: Vec<PathBuf> = Vec::new();
    for (name, text) in files {
        let path = base.path().join(name);
        let directory = path.parent().expect("a folder").to_owned();
        fs::create_dir_all(&directory).expect("a folder");
        fs::write(&path, text).expect("written");
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    let found = cdi::read_all(&directories).expect("read");
    let findings = cdi::validate(&found).into_iter();
    findings.map(|finding| (finding.level, finding.problem)).collect()
}

fn file(version: &str, kind: &str, device: &str, edits: &str) -> String {
    format!(
        r#"{{"cdiVersion": "{version}", "kind": "{kind}", "devices": [{{"name": "{device}", "containerEdits": {edits}}}]}}"#
    )
}

#[test]
fn each_reason_for_unresolvable_is_told() {
    let good = r#"{"env": ["A=b"]}"#;
    let one = |text: String| said(&[("a/x.json", &text)]);
    assert_eq!(one(file("0.3.0", "v.com/gpu", "a", good)), []);
    for (text, level, part) in [
        ("{".into(), Level::Error, "skip the whole file"),
        (
            file("0.3.0", "v.com/gpu", "a", r#"{"envs": []}"#),
            Level::Error,
            "unknown field `envs`",
        ),
        (file("0.3.0", "gpu", "a", good), Level::Error, "is no kind"),
        (
            file("0.3.0", "v.com/gpu", "a=b", good),
            Level::Error,
            "no device's name",
        ),
        (
            file("0.3.0", "v.com/gpu", "0", good),
            Level::Error,
            "uses what came with 0.5.0",
        ),
        (
            file("9.9.0", "v.com/gpu", "a", good),
            Level::Error,
            "no version of CDI",
        ),
        (
            file("0.6.0", "v.com/gpu", "a", good),
            Level::Warning,
            "too new for podman 4.3",
        ),
        (
            file("0.3.0", "v.com/gpu", "a", "{}"),
            Level::Error,
            "changes nothing",
        ),
        (
            file(
                "0.3.0",
                "v.com/gpu",
                "a",
                r#"{"deviceNodes": [{"path": "/dev/none-such"}]}"#,
            ),
            Level::Error,
            "`/dev/none-such` cannot be used",
        ),
        (
            file(
                "0.3.0",
                "v.com/gpu",
                "a",
                r#"{"deviceNodes": [{"path": "/etc/passwd"}]}"#,
            ),
            Level::Error,
            "no device node",
        ),
        (
            file(
                "0.3.0",
                "v.com/gpu",
                "a",
                r#"{"mounts": [{"hostPath": "/none/such", "containerPath": "/x"}]}"#,
            ),
            Level::Error,
            "`/none/such`, which is to be mounted",
        ),
        (
            file(
                "0.3.0",
                "v.com/gpu",
                "a",
                r#"{"hooks": [{"hookName": "createContainer", "path": "/bin/sh"}]}"#,
            ),
            Level::Warning,
            "CVE-2025-23266",
        ),
    ] {
        let findings = one(text);
        assert_eq!(findings.len(), 1, "{part}: {findings:?}");
        assert_eq!(findings[0].0, level, "{findings:?}");
        assert!(findings[0].1.contains(part), "{part}: {findings:?}");
    }
}

#[test]
fn a_name_that_two_files_claim_is_of_neither_and_a_later_directory_hides() {
    let text = file("0.3.0", "v.com/gpu", "a", r#"{"env": ["A=b"]}"#);
    let both = said(&[("a/x.json", &text), ("a/y.json", &text)]);
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(
        both.iter()
            .all(|(level, problem)| { *level == Level::Error && problem.contains("has the same name") })
    );
    let hidden = said(&[("a/x.json", &text), ("b/x.json", &text)]);
    assert_eq!(hidden.len(), 1, "{hidden:?}");
    assert!(hidden[0].0 == Level::Warning && hidden[0].1.contains("hidden"));
}
