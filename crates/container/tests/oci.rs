//! What containers ask of the runtime wrapper, and what they get.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_container::oci::{self, Container, Nvidia, Request, Trust};
use divvy_host::built::Built;
use divvy_host::machine::{Sysroot, read};
use serde_json::{Value, json};

/// A field of a vector: `-` for what is not set, `""` for empty.
fn field(text: &str) -> Option<String> {
    match text {
        "-" => None,
        "\"\"" => Some(String::new()),
        text => Some(text.to_owned()),
    }
}

#[test]
fn the_vendors_variables_are_read_as_the_vendors_do() {
    let mut seen = 0;
    let vectors = include_str!("variables_vectors.txt");
    for line in vectors
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (asked, expected) = line.split_once(" => ").expect("an arrow");
        let fields: Vec<&str> = asked.split(" | ").collect();
        let mut environment = BTreeMap::new();
        let mut set = |name: &str, text: &str| {
            if let Some(value) = field(text) {
                environment.insert(name.to_owned(), value);
            }
        };
        let outcome = match fields[..] {
            ["nvidia", version, require, visible] => {
                set("CUDA_VERSION", version);
                set("NVIDIA_REQUIRE_CUDA", require);
                set("NVIDIA_VISIBLE_DEVICES", visible);
                match oci::nvidia(&environment) {
                    Nvidia::Void => "void".into(),
                    Nvidia::None => "none".into(),
                    Nvidia::All => "all".into(),
                    Nvidia::Some(names) => names.join(" "),
                }
            }
            ["amd", visible] => {
                match visible.strip_prefix("swarm ") {
                    Some(visible) => set("DOCKER_RESOURCE_GPU", visible),
                    None => set("AMD_VISIBLE_DEVICES", visible),
                }
                let twice = Some(0x1234_5678_90ab_cdef);
                let ids = [Some(0xef2c_1799_a1f3_e2ed), twice, twice, None];
                let found = oci::amd(&environment, &ids);
                match found.as_slice() {
                    [] => "-".into(),
                    found => found
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(" "),
                }
            }
            _ => panic!("{line}"),
        };
        assert_eq!(outcome, expected, "{line}");
        seen += 1;
    }
    assert!(seen > 50, "{seen} vectors were read");
}

/// The request of a container with these variables that may ask by them.
fn request(variables: &[&str]) -> Request {
    let config = json!({"process": {"env": variables}});
    oci::request(&Container::read(&config), Trust::Variables).expect("understood")
}

fn nodes(root: &Path, variables: &[&str]) -> Result<Vec<String>, String> {
    let tree = Sysroot::at(root);
    let edits =
        oci::devices(&tree, &read(&tree).devices, &request(variables)).map_err(|fault| fault.message)?;
    Ok(edits.device_nodes.into_iter().map(|node| node.path).collect())
}

#[test]
fn nvidias_devices_by_index_uuid_and_instance() {
    let base = tempfile::tempdir().expect("a folder");
    let built = Built::h100(base.path(), 2);
    for instance in [1, 5] {
        let mig = format!("proc/driver/nvidia/capabilities/gpu1/mig/gi{instance}");
        built.file(
            &format!("{mig}/access"),
            &format!("DeviceFileMinor: {}\n", 30 + instance),
        );
        built.file(
            &format!("{mig}/ci0/access"),
            &format!("DeviceFileMinor: {}\n", 40 + instance),
        );
    }
    built.file("dev/nvidiactl", "");
    let devices = read(&Sysroot::at(base.path())).devices;
    let uuid = |start: &str| {
        let found = devices.iter().find(|device| device.uuid.starts_with(start));
        found.expect("a device").uuid.clone()
    };
    let of = |asked: &str| nodes(base.path(), &[&format!("NVIDIA_VISIBLE_DEVICES={asked}")]);
    let first = Ok(vec!["/dev/nvidiactl".to_owned(), "/dev/nvidia0".into()]);
    assert_eq!(of("0"), first);
    assert_eq!(of(&uuid("GPU-")), first);
    let instance = Ok(vec![
        "/dev/nvidiactl".to_owned(),
        "/dev/nvidia1".into(),
        "/dev/nvidia-caps/nvidia-cap31".into(),
        "/dev/nvidia-caps/nvidia-cap41".into(),
    ]);
    assert_eq!(of("1:0"), instance);
    assert_eq!(of(&uuid("MIG-")), instance);
    assert_eq!(of("none"), Ok(vec![]), "the driver's files and no node");
    assert_eq!(of("void"), Ok(vec![]));
    assert!(of("all").expect("all").len() > 4);
    // A GPU that is divided serves no container as a whole, and what is not there is said.
    for gone in ["1", "7", "GPU-none", "ALL"] {
        assert!(of(gone).expect_err("not there").contains(gone));
    }
}

