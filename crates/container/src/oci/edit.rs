//! Adds a CDI device's edits to a configuration, as an engine with CDI would
//! (github.com/cncf-tags/container-device-interface, pkg/cdi/container-edits.go).

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use divvy_model::{Code, Fault};
use rustix::fs::{major, minor};
use serde_json::{Map, Value, json};

use crate::cdi::{DeviceNode, Edits, Mount};
use crate::inject;

/// Adds them. Nothing that is there is looked at but lists of ours: the rest of the configuration stays as it was.
///
/// # Errors
/// [`Code::UnknownDevice`] for a node that is gone since it was asked for; [`Code::Bundle`] where the configuration has
/// something else in a list's place.
pub fn apply(config: &mut Value, edits: &Edits) -> Result<(), Fault> {
    for variable in &edits.env {
        let name = variable.split('=').next().unwrap_or_default();
        let list = list(config, &["process", "env"])?;
        let same = |value: &Value| {
            value
                .as_str()
                .is_some_and(|text| text.split('=').next() == Some(name))
        };
        list.retain(|value| !same(value));
        list.push(json!(variable));
    }
    for wanted in &edits.device_nodes {
        let node = node(wanted)?;
        let devices = list(config, &["linux", "devices"])?;
        devices.retain(|device| device.get("path").and_then(Value::as_str) != Some(&wanted.path));
        devices.push(node.device());
        list(config, &["linux", "resources", "devices"])?.push(node.rule());
    }
    let mounts = list(config, &["mounts"])?;
    for wanted in &edits.mounts {
        mounts
            .retain(|mount| mount.get("destination").and_then(Value::as_str) != Some(&wanted.container_path));
        mounts.push(mount(wanted));
    }
    apply_rare(config, edits)
}

/// Edits that none of our files has, and files of others may have.
fn apply_rare(config: &mut Value, edits: &Edits) -> Result<(), Fault> {
    for group in edits.additional_gids.iter().filter(|group| **group != 0) {
        let groups = list(config, &["process", "user", "additionalGids"])?;
        if !groups.contains(&json!(group)) {
            groups.push(json!(group));
        }
    }
    for device in &edits.net_devices {
        let devices = object(config, &["linux", "netDevices"])?;
        devices.insert(device.host_interface_name.clone(), json!({"name": device.name}));
    }
    if let Some(control) = &edits.intel_rdt {
        object(config, &["linux"])?.insert("intelRdt".into(), json!(control));
    }
    Ok(())
}

/// Refuses a configuration that has a folder of the host's mounted where the runtime would write to it for our mounts.
///
/// # Errors
/// [`Code::NotEnforceable`].
pub fn check_mounts(config: &Value, edits: &Edits) -> Result<(), Fault> {
    let mounts = config.get("mounts").and_then(Value::as_array);
    for mount in mounts.into_iter().flatten().filter(|_| !edits.mounts.is_empty()) {
        let word = |name: &str| mount.get(name).and_then(Value::as_str).unwrap_or_default();
        let (source, target) = (word("source"), word("destination"));
        if source.starts_with('/') && inject::is_written(target) {
            return Err(inject::written(source, target));
        }
    }
    Ok(())
}

/// The list at this place, made where it is missing.
fn list<'a>(config: &'a mut Value, path: &[&str]) -> Result<&'a mut Vec<Value>, Fault> {
    let (name, above) = path.split_last().ok_or_else(|| wrong(path))?;
    let place = object(config, above)?.entry(*name).or_insert(Value::Null);
    if place.is_null() {
        *place = Value::Array(Vec::new());
    }
    place.as_array_mut().ok_or_else(|| wrong(path))
}

/// The same of a field that has fields.
fn object<'a>(config: &'a mut Value, path: &[&str]) -> Result<&'a mut Map<String, Value>, Fault> {
    let mut place = config;
    for name in path {
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        let fields = place.as_object_mut().ok_or_else(|| wrong(path))?;
        place = fields.entry(*name).or_insert(Value::Null);
    }
    if place.is_null() {
        *place = Value::Object(Map::new());
    }
    place.as_object_mut().ok_or_else(|| wrong(path))
}

fn wrong(path: &[&str]) -> Fault {
    Fault::new(Code::Bundle, "the container's configuration cannot be added to").cause(format!(
        "`{}` is of another kind than the specification has",
        path.join(".")
    ))
}

/// A device node as the host has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where the container has it.
    pub path: String,
    /// `c` or `b`.
    pub kind: &'static str,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Its mode's permissions.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// What the device cgroup is to allow.
    pub access: String,
}

