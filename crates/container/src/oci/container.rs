//! What a configuration says of its container, as far as requests need it. Anything of another shape than the
//! specification has says nothing.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// The folder of a container in containers/storage, where podman and CRI-O keep bundles. Podman copies the annotations
/// of an image's manifest among its own and marks neither. No annotation proves that the engine is podman, for an image
/// can have written each of them (`io.container.manager`: podman 4.3 leaves an image's as it is).
const STORAGE: &str = "userdata";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its first process's environment; of a name that stands twice the last value, as getenv in most programs.
    pub environment: BTreeMap<String, String>,
    /// What the engine says of it.
    pub annotations: BTreeMap<String, String>,
    /// Whether its image may have written some of the annotations.
    pub annotated_by_image: bool,
    /// Targets of what is mounted from /dev/null.
    pub nulls: Vec<String>,
    /// Whether it may have CAP_SYS_ADMIN, which makes it a privileged one to NVIDIA's toolkit.
    pub privileged: bool,
    /// What it runs.
    pub arguments: Vec<String>,
    /// Where it runs it.
    pub folder: String,
}

impl Container {
    /// Reads it, and where it lies: its bundle.
    #[must_use]
    pub fn of_bundle(config: &Value, bundle: &Path) -> Self {
        Self {
            annotated_by_image: bundle.file_name().is_some_and(|name| name == STORAGE),
            ..Self::read(config)
        }
    }

    /// Reads it.
    #[must_use]
    pub fn read(config: &Value) -> Self {
        let strings = |pointer: &str| -> Vec<String> {
            let list = config.pointer(pointer).and_then(Value::as_array);
            let list = list.into_iter().flatten().filter_map(Value::as_str);
            list.map(str::to_owned).collect()
        };
        let environment = strings("/process/env")
            .iter()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let annotations = config.get("annotations").and_then(Value::as_object);
        let annotations: BTreeMap<String, String> = annotations
            .into_iter()
            .flatten()
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect();
        let mounts = config.get("mounts").and_then(Value::as_array);
        let nulls = mounts
            .into_iter()
            .flatten()
            .filter(|mount| {
                let source = mount.get("source").and_then(Value::as_str).unwrap_or_default();
                clean(source) == "/dev/null"
            })
            .filter_map(|mount| Some(clean(mount.get("destination")?.as_str()?)))
            .collect();
        Self {
            environment,
            annotated_by_image: false,
            annotations,
            nulls,
            privileged: strings("/process/capabilities/bounding")
                .iter()
                .any(|name| name == "CAP_SYS_ADMIN"),
            arguments: strings("/process/args"),
            folder: config
                .pointer("/process/cwd")
                .and_then(Value::as_str)
                .unwrap_or("/")
                .to_owned(),
        }
    }
}

/// A path without doubled slashes, `.` and `..`, as Go's filepath.Clean has it for absolute ones.
pub(crate) fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned() {
        for (path, expected) in [
            ("/a//b/./c", "/a/b/c"),
            ("/a/../../b", "/b"),
            ("/", "/"),
            ("", "/"),
        ] {
            assert_eq!(clean(path), expected);
        }
    }

    #[test]
    fn other_shapes_say_nothing() {
        for text in [
            "{}",
            r#"{"process":[],"mounts":{},"annotations":[1]}"#,
            r#"{"process":{"env":[1,"A"],"capabilities":{"bounding":"CAP_SYS_ADMIN"},"args":"sh"},"mounts":[1,{"source":2}]}"#,
        ] {
            let config = serde_json::from_str(text).expect("JSON");
            let read = Container::read(&config);
            let expected = Container {
                folder: "/".into(),
                ..Container::default()
            };
            assert_eq!(read, expected, "{text}");
        }
    }
}
