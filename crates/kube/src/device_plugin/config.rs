//! The configuration file of NVIDIA's device plugin, version v1. Facts of the format: github.com/NVIDIA/k8s-device-plugin,
//! README and `api/config/v1`.

use std::sync::LazyLock;

use divvy_model::{Code, Fault};
use serde_json::{Map, Value};

/// The largest file that is read, in bytes.
pub const LARGEST: u64 = 1 << 20;
/// The most replicas of a device.
const MOST_REPLICAS: u64 = 1000;
/// The domain of names that have none.
const DOMAIN: &str = "nvidia.com";

/// How GPUs in MIG mode are given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigStrategy {
    /// They are not.
    #[default]
    None,
    /// Their instances are `nvidia.com/gpu`; all GPUs are divided alike.
    Single,
    /// Their instances are resources named by their profiles.
    Mixed,
}

/// How the replicas of a device share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In turn.
    TimeSlicing,
    /// At the same time, under MPS.
    Mps,
}

/// Which devices of a resource are replicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// The first so many.
    First(usize),
    /// These: by index, `GPU:INSTANCE` or UUID.
    These(Vec<String>),
}

/// A resource whose devices are replicated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicated {
    /// The resource, with its domain.
    pub name: String,
    /// What it is called then.
    pub rename: Option<String>,
    /// Which of its devices.
    pub devices: Which,
    /// How many parts.
    pub replicas: u32,
}

/// The part `sharing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// In which way.
    pub way: Way,
    /// Replicated resources are called `NAME.shared`.
    pub rename_by_default: bool,
    /// A container that asks for several replicas is refused.
    pub fail_requests_greater_than_one: bool,
    /// The resources.
    pub resources: Vec<Replicated>,
}

/// The whole file, as far as it counts here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// How GPUs in MIG mode are given out.
    pub mig: MigStrategy,
    /// CDI devices go to the runtime by annotations, as runtimes before CDI fields read them.
    pub annotations: bool,
    /// Names of GPUs by their product, as a pattern with `*`, in order.
    pub gpus: Vec<(String, String)>,
    /// Names of MIG instances by their profile, likewise.
    pub migs: Vec<(String, String)>,
    /// What is replicated.
    pub sharing: Option<Sharing>,
    /// Fields that mean nothing here, for the log.
    pub passed_over: Vec<String>,
}

/// Fields of `flags` that are about how NVIDIA's plugin finds its driver, or about its other programs.
const NO_MATTER: [&str; 14] = [
    "failOnInitError",
    "mpsRoot",
    "nvidiaDriverRoot",
    "nvidiaDevRoot",
    "driverRoot",
    "devRoot",
    "gdrcopyEnabled",
    "gdsEnabled",
    "mofedEnabled",
    "useNodeFeatureAPI",
    "deviceDiscoveryStrategy",
    "imexChannelIDs",
    "imexRequired",
    "gfd",
];

impl Config {
    /// Reads it.
    ///
    /// # Errors
    /// [`Code::Config`] with the field and what it may be.
    pub fn read(text: &str) -> Result<Self, Fault> {
        let value: Value = serde_saphyr::from_str(text).map_err(|error| refused(&cut(&error.to_string())))?;
        let file = match &value {
            Value::Null => &Map::new(),
            value => object(value, "the file")?,
        };
        let mut config = Self::default();
        match file
            .get("version")
            .map(|version| word(version, "version"))
            .transpose()?
        {
            None | Some("v1") => {}
            Some(other) => return Err(refused(&format!("version: `{}` is not v1", cut(other)))),
        }
        for (field, value) in file {
            match field.as_str() {
                "version" => {}
                "flags" => config.flags(value)?,
                "resources" => config.resources(value)?,
                "sharing" => config.sharing = sharing(value, &mut config.passed_over)?,
                other => config.passed_over.push(cut(other)),
            }
        }
        Ok(config)
    }

