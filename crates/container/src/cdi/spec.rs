//! A CDI file, as the specification's schema has it (github.com/cncf-tags/container-device-interface, SPEC.md).

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Version;

/// One file: devices of one kind. Engines read it strictly, so an unknown field is an error here too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The version of the schema that a reader has to know.
    pub cdi_version: String,
    /// `vendor/class`.
    pub kind: String,
    /// Free text for tools; since 0.6.0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The devices.
    pub devices: Vec<Device>,
    /// Edits of every container that gets any of them.
    #[serde(default, skip_serializing_if = "Edits::is_empty")]
    pub container_edits: Edits,
}

/// A device, which is a name for edits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Its name within the kind.
    pub name: String,
    /// Free text for tools; since 0.6.0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Edits of a container that gets it.
    pub container_edits: Edits,
}

/// What is changed in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edits {
    /// `NAME=value`; replaces what the image or the user set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network devices; since 1.1.0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Programs to run. We write none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Groups beside the user's own; since 0.7.0.
    #[serde(default, rename = "additionalGids", skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
    /// Intel's cache and bandwidth control; since 0.7.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
}

impl Edits {
    /// Whether nothing is changed, which engines refuse for a device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A device node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// Where the container has it.
    pub path: String,
    /// Where the host has it, if elsewhere; since 0.5.0.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// `c` or `b`; what the host's node is otherwise.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Major number; the host's otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Minor number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// Mode of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// What the device cgroup allows: `r`, `w`, `m` (mknod). All of them where it says nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub permissions: String,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A network device moved into the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetDevice {
    /// Its name on the host.
    pub host_interface_name: String,
    /// Its name in the container.
    pub name: String,
}

/// A mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// What is mounted.
    pub host_path: String,
    /// Where the container has it.
    pub container_path: String,
    /// mount(8)'s options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// File system; since 0.4.0.
    #[serde(default, rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
}

/// A program that the runtime starts, on the host and as root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// When, `createContainer` and the like.
    pub hook_name: String,
    /// The program.
    pub path: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment. Where this is left out some runtimes give it the container's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds it may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// Intel's resource director, of which we know the fields and write none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IntelRdt {
    /// Class of service.
    #[serde(default, rename = "closID", skip_serializing_if = "String::is_empty")]
    pub clos_id: String,
    /// Cache schema.
    #[serde(default, rename = "l3CacheSchema", skip_serializing_if = "String::is_empty")]
    pub l3_cache_schema: String,
    /// Bandwidth schema.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mem_bw_schema: String,
    /// Schemata lines; since 1.1.0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schemata: Vec<String>,
    /// Since 1.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_monitoring: Option<bool>,
    /// Cache monitoring, before 1.1.0.
    #[serde(default, rename = "enableCMT", skip_serializing_if = "Option::is_none")]
    pub enable_cmt: Option<bool>,
    /// Bandwidth monitoring, before 1.1.0.
    #[serde(default, rename = "enableMBM", skip_serializing_if = "Option::is_none")]
    pub enable_mbm: Option<bool>,
}

impl Spec {
    /// A file of this kind under the lowest version that carries it: old engines refuse a version they do not know,
    /// whatever the file holds.
    #[must_use]
    pub fn new(kind: &str, devices: Vec<Device>, container_edits: Edits) -> Self {
        let mut spec = Self {
            kind: kind.into(),
            devices,
            container_edits,
            ..Self::default()
        };
        spec.cdi_version = Version::lowest(&spec).to_string();
        spec
    }

    /// Its text as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).map_or_else(|error| error.to_string(), |text| text + "\n")
    }

    /// All edits: each device's, then those of all.
    pub fn edits(&self) -> impl Iterator<Item = &Edits> {
        let of_devices = self.devices.iter().map(|device| &device.container_edits);
        of_devices.chain(std::iter::once(&self.container_edits))
    }
}

/// Reads a file's text: JSON or YAML, by the file's name as engines do.
///
/// # Errors
/// What the reader says, with line and field.
pub fn parse(path: &Path, text: &str) -> Result<Spec, String> {
    if path.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(text).map_err(|error| error.to_string())
    } else {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }
}