#[test]
fn amds_devices_are_kfd_and_exactly_the_nodes_asked_for() {
    let base = tempfile::tempdir().expect("a folder");
    let _built = Built::mi300x(base.path(), 1);
    let of =
        |asked: &str| nodes(base.path(), &[&format!("AMD_VISIBLE_DEVICES={asked}")]).expect("understood");
    let second = of("1");
    assert_eq!(second[..2], ["/dev/kfd", "/dev/dri/renderD131"]);
    assert_eq!(of("0x5a3f000000001001"), second);
    assert_eq!(of("0-7"), of("all"));
    assert_eq!(of("9"), Vec::<String>::new(), "not even kfd");
    assert_eq!(of("none"), Vec::<String>::new());
}

/// A configuration as podman 4.3 writes it, in its shape and with what matters here.
fn podmans() -> Value {
    json!({
        "ociVersion": "1.0.2-dev",
        "process": {"terminal": false, "user": {"uid": 0}, "args": ["nvidia-smi"], "cwd": "/",
                    "env": ["PATH=/usr/bin:/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
                    "capabilities": {"bounding": ["CAP_CHOWN", "CAP_KILL"]}},
        "root": {"path": "/storage/merged"},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}]}},
    })
}

/// CVE-2024-0132 and CVE-2025-23359: a hook mounted what an image's links led to. All targets that we write are constants
/// of ours, no source lies in the bundle or the image, and no hook is added.
#[test]
fn cve_2024_0132_and_cve_2025_23359_no_mount_is_named_by_an_image() {
    let base = tempfile::tempdir().expect("a folder");
    let root = base.path().canonicalize().expect("a path");
    let built = Built::h100(&root, 1);
    built.file("usr/lib/x86_64-linux-gnu/libcuda.so.1", "");
    let tree = Sysroot::at(&root);
    let mut config = podmans();
    let asked = oci::request(&Container::read(&config), Trust::Variables).expect("understood");
    let mut edits = oci::devices(&tree, &read(&tree).devices, &asked).expect("there");
    // The built machine has no real nodes.
    edits.device_nodes.clear();
    let before = config["mounts"].as_array().expect("mounts").len();
    oci::apply(&mut config, &edits).expect("added");
    let mounts = &config["mounts"].as_array().expect("mounts")[before..];
    assert!(!mounts.is_empty());
    for mount in mounts {
        let text = |name: &str| mount[name].as_str().expect("a path").to_owned();
        assert!(text("source").starts_with(&root.display().to_string()), "{mount}");
        let target = text("destination");
        let known = ["/usr/lib/x86_64-linux-gnu/", "/usr/lib64/", "/usr/bin/"];
        assert!(
            known.iter().any(|folder| target.starts_with(folder)) && !target.contains(".."),
            "{mount}"
        );
        let options = mount["options"].as_array().expect("options");
        for option in ["ro", "nosuid", "nodev"] {
            assert!(options.contains(&json!(option)), "{mount}");
        }
    }
    assert!(config.get("hooks").is_none());
}

/// CVE-2025-23266: a hook of NVIDIA's ran with the image's environment. We add none, and what the engine had stays.
#[test]
fn cve_2025_23266_no_hook_is_added() {
    let mut config = podmans();
    config["hooks"] = json!({"createRuntime": [{"path": "/engine/own"}]});
    let before = config["hooks"].clone();
    let edits = divvy_container::cdi::Edits {
        hooks: vec![divvy_container::cdi::Hook {
            hook_name: "createContainer".into(),
            path: "/evil".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    oci::apply(&mut config, &edits).expect("added");
    assert_eq!(config["hooks"], before);
}

/// CVE-2024-0133 and CVE-2025-23267: files made, or linked, on the host at places that an image's links name. We make no
/// file below a container's root: reading a root's program opens nothing outside it, and writes nothing.
#[test]
fn cve_2024_0133_and_cve_2025_23267_nothing_is_made_in_an_images_root() {
    let base = tempfile::tempdir().expect("a folder");
    let root = base.path().join("root");
    std::fs::create_dir_all(root.join("etc")).expect("a folder");
    std::os::unix::fs::symlink("/etc", root.join("lib")).expect("a link");
    std::os::unix::fs::symlink("../../../../etc/ld.so.cache", root.join("etc/ld.so.cache")).expect("a link");
    let before: Vec<_> = walk(&root);
    let words = ["/lib/passwd".to_owned()];
    assert_eq!(
        divvy_container::unlimited::of_root(&root, &words, "/bin", "/"),
        None
    );
    assert_eq!(walk(&root), before);
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            all.extend(walk(&path));
        }
        all.push(path);
    }
    all.sort();
    all
}