    fn flags(&mut self, value: &Value) -> Result<(), Fault> {
        for (field, value) in optional(value, "flags")? {
            match field.as_str() {
                "migStrategy" => {
                    self.mig = match word(value, "flags.migStrategy")? {
                        "none" => MigStrategy::None,
                        "single" => MigStrategy::Single,
                        "mixed" => MigStrategy::Mixed,
                        other => {
                            let why =
                                format!("flags.migStrategy: `{}` is not none, single or mixed", cut(other));
                            return Err(refused(&why));
                        }
                    }
                }
                "plugin" => self.plugin(value)?,
                known if NO_MATTER.contains(&known) => {}
                other => self.passed_over.push(format!("flags.{}", cut(other))),
            }
        }
        Ok(())
    }

    fn plugin(&mut self, value: &Value) -> Result<(), Fault> {
        const STRATEGY: &str = "flags.plugin.deviceListStrategy";
        for (field, value) in optional(value, "flags.plugin")? {
            match field.as_str() {
                "deviceListStrategy" => {
                    let ways: Vec<&str> = match value {
                        Value::String(text) => text.split(',').collect(),
                        Value::Array(all) => all
                            .iter()
                            .map(|one| word(one, STRATEGY))
                            .collect::<Result<_, _>>()?,
                        _ => return Err(refused(&format!("{STRATEGY}: a word or a list of words"))),
                    };
                    for way in &ways {
                        if !["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"].contains(&way.trim()) {
                            return Err(refused(&format!("{STRATEGY}: `{}` is not known", cut(way))));
                        }
                    }
                    self.annotations = ways.contains(&"cdi-annotations") && !ways.contains(&"cdi-cri");
                }
                "passDeviceSpecs"
                | "cdiAnnotationPrefix"
                | "nvidiaCTKPath"
                | "nvidiaCDIHookPath"
                | "containerDriverRoot" => {}
                other => self.passed_over.push(format!("flags.plugin.{}", cut(other))),
            }
        }
        Ok(())
    }

    fn resources(&mut self, value: &Value) -> Result<(), Fault> {
        for (field, value) in optional(value, "resources")? {
            let names = match field.as_str() {
                "gpus" => &mut self.gpus,
                "mig" => &mut self.migs,
                other => {
                    self.passed_over.push(format!("resources.{}", cut(other)));
                    continue;
                }
            };
            let place = format!("resources.{field}");
            for entry in list(value, &place)? {
                let entry = object(entry, &place)?;
                let text = |field: &str| {
                    let value = entry
                        .get(field)
                        .ok_or_else(|| refused(&format!("{place}: `{field}` is missing")))?;
                    word(value, &place)
                };
                names.push((text("pattern")?.to_owned(), qualified(text("name")?)?));
            }
        }
        Ok(())
    }
}

fn sharing(value: &Value, passed_over: &mut Vec<String>) -> Result<Option<Sharing>, Fault> {
    let mut found = None;
    for (field, value) in optional(value, "sharing")? {
        let way = match field.as_str() {
            "timeSlicing" => Way::TimeSlicing,
            "mps" => Way::Mps,
            other => {
                passed_over.push(format!("sharing.{}", cut(other)));
                continue;
            }
        };
        let part = part(way, &format!("sharing.{field}"), value)?;
        if part.resources.is_empty() {
            continue;
        }
        if found.replace(part).is_some() {
            return Err(refused("sharing: one of timeSlicing and mps, not both"));
        }
    }
    Ok(found)
}

fn part(way: Way, place: &str, value: &Value) -> Result<Sharing, Fault> {
    let fields = optional(value, place)?;
    let truth = |field: &str, default: bool| match fields.get(field) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(truth)) => Ok(*truth),
        Some(_) => Err(refused(&format!("{place}.{field}: true or false"))),
    };
    let mut resources: Vec<Replicated> = Vec::new();
    for (field, value) in fields {
        match field.as_str() {
            "renameByDefault" | "failRequestsGreaterThanOne" => {}
            "resources" => {
                for entry in list(value, &format!("{place}.resources"))? {
                    resources.push(replicated(entry, &format!("{place}.resources"))?);
                }
            }
            // A misspelt field here is a limit that is none.
            other => return Err(refused(&format!("{place}: there is no field `{}`", cut(other)))),
        }
    }
    for (number, one) in resources.iter().enumerate() {
        let again = |other: &Replicated| other.name == one.name && other.devices == one.devices;
        if resources[..number].iter().any(again) {
            return Err(refused(&format!(
                "{place}.resources: `{}` is there twice",
                one.name
            )));
        }
    }
    Ok(Sharing {
        way,
        rename_by_default: truth("renameByDefault", false)?,
        // Under MPS NVIDIA's plugin always refuses them.
        fail_requests_greater_than_one: truth("failRequestsGreaterThanOne", way == Way::Mps)?
            || way == Way::Mps,
        resources,
    })
}

