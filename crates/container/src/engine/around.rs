//! Options of an engine's command line that let a container reach devices around its slice.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::major;

use super::Seen;
use crate::oci::clean;

/// The first such way, in words. `devices_closed` says whether a node that is only mounted stays closed: by the device
/// cgroup, which engines have as root.
#[must_use]
pub fn around(seen: &Seen, devices_closed: bool) -> Option<String> {
    if seen.privileged {
        return Some("`--privileged` gives the container every device of this machine".into());
    }
    if seen.gpus {
        return Some("`--gpus` gives the container whole devices".into());
    }
    if let Some(runtime) = seen.runtime.as_deref().filter(|name| {
        let file = Path::new(name).file_name().unwrap_or_default().to_string_lossy();
        file.starts_with("nvidia") || file.starts_with("amd")
    }) {
        return Some(format!(
            "the runtime `{runtime}` gives containers whole devices by itself"
        ));
    }
    if seen.no_cgroups {
        return Some("`--cgroups=disabled` takes the container's device rules away".into());
    }
    if let Some(rule) = seen.device_rules.iter().find(|rule| opens(rule)) {
        return Some(format!(
            "`--device-cgroup-rule {rule}` gives the container devices beside its slice"
        ));
    }
    if let Some(device) = seen.devices.iter().find(|device| is_whole(device)) {
        return Some(format!(
            "`--device {device}` gives the container a device beside its slice"
        ));
    }
    let shows = |source: &str| is_node(source) || (!devices_closed && holds_nodes(source));
    let (source, _) = seen.mounts.iter().find(|(source, _)| shows(source))?;
    Some(format!(
        "the mount of `{source}` gives the container a device beside its slice"
    ))
}

/// Whether it names a device of a vendor's, or of another slice's, or nodes of one.
fn is_whole(device: &str) -> bool {
    const VENDORS: [&str; 3] = ["nvidia.com/", "amd.com/gpu", "divvy.dev/"];
    let host = device.split(':').next().unwrap_or_default();
    VENDORS.iter().any(|start| device.starts_with(start))
        || (host.starts_with('/') && (is_node(host) || is_node(device) || holds_nodes(host)))
}

/// A GPU's node, or a folder of them, whatever it is called: by its path, by where a link leads, by its number.
fn is_node(path: &str) -> bool {
    const NODES: [&str; 3] = ["/dev/nvidia", "/dev/dri", "/dev/kfd"];
    let named = |path: &str| NODES.iter().any(|start| path.starts_with(start));
    // `/dev/char/MAJOR:MINOR`, whose link may not be there.
    let by_number = |path: &str| {
        let number = path.strip_prefix("/dev/char/")?;
        number.split(':').next()?.parse().ok()
    };
    let clean = clean(path);
    let real = fs::canonicalize(path).unwrap_or_default();
    let node = fs::metadata(path)
        .ok()
        .filter(|meta| meta.file_type().is_char_device());
    let majors = majors();
    named(&clean)
        || named(&real.to_string_lossy())
        || by_number(&clean).is_some_and(|number| majors.contains(&number))
        || node.is_some_and(|meta| majors.contains(&major(meta.rdev())))
}

/// A folder in which the nodes lie among others.
fn holds_nodes(path: &str) -> bool {
    let real = fs::canonicalize(path).unwrap_or_else(|_| clean(path).into());
    ["/", "/dev"].iter().any(|folder| real == Path::new(folder))
}

/// The numbers of GPUs' nodes: NVIDIA's and those of /dev/dri are fixed (Documentation/admin-guide/devices.txt in Linux), the
/// others are as this machine has them.
fn majors() -> HashSet<u32> {
    let names = fs::read_dir("/dev").into_iter().flatten().flatten();
    let gpus = names.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("nvidia") || name == "kfd"
    });
    gpus.filter_map(|entry| fs::metadata(entry.path()).ok())
        .filter(|meta| meta.file_type().is_char_device())
        .map(|meta| major(meta.rdev()))
        .chain([195, 226])
        .collect()
}

/// Whether a rule of the device cgroup, `c 195:* rwm`, is of such nodes. A rule that is not understood counts as one.
fn opens(rule: &str) -> bool {
    let mut words = rule.split_whitespace();
    let number = match words.next() {
        Some("b") => return false,
        Some("c") => words
            .next()
            .and_then(|number| number.split(':').next()?.parse().ok()),
        _ => None,
    };
    number.is_none_or(|number: u32| majors().contains(&number))
}

#[cfg(test)]
mod tests {
    use super::super::split;
    use super::*;
    use std::ffi::OsString;

    /// Words with `_` for the blanks inside them.
    fn seen(words: &str) -> Seen {
        let words: Vec<OsString> = words
            .split_whitespace()
            .map(|word| word.replace('_', " ").into())
            .collect();
        split(&words, &|_| None).expect("a line").seen
    }

    #[test]
    fn ways_around_the_slice_are_seen() {
        let base = tempfile::tempdir().expect("a folder");
        let link = base.path().join("link");
        std::os::unix::fs::symlink("/dev", &link).expect("a link");
        let linked = format!("run --device {}:/dev/x image", link.display());
        for words in [
            "run --privileged image",
            "run --gpus all image",
            "run --gpus=1 image",
            "run --device /dev/nvidia0 image",
            "run --device=/dev/dri/renderD128:/dev/x image",
            "run --device //dev/./nvidia1 image",
            "run --device /dev/char/195:1 image",
            "run --device /dev image",
            &linked,
            "run --device nvidia.com/gpu=all image",
            "run --device divvy.dev/slice=other image",
            "run --runtime nvidia image",
            "run --runtime=/usr/bin/nvidia-container-runtime image",
            "run --cgroups=disabled image",
            "run --cgroups disabled image",
            "run --device-cgroup-rule c_*:*_rwm image",
            "run --device-cgroup-rule c_195:*_rwm --device-cgroup-rule c_188:*_rwm image",
            "run --device-cgroup-rule a image",
            "run -v /dev/nvidia1:/dev/nvidia1 image",
            "run --volume=/dev/dri:/dev/dri image",
            "run --mount type=bind,src=/dev/kfd,dst=/x image",
        ] {
            assert!(around(&seen(words), true).is_some(), "{words}");
        }
        for words in [
            "run image --privileged",
            "run --privileged=false image",
            "run --device /dev/fuse image",
            "run --cgroups enabled image",
            "run --device-cgroup-rule c_188:*_rwm image",
            "run --device-cgroup-rule b_8:*_r image",
            "run -v /data:/data image",
            "run --device vendor.com/nic=0 image",
            "run --runtime crun image",
        ] {
            assert_eq!(around(&seen(words), false), None, "{words}");
        }
        // The nodes are seen there; rules keep them closed, where there are rules.
        for words in ["run -v /dev:/dev image", "run -v /:/host:ro image"] {
            assert_eq!(around(&seen(words), true), None, "{words}");
            assert!(around(&seen(words), false).is_some(), "{words}");
        }
    }

    /// The number counts, where this machine has such a node.
    #[test]
    fn a_node_is_a_node_under_any_name() {
        assert!(majors().contains(&195));
        assert!(!is_node("/dev/null"), "its number is 1:3");
        assert!(is_node("/dev/char/226:128"));
        assert!(!is_node("/dev/char/1:3"));
    }
}