impl Node {
    fn device(&self) -> Value {
        json!({
            "path": self.path,
            "type": self.kind,
            "major": self.major,
            "minor": self.minor,
            "fileMode": self.mode,
            "uid": self.uid,
            "gid": self.gid,
        })
    }

    /// The device cgroup's rule that lets it be used.
    fn rule(&self) -> Value {
        json!({
            "allow": true,
            "type": self.kind,
            "major": self.major,
            "minor": self.minor,
            "access": self.access,
        })
    }
}

/// Looks the node up on the host.
///
/// # Errors
/// [`Code::UnknownDevice`] for one that is gone since it was asked for.
pub fn node(wanted: &DeviceNode) -> Result<Node, Fault> {
    let host = match wanted.host_path.as_str() {
        "" => &wanted.path,
        other => other,
    };
    let gone = |why: String| {
        Fault::new(Code::UnknownDevice, format!("the device node `{host}` cannot be given out"))
            .cause(why)
            .hint("the device or its driver was changed since it was asked for: `divvy devices` lists those there are")
    };
    // Not through a link: /dev is the host's own, and a link there was put there on purpose.
    let meta = std::fs::symlink_metadata(host).map_err(|error| gone(error.to_string()))?;
    let kind = match meta.file_type() {
        kind if kind.is_char_device() => "c",
        kind if kind.is_block_device() => "b",
        _ => return Err(gone("it is no device node".into())),
    };
    let access = match wanted.permissions.as_str() {
        "" => "rwm",
        some => some,
    };
    Ok(Node {
        path: wanted.path.clone(),
        kind,
        major: major(meta.rdev()),
        minor: minor(meta.rdev()),
        mode: meta.mode() & 0o777,
        uid: wanted.uid.unwrap_or(meta.uid()),
        gid: wanted.gid.unwrap_or(meta.gid()),
        access: access.into(),
    })
}

fn mount(wanted: &Mount) -> Value {
    let kind = match wanted.kind.as_str() {
        "" => "bind",
        other => other,
    };
    json!({
        "destination": wanted.container_path,
        "type": kind,
        "source": wanted.host_path,
        "options": wanted.options,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edits() -> Edits {
        Edits {
            env: vec!["A=new".into()],
            device_nodes: vec![DeviceNode {
                path: "/dev/null".into(),
                permissions: "rw".into(),
                ..DeviceNode::default()
            }],
            mounts: vec![Mount {
                host_path: "/x".into(),
                container_path: "/y".into(),
                options: vec!["ro".into(), "bind".into()],
                kind: String::new(),
            }],
            ..Edits::default()
        }
    }

    #[test]
    fn edits_are_added_and_the_rest_stays() {
        let mut config = json!({
            "process": {"env": ["A=old", "AB=stays"], "user": {"uid": 7}},
            "mounts": [{"destination": "/proc"}],
            "linux": {"devices": [{"path": "/dev/null", "minor": 99}, {"path": "/dev/fuse"}],
                      "resources": {"devices": [{"allow": false, "access": "rwm"}]}},
        });
        apply(&mut config, &edits()).expect("added");
        assert_eq!(config["process"]["env"], json!(["AB=stays", "A=new"]));
        assert_eq!(config["process"]["user"]["uid"], 7);
        assert_eq!(config["mounts"][1]["destination"], "/y");
        let devices = config["linux"]["devices"].as_array().expect("devices");
        assert_eq!((devices.len(), &devices[1]["minor"]), (2, &json!(3)));
        // The rule comes after what denies all: the last one that fits counts.
        assert_eq!(
            config["linux"]["resources"]["devices"][1],
            json!({"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"})
        );
        let mut empty = json!({});
        apply(&mut empty, &edits()).expect("added");
        assert_eq!(empty["linux"]["devices"][0]["path"], "/dev/null");
    }

    #[test]
    fn a_device_that_is_gone_or_none_is_refused() {
        for (path, part) in [
            ("/dev/none-such", "No such file"),
            ("/etc/passwd", "no device node"),
        ] {
            let mut wanted = edits();
            wanted.device_nodes[0].path = path.into();
            let refused = apply(&mut json!({}), &wanted).expect_err("gone");
            assert_eq!(refused.code, Code::UnknownDevice);
            assert!(refused.causes[0].contains(part), "{refused:?}");
        }
        for config in [
            json!([]),
            json!({"linux": []}),
            json!({"mounts": {}}),
            json!({"process": 1}),
        ] {
            let refused = apply(&mut config.clone(), &edits()).expect_err("no list");
            assert_eq!(refused.code, Code::Bundle, "{config}");
        }
    }
}