fn replicated(value: &Value, place: &str) -> Result<Replicated, Fault> {
    let mut found = Replicated {
        name: String::new(),
        rename: None,
        devices: Which::All,
        replicas: 0,
    };
    for (field, value) in object(value, place)? {
        match field.as_str() {
            "name" => found.name = qualified(word(value, place)?)?,
            "rename" => found.rename = Some(qualified(word(value, place)?)?),
            "devices" => found.devices = which(value, place)?,
            "replicas" => {
                found.replicas = value
                    .as_u64()
                    .filter(|number| (1..=MOST_REPLICAS).contains(number))
                    .and_then(|number| u32::try_from(number).ok())
                    .ok_or_else(|| {
                        refused(&format!(
                            "{place}: replicas are a number from 1 to {MOST_REPLICAS}"
                        ))
                    })?;
            }
            other => return Err(refused(&format!("{place}: there is no field `{}`", cut(other)))),
        }
    }
    if found.name.is_empty() || found.replicas == 0 {
        return Err(refused(&format!("{place}: each has a name and replicas")));
    }
    Ok(found)
}

fn which(value: &Value, place: &str) -> Result<Which, Fault> {
    let wrong = || {
        refused(&format!(
            "{place}: devices are `all`, a number, or a list of indices and UUIDs"
        ))
    };
    match value {
        Value::String(text) if text == "all" => Ok(Which::All),
        Value::Number(number) => {
            let number = number.as_u64().filter(|number| *number > 0).ok_or_else(wrong)?;
            usize::try_from(number).map(Which::First).map_err(|_| wrong())
        }
        Value::Array(all) => {
            let one = |value: &Value| match value {
                Value::Number(number) => number.as_u64().map(|number| number.to_string()).ok_or_else(wrong),
                Value::String(text) if !text.is_empty() && text.len() <= 64 => Ok(text.clone()),
                _ => Err(wrong()),
            };
            Ok(Which::These(all.iter().map(one).collect::<Result<_, _>>()?))
        }
        _ => Err(wrong()),
    }
}

/// A resource's name with its domain, as Kubernetes takes them.
fn qualified(name: &str) -> Result<String, Fault> {
    let whole = match name.contains('/') {
        true => name.to_owned(),
        false => format!("{DOMAIN}/{name}"),
    };
    match is_resource(&whole) {
        true => Ok(whole),
        false => Err(refused(&format!("`{}` is no name of a resource", cut(name)))),
    }
}

/// Whether Kubernetes takes this for the name of an extended resource: a domain and a name, each of 63 characters at most so
/// that quotas can name it too.
#[must_use]
pub fn is_resource(name: &str) -> bool {
    let plain = |text: &str, more: &[u8]| {
        let end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        (1..=63).contains(&text.len())
            && end(text.bytes().next())
            && end(text.bytes().last())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
    };
    name.split_once('/')
        .is_some_and(|(domain, name)| plain(domain, b"-.") && plain(name, b"-._"))
}

fn refused(why: &str) -> Fault {
    Fault::new(
        Code::Config,
        "the device plugin's configuration was not understood",
    )
    .cause(why)
    .hint("it is NVIDIA's, version v1: docs/kubernetes.md says what of it counts")
}

/// Text of the file's, of a length for logs.
fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn word<'a>(value: &'a Value, place: &str) -> Result<&'a str, Fault> {
    value.as_str().ok_or_else(|| refused(&format!("{place}: a word")))
}

fn object<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, Fault> {
    value
        .as_object()
        .ok_or_else(|| refused(&format!("{place}: fields with names")))
}

/// The fields of what may be left empty.
fn optional<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, Fault> {
    static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    match value {
        Value::Null => Ok(&NONE),
        value => object(value, place),
    }
}

