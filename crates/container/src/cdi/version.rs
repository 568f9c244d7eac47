//! Versions of CDI's schema, and the lowest one that carries a file.

use std::fmt;
use std::str::FromStr;

use super::spec::{Edits, Spec};

/// A released version, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u8, u8);

impl Version {
    /// The earliest version that an engine reads.
    pub const EARLIEST: Self = Self(0, 3);
    /// The newest that podman 4.3 (Debian 12) reads.
    pub const OF_PODMAN_4_3: Self = Self(0, 5);
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self(0, 3),
        Self(0, 4),
        Self(0, 5),
        Self(0, 6),
        Self(0, 7),
        Self(0, 8),
        Self(1, 0),
        Self(1, 1),
    ];

    /// The lowest version whose schema has everything that `spec` uses.
    #[must_use]
    pub fn lowest(spec: &Spec) -> Self {
        let any = |uses: &dyn Fn(&Edits) -> bool| spec.edits().any(uses);
        let rdt = |uses: &dyn Fn(&super::IntelRdt) -> bool| {
            any(&|edits| edits.intel_rdt.as_ref().is_some_and(uses))
        };
        if any(&|edits| !edits.net_devices.is_empty())
            || rdt(&|rdt| !rdt.schemata.is_empty() || rdt.enable_monitoring.is_some())
        {
            return Self(1, 1);
        }
        if any(&|edits| edits.intel_rdt.is_some() || !edits.additional_gids.is_empty()) {
            return Self(0, 7);
        }
        let class_has_dot = spec
            .kind
            .split_once('/')
            .is_some_and(|(_, class)| class.contains('.'));
        let annotated =
            !spec.annotations.is_empty() || spec.devices.iter().any(|device| !device.annotations.is_empty());
        if annotated || class_has_dot {
            return Self(0, 6);
        }
        let starts_otherwise = |name: &str| !name.starts_with(|c: char| c.is_ascii_alphabetic());
        if spec.devices.iter().any(|device| starts_otherwise(&device.name))
            || any(&|edits| edits.device_nodes.iter().any(|node| !node.host_path.is_empty()))
        {
            return Self(0, 5);
        }
        if any(&|edits| edits.mounts.iter().any(|mount| !mount.kind.is_empty())) {
            return Self(0, 4);
        }
        Self::EARLIEST
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.0", self.0, self.1)
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.strip_prefix('v').unwrap_or(text);
        Self::ALL
            .into_iter()
            .find(|version| version.to_string() == plain)
            .ok_or_else(|| format!("`{text}` is no version of CDI"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cdi::{Device, DeviceNode, IntelRdt, Mount, NetDevice};

    fn lowest(change: impl FnOnce(&mut Spec)) -> String {
        let mut spec = Spec {
            kind: "vendor.com/gpu".into(),
            devices: vec![Device {
                name: "a".into(),
                ..Device::default()
            }],
            ..Spec::default()
        };
        spec.devices[0].container_edits.env.push("A=b".into());
        change(&mut spec);
        Version::lowest(&spec).to_string()
    }

    #[test]
    fn each_field_needs_the_version_that_brought_it() {
        assert_eq!(lowest(|_| {}), "0.3.0");
        assert_eq!(
            lowest(|spec| spec.container_edits.mounts.push(Mount {
                kind: "bind".into(),
                ..Mount::default()
            })),
            "0.4.0"
        );
        assert_eq!(lowest(|spec| spec.devices[0].name = "0".into()), "0.5.0");
        assert_eq!(
            lowest(|spec| spec.container_edits.device_nodes.push(DeviceNode {
                host_path: "/dev/x".into(),
                ..DeviceNode::default()
            })),
            "0.5.0"
        );
        assert_eq!(lowest(|spec| spec.kind = "vendor.com/g.pu".into()), "0.6.0");
        assert_eq!(
            lowest(|spec| {
                spec.annotations.insert("a".into(), "b".into());
            }),
            "0.6.0"
        );
        assert_eq!(
            lowest(|spec| spec.container_edits.additional_gids.push(44)),
            "0.7.0"
        );
        assert_eq!(
            lowest(|spec| spec.container_edits.intel_rdt = Some(IntelRdt::default())),
            "0.7.0"
        );
        assert_eq!(
            lowest(|spec| spec.container_edits.net_devices.push(NetDevice::default())),
            "1.1.0"
        );
    }

    #[test]
    fn versions_are_read_and_ordered() {
        for version in Version::ALL {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        assert!(Version::ALL.is_sorted());
        assert!("0.9.0".parse::<Version>().is_err());
        assert!("v0.6.0".parse::<Version>() > Ok(Version::OF_PODMAN_4_3));
    }
}
