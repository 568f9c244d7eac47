//! A bundle's configuration, out of any bytes.

use divvy_container::cdi::{DeviceNode, Edits, Mount};
use divvy_container::oci::{Container, Trust, amd, apply, nvidia, parse, request};

/// Reads a configuration, what it asks for, and adds a device to it. Whether it was one.
///
/// # Panics
/// Where something that must hold does not.
pub fn config(bytes: &[u8]) -> bool {
    let Ok(mut config) = parse(bytes) else {
        return false;
    };
    let container = Container::read(&config);
    let _nvidia = nvidia(&container.environment);
    let found = amd(&container.environment, &[Some(1), None, Some(u64::MAX)]);
    assert!(found.is_sorted() && found.iter().all(|place| *place < 3));
    for trust in [Trust::Annotations, Trust::Mounts, Trust::Variables] {
        let Ok(asked) = request(&container, trust) else {
            continue;
        };
        let by_annotation = container
            .annotations
            .keys()
            .any(|name| name.starts_with("divvy.dev/"));
        // In a container without rights only our own settings count.
        if trust == Trust::Annotations && !container.privileged && !by_annotation {
            assert!(asked.is_empty());
        }
    }
    let edits = Edits {
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".into()],
        device_nodes: vec![DeviceNode {
            path: "/dev/null".into(),
            ..DeviceNode::default()
        }],
        mounts: vec![Mount {
            host_path: "/host".into(),
            container_path: "/etc/ld.so.preload".into(),
            ..Mount::default()
        }],
        ..Edits::default()
    };
    let before = config.clone();
    if apply(&mut config, &edits).is_err() {
        return true;
    }
    // Ours is the last mount, which lies over all others, and the last rule, which counts.
    let last = |pointer: &str| {
        config
            .pointer(pointer)
            .and_then(|list| list.as_array()?.last().cloned())
    };
    assert_eq!(
        last("/mounts").expect("a mount")["destination"],
        "/etc/ld.so.preload"
    );
    assert_eq!(last("/linux/resources/devices").expect("a rule")["allow"], true);
    assert_eq!(config.get("hooks"), before.get("hooks"));
    assert_eq!(config.pointer("/process/args"), before.pointer("/process/args"));
    // What we wrote we can read, and it asks for nothing more.
    let text = serde_json::to_vec(&config).expect("JSON");
    let again = parse(&text).expect("our own");
    assert_eq!(
        nvidia(&Container::read(&again).environment),
        divvy_container::oci::Nvidia::Void
    );
    true
}
