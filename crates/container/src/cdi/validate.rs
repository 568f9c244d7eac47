//! What is wrong with the CDI files of a machine. An engine says "unresolvable CDI devices" and nothing more.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::directory::Found;
use super::name::{is_device_name, is_kind};
use super::spec::{Device, Edits, Spec};
use super::version::Version;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Some engine refuses it, or something is not as it seems.
    Warning,
    /// A device of it cannot be had.
    Error,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The file.
    pub file: PathBuf,
    /// The device's full name, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// How bad it is.
    pub level: Level,
    /// What is wrong, in a sentence.
    pub problem: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Everything that is wrong with these files on this machine.
#[must_use]
pub fn validate(found: &[Found]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in found {
        match &file.spec {
            Ok(spec) => of_file(&file.path, spec, &mut findings),
            Err(reason) => findings.push(Finding {
                file: file.path.clone(),
                device: None,
                level: Level::Error,
                problem: format!("engines skip the whole file: {reason}"),
                hint: Some("correct it, or write it again with the tool that made it".into()),
            }),
        }
    }
    claimed_twice(found, &mut findings);
    findings
}

fn of_file(path: &Path, spec: &Spec, findings: &mut Vec<Finding>) {
    let mut say = |device: Option<&Device>, level, problem: String, hint: Option<String>| {
        findings.push(Finding {
            file: path.into(),
            device: device.map(|device| format!("{}={}", spec.kind, device.name)),
            level,
            problem,
            hint,
        });
    };
    if !is_kind(&spec.kind) {
        let problem = format!("`{}` is no kind: engines skip the whole file", spec.kind);
        say(
            None,
            Level::Error,
            problem,
            Some("write it as vendor.com/class".into()),
        );
    }
    let lowest = Version::lowest(spec);
    match spec.cdi_version.parse::<Version>() {
        Err(reason) => say(
            None,
            Level::Error,
            format!("{reason}: engines skip the whole file"),
            Some(format!("its content needs {lowest}")),
        ),
        Ok(version) if version < lowest => say(
            None,
            Level::Error,
            format!("it says version {version} and uses what came with {lowest}"),
            Some(format!("set cdiVersion to {lowest}")),
        ),
        Ok(version) if version > Version::OF_PODMAN_4_3 => say(
            None,
            Level::Warning,
            format!("version {version} is too new for podman 4.3, which then skips the whole file"),
            (lowest < version).then(|| format!("its content needs {lowest} only: set cdiVersion to that")),
        ),
        Ok(_) => {}
    }
    let mut names: Vec<&str> = Vec::new();
    if spec.devices.is_empty() {
        say(None, Level::Error, "it has no device".into(), None);
    }
    for device in &spec.devices {
        if !is_device_name(&device.name) {
            let problem = format!(
                "`{}` is no device's name: engines skip the whole file",
                device.name
            );
            let hint = "letters, digits and -_.: between letters or digits";
            say(Some(device), Level::Error, problem, Some(hint.into()));
        }
        if names.contains(&device.name.as_str()) {
            say(
                Some(device),
                Level::Error,
                "the file has this name twice".into(),
                None,
            );
        }
        names.push(&device.name);
        if device.container_edits.is_empty() {
            say(
                Some(device),
                Level::Error,
                "it changes nothing, which engines refuse".into(),
                None,
            );
        }
        for (level, problem, hint) in of_edits(&device.container_edits) {
            say(Some(device), level, problem, hint);
        }
    }
    for (level, problem, hint) in of_edits(&spec.container_edits) {
        say(None, level, problem, hint);
    }
}

type Said = (Level, String, Option<String>);

/// Hooks of the OCI runtime specification.
const HOOKS: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];

fn of_edits(edits: &Edits) -> Vec<Said> {
    let mut said = Vec::new();
    for hook in &edits.hooks {
        if hook.hook_name == "createContainer" && hook.env.is_empty() {
            said.push((
                Level::Warning,
                format!(
                    "`{}` runs on the host as root, and some runtimes give it the image's environment (CVE-2025-23266)",
                    hook.path
                ),
                Some("give the hook an `env` of its own, or use a device without hooks".into()),
            ));
        }
    }
    let mut error = |problem: String, hint: Option<&str>| {
        said.push((Level::Error, problem, hint.map(str::to_owned)));
    };
    for variable in &edits.env {
        if variable.split_once('=').is_none_or(|(name, _)| name.is_empty()) {
            error(format!("`{variable}` is no NAME=value"), None);
        }
    }
    let again = "the device or driver was changed since: write the file again with the tool that made it, `divvy container cdi generate` if it is ours";
    for node in &edits.device_nodes {
        let host = match node.host_path.as_str() {
            "" => &node.path,
            other => other,
        };
        match std::fs::metadata(host) {
            Err(_) if node.major.is_some() && !node.kind.is_empty() => {}
            Err(reason) => error(
                format!("the device node `{host}` cannot be used: {reason}"),
                Some(again),
            ),
            Ok(meta) if !(meta.file_type().is_char_device() || meta.file_type().is_block_device()) => {
                error(format!("`{host}` is no device node"), None);
            }
            Ok(_) => {}
        }
    }
    for mount in &edits.mounts {
        if !Path::new(&mount.container_path).is_absolute() {
            error(
                format!("the mount's target `{}` is not absolute", mount.container_path),
                None,
            );
        }
        // File systems such as tmpfs have no path on the host.
        let of_host = mount.kind.is_empty() || mount.kind == "bind" || mount.kind == "none";
        if of_host && let Err(reason) = std::fs::metadata(&mount.host_path) {
            error(
                format!(
                    "`{}`, which is to be mounted, cannot be used: {reason}",
                    mount.host_path
                ),
                Some(again),
            );
        }
    }
    for hook in &edits.hooks {
        if !HOOKS.contains(&hook.hook_name.as_str()) {
            error(format!("`{}` is no hook", hook.hook_name), None);
        }
        if let Err(reason) = std::fs::metadata(&hook.path) {
            error(
                format!("the hook's program `{}` cannot be used: {reason}", hook.path),
                Some(again),
            );
        }
    }
    said
}

/// Names that several files have. Within one directory no container gets the device; of two directories the later one
/// counts.
fn claimed_twice(found: &[Found], findings: &mut Vec<Finding>) {
    let mut claims: BTreeMap<String, Vec<&Found>> = BTreeMap::new();
    for file in found {
        let Ok(spec) = &file.spec else { continue };
        let mut names: Vec<&str> = spec.devices.iter().map(|device| device.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            claims
                .entry(format!("{}={name}", spec.kind))
                .or_default()
                .push(file);
        }
    }
    for (device, files) in claims {
        let Some(highest) = files.iter().map(|file| file.priority).max() else {
            continue;
        };
        let top: Vec<&&Found> = files.iter().filter(|file| file.priority == highest).collect();
        for file in &files {
            let others: Vec<String> = top
                .iter()
                .filter(|other| other.path != file.path)
                .map(|other| format!("`{}`", other.path.display()))
                .collect();
            if others.is_empty() {
                continue;
            }
            let others = others.join(" and ");
            let (level, problem, hint) = if file.priority == highest {
                (
                    Level::Error,
                    format!("{others} has the same name: engines call the device unresolvable"),
                    "remove one of the files, or give ours another kind with `divvy container cdi generate --kind`",
                )
            } else {
                (
                    Level::Warning,
                    format!("it is hidden by {others}"),
                    "remove the file that is not wanted",
                )
            };
            findings.push(Finding {
                file: file.path.clone(),
                device: Some(device.clone()),
                level,
                problem,
                hint: Some(hint.into()),
            });
        }
    }
}
