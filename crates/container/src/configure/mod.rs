//! Engines' configuration files: our runtime wrapper in their list of runtimes, and CDI turned on where it is off.
//!
//! podman and CRI-O read folders of files, so ours is a file of its own. Docker has one file, of JSON. containerd has one
//! of TOML, which people comment: our part stands at its end, between two lines that say whose it is.

mod store;

pub use store::{BACKUP, Change, change, undo};

use std::path::Path;

use serde_json::{Value, json};

/// An engine whose configuration we can write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// docker's daemon.
    Docker,
    /// podman.
    Podman,
    /// containerd, for Kubernetes.
    Containerd,
    /// CRI-O.
    Crio,
}

impl Target {
    /// The file that is written.
    #[must_use]
    pub fn file(self) -> &'static Path {
        Path::new(match self {
            Self::Docker => "/etc/docker/daemon.json",
            Self::Podman => "/etc/containers/containers.conf.d/50-divvy.conf",
            Self::Containerd => "/etc/containerd/config.toml",
            Self::Crio => "/etc/crio/crio.conf.d/50-divvy.conf",
        })
    }

    /// How the engine is told of the change.
    #[must_use]
    pub fn restart(self) -> Option<&'static str> {
        match self {
            Self::Docker => Some("systemctl restart docker"),
            Self::Podman => None,
            Self::Containerd => Some("systemctl restart containerd"),
            Self::Crio => Some("systemctl restart crio"),
        }
    }

    /// How a container is run with the wrapper.
    #[must_use]
    pub fn example(self) -> &'static str {
        match self {
            Self::Docker => "docker run --runtime divvy --annotation divvy.dev/memory=4GiB IMAGE",
            // Podman copies annotations from images too: they count where images may ask.
            Self::Podman => {
                "DIVVY_CONTAINER_REQUESTS=variables podman --runtime divvy run --annotation divvy.dev/memory=4GiB IMAGE"
            }
            Self::Containerd | Self::Crio => "a RuntimeClass whose handler is `divvy`",
        }
    }

    /// The new text of a file with this text.
    ///
    /// # Errors
    /// Why the file cannot be added to, in words.
    pub fn with(self, text: &str, runtime: &str) -> Result<String, String> {
        match self {
            Self::Docker => docker(text, runtime),
            Self::Containerd => containerd(text, runtime),
            Self::Podman | Self::Crio if !text.trim().is_empty() && !text.starts_with(HEAD) => Err(format!(
                "another program wrote it; ours is a file of its own, as `{}`",
                self.file().display()
            )),
            Self::Podman => Ok(format!(
                "{HEAD}[engine.runtimes]\ndivvy = [{}]\n",
                quoted(runtime)
            )),
            Self::Crio => Ok(format!(
                "{HEAD}[crio.runtime.runtimes.divvy]\nruntime_path = {}\nruntime_type = \"oci\"\n\
                 allowed_annotations = [\"divvy.dev/\"]\n",
                quoted(runtime)
            )),
        }
    }

    /// The text without what is ours; nothing where that was all of it.
    ///
    /// # Errors
    /// Why it cannot be taken out, in words.
    pub fn without(self, text: &str) -> Result<Option<String>, String> {
        match self {
            Self::Docker => without_docker(text),
            Self::Containerd => {
                let rest = outside(text)?;
                Ok((!rest.trim().is_empty()).then_some(rest))
            }
            Self::Podman | Self::Crio if text.starts_with(HEAD) => Ok(None),
            Self::Podman | Self::Crio => Err("it is not ours".into()),
        }
    }
}

const HEAD: &str = "# Written by `divvy runtime configure`; `--undo` removes it.\n";
const BEGIN: &str = "# divvy: begin, written by `divvy runtime configure`\n";
const END: &str = "# divvy: end\n";

/// A string as TOML and JSON write it: both take JSON's.
fn quoted(text: &str) -> String {
    Value::String(text.into()).to_string()
}