fn list<'a>(value: &'a Value, place: &str) -> Result<&'a [Value], Fault> {
    match value {
        Value::Null => Ok(&[]),
        value => value
            .as_array()
            .map(Vec::as_slice)
            .ok_or_else(|| refused(&format!("{place}: a list"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidias_published_files_are_read() {
        let sliced = Config::read(
            "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 10\n",
        )
        .expect("understood");
        let sharing = sliced.sharing.expect("shared");
        assert_eq!(
            (
                sharing.way,
                sharing.rename_by_default,
                sharing.fail_requests_greater_than_one
            ),
            (Way::TimeSlicing, false, false)
        );
        assert_eq!(
            (sharing.resources[0].name.as_str(), sharing.resources[0].replicas),
            ("nvidia.com/gpu", 10)
        );
        let all = Config::read(
            "version: v1\nflags:\n  migStrategy: \"mixed\"\n  failOnInitError: true\n  nvidiaDriverRoot: \"/\"\n  \
             plugin:\n    passDeviceSpecs: false\n    deviceListStrategy: [cdi-annotations]\n    deviceIDStrategy: uuid\n  \
             gfd:\n    oneshot: false\nresources:\n  gpus:\n  - pattern: \"*\"\n    name: gpu\n  mig:\n  - pattern: \"1g.*\"\n    \
             name: small\nsharing:\n  mps:\n    renameByDefault: true\n    resources:\n    - name: gpu\n      replicas: 4\n      \
             devices: [0, \"GPU-1\"]\n    - {name: mig-1g.10gb, rename: tiny, replicas: 2, devices: 3}\n",
        )
        .expect("understood");
        assert_eq!((all.mig, all.annotations), (MigStrategy::Mixed, true));
        assert_eq!(all.migs, [("1g.*".to_owned(), "nvidia.com/small".to_owned())]);
        assert_eq!(all.passed_over, ["flags.plugin.deviceIDStrategy"]);
        let sharing = all.sharing.expect("shared");
        assert!(sharing.fail_requests_greater_than_one && sharing.rename_by_default);
        assert_eq!(
            sharing.resources[0].devices,
            Which::These(vec!["0".into(), "GPU-1".into()])
        );
        assert_eq!(
            (
                &sharing.resources[1].devices,
                sharing.resources[1].rename.as_deref()
            ),
            (&Which::First(3), Some("nvidia.com/tiny"))
        );
        for empty in [
            "",
            "version: v1",
            "sharing:\n  timeSlicing: {}\n",
            "flags:\nsharing:\nresources:\n",
        ] {
            assert_eq!(
                Config::read(empty).expect("nothing"),
                Config::default(),
                "{empty}"
            );
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let long = format!("version: {}", "x".repeat(5000));
        for (text, named) in [
            ("version: v2", "version"),
            (&long, "version"),
            ("- a", "the file"),
            ("flags: {migStrategy: all}", "migStrategy"),
            (
                "flags: {plugin: {deviceListStrategy: magic}}",
                "deviceListStrategy",
            ),
            ("sharing: {timeSlicing: {resources: [{name: gpu}]}}", "replicas"),
            (
                "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 0}]}}",
                "replicas",
            ),
            (
                "sharing: {timeSlicing: {resources: [{name: gpu, replicas: -1}]}}",
                "replicas",
            ),
            (
                "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, device: 1}]}}",
                "`device`",
            ),
            ("sharing: {timeSlicing: {replicas: 2}}", "`replicas`"),
            (
                "sharing: {timeSlicing: {resources: [{name: 'a b', replicas: 2}]}}",
                "`a b`",
            ),
            (
                "sharing: {timeSlicing: {resources: [{name: g, replicas: 2}, {name: g, replicas: 3}]}}",
                "twice",
            ),
            (
                "sharing: {timeSlicing: {resources: [{name: g, replicas: 2}]}, mps: {resources: [{name: g, replicas: 2}]}}",
                "not both",
            ),
            (
                "sharing: {timeSlicing: {failRequestsGreaterThanOne: maybe}}",
                "failRequestsGreaterThanOne",
            ),
            ("{", ""),
        ] {
            let refused = Config::read(text).expect_err(text);
            assert_eq!(refused.code, Code::Config);
            assert!(
                refused.causes[0].contains(named) && refused.causes[0].len() < 1000,
                "{text}: {:?}",
                refused.causes
            );
        }
    }
}