fn object(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err("it holds no JSON object".into()),
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn docker(text: &str, runtime: &str) -> Result<String, String> {
    let mut config = object(text)?;
    for (part, name, value) in [
        ("runtimes", "divvy", json!({"path": runtime})),
        ("features", "cdi", json!(true)),
    ] {
        let place = config
            .as_object_mut()
            .map(|all| all.entry(part).or_insert(json!({})));
        let place = place
            .and_then(Value::as_object_mut)
            .ok_or_else(|| format!("its `{part}` is no object"))?;
        place.insert(name.into(), value);
    }
    Ok(pretty(&config))
}

fn without_docker(text: &str) -> Result<Option<String>, String> {
    let mut config = object(text)?;
    if let Some(all) = config.as_object_mut() {
        // Whether CDI was on before is not known any more: it stays.
        if let Some(runtimes) = all.get_mut("runtimes").and_then(Value::as_object_mut) {
            runtimes.remove("divvy");
            if runtimes.is_empty() {
                all.remove("runtimes");
            }
        }
        if all.is_empty() {
            return Ok(None);
        }
    }
    Ok(Some(pretty(&config)))
}

/// The text around our part.
fn outside(text: &str) -> Result<String, String> {
    match (text.split_once(BEGIN), text.contains(END)) {
        (None, _) => Ok(text.into()),
        (Some((before, rest)), true) => {
            let after = rest.split_once(END).map_or("", |(_, after)| after);
            Ok(
                format!("{}{after}", before.trim_end_matches('\n').to_owned() + "\n")
                    .trim_start_matches('\n')
                    .to_owned(),
            )
        }
        (Some(_), false) => Err(format!("the line `{}` is missing", END.trim())),
    }
}

fn containerd(text: &str, runtime: &str) -> Result<String, String> {
    let mut text = outside(text)?;
    let config: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let version = config.get("version").and_then(toml::Value::as_integer);
    let plugin = match version {
        Some(3) => "io.containerd.cri.v1.runtime",
        Some(2) => "io.containerd.grpc.v1.cri",
        // A file without a version is one of version 1, but for an empty one.
        None if config.is_empty() => "io.containerd.grpc.v1.cri",
        _ => return Err("it is of version 1, which containerd 2 does not read: write it again with `containerd config migrate`".into()),
    };
    let known = |part: &str| {
        let plugin = config.get("plugins")?.get(plugin)?;
        plugin.get("containerd")?.get("runtimes")?.get(part)
    };
    if known("divvy").is_some() {
        return Err("it has a runtime `divvy` that another program wrote".into());
    }
    if config.is_empty() {
        text.push_str("version = 2\n");
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let place = format!("plugins.\"{plugin}\".containerd.runtimes.divvy");
    let part = format!(
        "{BEGIN}[{place}]\nruntime_type = \"io.containerd.runc.v2\"\npod_annotations = [\"divvy.dev/*\"]\n\
         container_annotations = [\"divvy.dev/*\"]\n[{place}.options]\nBinaryName = {}\n{END}",
        quoted(runtime)
    );
    text.push_str(&part);
    // The result must still be TOML: an inline table cannot be added to.
    let _whole: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNTIME: &str = "/usr/bin/divvy-oci-runtime";
    const ALL: [Target; 4] = [Target::Docker, Target::Podman, Target::Containerd, Target::Crio];

    #[test]
    fn what_is_added_is_taken_out_again() {
        for target in ALL {
            let text = target.with("", RUNTIME).expect("added");
            assert!(text.contains(RUNTIME), "{text}");
            let left = target.without(&text).expect("taken out");
            match target {
                Target::Docker => assert!(left.expect("CDI stays").contains("\"cdi\": true")),
                Target::Containerd => assert_eq!(left.as_deref(), Some("version = 2\n")),
                _ => assert_eq!(left, None),
            }
        }
    }

    #[test]
    fn twice_is_once() {
        for target in [Target::Docker, Target::Containerd] {
            let once = target.with("", RUNTIME).expect("added");
            assert_eq!(target.with(&once, RUNTIME), Ok(once));
        }
    }

    #[test]
    fn what_others_wrote_stays() {
        let dockers =
            r#"{"log-driver": "journald", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}"#;
        let text = Target::Docker.with(dockers, RUNTIME).expect("added");
        assert!(text.contains("journald") && text.contains("nvidia-container-runtime"));
        let left = Target::Docker.without(&text).expect("taken out").expect("a file");
        assert!(left.contains("nvidia-container-runtime") && !left.contains("divvy"));
        let containerds =
            "version = 3\n# ours\n[plugins.\"io.containerd.cri.v1.runtime\"]\n  enable_selinux = true\n";
        let text = Target::Containerd.with(containerds, RUNTIME).expect("added");
        assert!(text.starts_with(containerds) && text.contains("io.containerd.cri.v1.runtime\".containerd"));
        assert_eq!(Target::Containerd.without(&text), Ok(Some(containerds.into())));
    }

    #[test]
    fn what_cannot_be_added_to_is_said() {
        for (target, text, part) in [
            (Target::Podman, "[engine]\n", "another program"),
            (Target::Crio, "# mine\n", "another program"),
            (Target::Docker, "[]", "no JSON object"),
            (Target::Docker, "{", "EOF"),
            (Target::Docker, r#"{"runtimes": []}"#, "`runtimes` is no object"),
            (Target::Containerd, "version = 1\n", "version 1"),
            (Target::Containerd, "root = \"/x\"\n", "version 1"),
            (Target::Containerd, "version = [", ""),
            (
                Target::Containerd,
                "version = 2\n[plugins]\n\"io.containerd.grpc.v1.cri\" = {}\n",
                "",
            ),
            (
                Target::Containerd,
                "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.divvy]\n",
                "another program",
            ),
        ] {
            let said = target.with(text, RUNTIME).expect_err("no");
            assert!(said.contains(part), "{text}: {said}");
        }
        assert!(Target::Podman.without("[engine]\n").is_err());
        let cut = Target::Containerd
            .with("", RUNTIME)
            .expect("added")
            .replace(END, "");
        assert!(Target::Containerd.without(&cut).is_err());
    }
}
