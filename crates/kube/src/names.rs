//! What pods ask for by names of extended resources: Divvy's, and those of HAMi, gpushare, elastic-gpu, gpu-admission and NVIDIA's
//! device plugin. Pure; the webhook, the extender and `divvy k8s migrate` read pods by this.

use divvy_model::Class;
use divvy_placement::fallback::ask::{Ask, Memory, PodAsk, Prefer};
use divvy_placement::quantity::whole;
use serde_json::Value;

/// Whose names a container uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// `divvy.dev/…`: what the extender reads.
    Divvy,
    /// HAMi: `nvidia.com/gpu` beside `gpumem`, `gpumem-percentage`, `gpucores` or `priority`.
    Hami,
    /// gpushare-scheduler-extender: `aliyun.com/gpu-mem`, in GiB, and `gpu-count`.
    Gpushare,
    /// elastic-gpu: `elasticgpu.io/gpu-core`, `gpu-memory` (MiB), and `qgpu-…`.
    ElasticGpu,
    /// gpu-admission and gpu-manager: `tencent.com/vcuda-core`, `vcuda-memory` (units of 256 MiB).
    GpuAdmission,
    /// NVIDIA's device plugin: `nvidia.com/gpu`, `nvidia.com/gpu.shared`.
    Nvidia,
}

impl System {
    /// Its name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Divvy => "Divvy",
            Self::Hami => "HAMi",
            Self::Gpushare => "gpushare",
            Self::ElasticGpu => "elastic-gpu",
            Self::GpuAdmission => "gpu-admission",
            Self::Nvidia => "NVIDIA",
        }
    }
}

/// What the cluster's administrator says of it.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// A device's memory in MiB, where one is known: for shares that are written in percent or parts.
    pub device_mib: Option<u64>,
    /// How many replicas `nvidia.com/gpu.shared` divides a device into, or `nvidia.com/gpu` where that is renamed so.
    pub replicas: Option<u64>,
    /// gpushare's memory is in MiB, and not in GiB.
    pub gpushare_in_mib: bool,
    /// `nvidia.com/gpu` alone is HAMi's: a slice with all the memory, and not a whole device.
    pub bare_is_hami: bool,
}

/// What was read of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it asks for.
    pub ask: PodAsk,
    /// Which slices go first.
    pub class: Option<Class>,
    /// Whose names they are.
    pub system: System,
    /// Places of containers that ask, with the names to take away: `containers` or `initContainers`, and the index.
    pub places: Vec<(&'static str, usize, Vec<String>)>,
    /// What could not be kept, in sentences.
    pub remarks: Vec<String>,
}

/// Names, each with its system.
const NAMES: [(&str, System); 20] = [
    ("divvy.dev/gpu", System::Divvy),
    ("divvy.dev/gpumem", System::Divvy),
    ("divvy.dev/gpumem-percentage", System::Divvy),
    ("divvy.dev/gpucores", System::Divvy),
    ("nvidia.com/gpumem", System::Hami),
    ("nvidia.com/gpumem-percentage", System::Hami),
    ("nvidia.com/gpucores", System::Hami),
    ("nvidia.com/priority", System::Hami),
    ("nvidia.com/gpu", System::Nvidia),
    ("nvidia.com/gpu.shared", System::Nvidia),
    ("aliyun.com/gpu-mem", System::Gpushare),
    ("aliyun.com/gpu-count", System::Gpushare),
    ("elasticgpu.io/gpu-core", System::ElasticGpu),
    ("elasticgpu.io/gpu-memory", System::ElasticGpu),
    ("elasticgpu.io/gpu-percent", System::ElasticGpu),
    ("elasticgpu.io/qgpu-core", System::ElasticGpu),
    ("elasticgpu.io/qgpu-memory", System::ElasticGpu),
    ("elasticgpu.io/pgpu", System::ElasticGpu),
    ("tencent.com/vcuda-core", System::GpuAdmission),
    ("tencent.com/vcuda-memory", System::GpuAdmission),
];

/// Whether a name of a resource is one that pods lose when they are rewritten.
#[must_use]
pub fn is_theirs(name: &str) -> bool {
    NAMES
        .iter()
        .any(|(known, system)| *known == name && *system != System::Divvy)
}

/// The most containers of a pod that may ask: each is placed on each node that is looked at, or has a template.
pub const MOST_CONTAINERS: usize = 16;

/// Names that begin so are a DeviceClass's `extendedResourceName`, as `divvy.dev/gpu-slice`: the scheduler makes claims of them.
const OF_CLASSES: &str = "divvy.dev/gpu-";

/// Names of theirs that are not understood, by their beginnings: a pod that asks for one is not to lose it silently.
const DOMAINS: [&str; 5] = [
    "divvy.dev/gpu",
    "aliyun.com/gpu",
    "elasticgpu.io/",
    "tencent.com/vcuda",
    "nvidia.com/mig-",
];

/// Reads a pod, or the template of one: its `metadata` and `spec`. None for one that asks for nothing.
///
/// # Errors
/// What cannot be kept as it was meant: a sentence.
pub fn read(metadata: &Value, spec: &Value, terms: &Terms) -> Result<Option<Found>, String> {
    let mut found: Option<Found> = None;
    for list in ["initContainers", "containers"] {
        let containers = spec.get(list).and_then(Value::as_array);
        for (index, container) in containers.into_iter().flatten().enumerate() {
            let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
            let limits = limits(container).map_err(|error| format!("container `{}`: {error}", cut(name)))?;
            if limits.is_empty() {
                continue;
            }
            let read = container_ask(name, &limits, terms);
            let (system, ask, class) = read.map_err(|error| format!("container `{}`: {error}", cut(name)))?;
            let names = limits.into_iter().map(|(name, _)| name).collect();
            let entry = found.get_or_insert_with(|| Found {
                ask: PodAsk::default(),
                class: None,
                system,
                places: Vec::new(),
                remarks: Vec::new(),
            });
            entry.class = entry.class.or(class);
            entry.system = entry.system.min(system);
            entry.places.push((list, index, names));
            if ask.devices > 0 {
                entry.ask.containers.push(ask);
            }
            if entry.ask.containers.len() > MOST_CONTAINERS {
                return Err(format!(
                    "more than {MOST_CONTAINERS} containers of one pod ask for devices"
                ));
            }
        }
    }
    if let Some(found) = &mut found {
        annotations(metadata, found)?;
    }
    Ok(found)
}

/// The names of ours and theirs that a container asks for, each with its number.
fn limits(container: &Value) -> Result<Vec<(String, u64)>, String> {
    let mut all: Vec<(String, u64)> = Vec::new();
    // Kubernetes takes a missing limit of an extended resource from the request.
    for kind in ["limits", "requests"] {
        let listed = container
            .pointer(&format!("/resources/{kind}"))
            .and_then(Value::as_object);
        for (name, value) in listed.into_iter().flatten() {
            let known = NAMES.iter().any(|(known, _)| known == name);
            let is_alike = DOMAINS.iter().any(|domain| name.starts_with(domain));
            if !known && (!is_alike || name.starts_with(OF_CLASSES)) {
                continue;
            }
            if !known {
                return Err(format!("`{}` is not understood", cut(name)));
            }
            let number = match value {
                Value::Number(number) => number.as_u64(),
                Value::String(text) => whole(text),
                _ => None,
            };
            let number = number
                .ok_or_else(|| format!("`{name}`: `{}` is no whole number", cut(&value.to_string())))?;
            match all.iter().find(|(known, _)| known == name) {
                Some((_, limit)) if *limit != number => {
                    return Err(format!("`{name}`: the request is not the limit"));
                }
                Some(_) => {}
                None => all.push((name.clone(), number)),
            }
        }
    }
    Ok(all)
}

type Read = (System, Ask, Option<Class>);

fn container_ask(name: &str, limits: &[(String, u64)], terms: &Terms) -> Result<Read, String> {
    let of = |name: &str| {
        limits
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, number)| *number)
    };
    let mut systems: Vec<System> = limits
        .iter()
        .filter_map(|(name, _)| {
            NAMES
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, system)| *system)
        })
        .collect();
    systems.sort_unstable();
    systems.dedup();
    // `nvidia.com/gpu` is HAMi's name too.
    if systems.contains(&System::Hami) || terms.bare_is_hami && of("nvidia.com/gpu").is_some() {
        systems.retain(|system| *system != System::Nvidia);
        if !systems.contains(&System::Hami) {
            systems.push(System::Hami);
        }
    }
    let [system] = systems[..] else {
        return Err("it mixes names of several systems".into());
    };
    let mut ask = Ask {
        container: name.to_owned(),
        devices: 1,
        ..Ask::default()
    };
    let mut class = None;
    match system {
        System::Divvy | System::Hami => {
            let domain = if system == System::Divvy {
                "divvy.dev"
            } else {
                "nvidia.com"
            };
            let named = |name: &str| of(&format!("{domain}/{name}"));
            ask.devices = count(named("gpu").unwrap_or(1))?;
            ask.memory = match (named("gpumem"), named("gpumem-percentage")) {
                (Some(0) | None, None) => Memory::All,
                (Some(mib), None) => Memory::Mib(mib),
                (None, Some(percent)) => percentage(percent, terms)?,
                (Some(_), Some(_)) => return Err("gpumem and gpumem-percentage exclude each other".into()),
            };
            ask.cores = cores(named("gpucores").unwrap_or(0))?;
            class = match named("priority") {
                None => None,
                Some(0) => Some(Class::Latency),
                Some(1) => Some(Class::BestEffort),
                Some(other) => return Err(format!("priority {other} is neither 0 nor 1")),
            };
        }
        System::Gpushare => {
            ask.devices = count(of("aliyun.com/gpu-count").unwrap_or(1))?;
            let number = of("aliyun.com/gpu-mem").filter(|mib| *mib > 0);
            let number = number.ok_or("gpu-count without gpu-mem")?;
            let unit = if terms.gpushare_in_mib { 1 } else { 1024 };
            ask.memory = Memory::Mib(number.checked_mul(unit).ok_or("that is too much memory")?);
        }
        System::ElasticGpu => elastic(&mut ask, &of)?,
        System::GpuAdmission => {
            let percent = of("tencent.com/vcuda-core").ok_or("vcuda-memory without vcuda-core")?;
            by_hundreds(&mut ask, percent)?;
            if !ask.whole {
                let units = of("tencent.com/vcuda-memory").ok_or("vcuda-core without vcuda-memory")?;
                ask.memory = Memory::Mib(units.checked_mul(256).ok_or("that is too much memory")?);
            }
        }
        System::Nvidia => nvidia(&mut ask, &of, terms)?,
    }
    Ok((system, ask, class))
}

fn elastic(ask: &mut Ask, of: &dyn Fn(&str) -> Option<u64>) -> Result<(), String> {
    if let Some(whole) = of("elasticgpu.io/pgpu") {
        ask.devices = count(whole)?;
        ask.whole = true;
        return Ok(());
    }
    let first = |names: [&str; 3]| {
        names
            .into_iter()
            .find_map(|name| of(&format!("elasticgpu.io/{name}")))
    };
    by_hundreds(ask, first(["gpu-core", "qgpu-core", "gpu-percent"]).unwrap_or(0))?;
    if !ask.whole {
        let mib = first(["gpu-memory", "qgpu-memory", "qgpu-memory"])
            .ok_or("a share of a GPU without gpu-memory")?;
        ask.memory = Memory::Mib(mib);
    }
    Ok(())
}

/// Percent of devices: 100 and its multiples are whole devices.
fn by_hundreds(ask: &mut Ask, percent: u64) -> Result<(), String> {
    match percent {
        0..=99 => ask.cores = percent,
        _ if percent.is_multiple_of(100) => {
            ask.devices = count(percent / 100)?;
            ask.whole = true;
        }
        _ => {
            return Err(format!(
                "{percent} % is neither a part of a device nor whole devices"
            ));
        }
    }
    Ok(())
}

fn nvidia(ask: &mut Ask, of: &dyn Fn(&str) -> Option<u64>, terms: &Terms) -> Result<(), String> {
    let (bare, shared) = (of("nvidia.com/gpu"), of("nvidia.com/gpu.shared"));
    if bare.is_some() && shared.is_some() {
        return Err("nvidia.com/gpu and nvidia.com/gpu.shared exclude each other".into());
    }
    ask.devices = count(bare.or(shared).unwrap_or(0))?;
    match terms.replicas {
        Some(replicas) if replicas > 1 => {
            // NVIDIA's replicas promise no memory. Slices do, so each has its part.
            ask.cores = 100 / replicas;
            ask.memory = percentage(100 / replicas, terms)?;
            if ask.devices > 1 {
                return Err(
                    "more than one replica: NVIDIA promises no more by it, so ask for one slice".into(),
                );
            }
        }
        _ if shared.is_some() => {
            return Err(
                "how many replicas a device has is not known: give the plugin's configuration file".into(),
            );
        }
        _ => ask.whole = true,
    }
    Ok(())
}

fn count(number: u64) -> Result<u32, String> {
    let count = u32::try_from(number).ok().filter(|count| *count <= 32);
    count.ok_or_else(|| format!("{number} devices are more than a claim may have: 32"))
}

fn cores(percent: u64) -> Result<u64, String> {
    match percent {
        0..=100 => Ok(percent),
        _ => Err(format!("gpucores: {percent} is more than 100 %")),
    }
}

fn percentage(percent: u64, terms: &Terms) -> Result<Memory, String> {
    match (percent, terms.device_mib) {
        (100, _) => Ok(Memory::All),
        (1..=99, Some(mib)) => Ok(Memory::Mib(mib.saturating_mul(percent) / 100)),
        (1..=99, None) => Ok(Memory::Percent(percent)),
        _ => Err(format!("{percent} is no percentage of memory")),
    }
}

/// A scheduler asks for each pod that waits, again and again: each name in a list is compared with each device then.
const LONGEST_LIST: usize = 32;

/// HAMi's annotations: how to choose devices.
fn annotations(metadata: &Value, found: &mut Found) -> Result<(), String> {
    let all = metadata.get("annotations").and_then(Value::as_object);
    let of = |name: &str| all.and_then(|all| all.get(name)).and_then(Value::as_str);
    let list = |names: [&str; 2]| -> Vec<String> {
        let text = names.into_iter().find_map(of).unwrap_or_default();
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(str::to_owned).collect()
    };
    let policy = of("gpu.divvy.dev/prefer").or_else(|| of("hami.io/gpu-scheduler-policy"));
    found.ask.prefer = match policy {
        None | Some("binpack") => Prefer::Binpack,
        Some("spread") => Prefer::Spread,
        Some("topology-aware" | "topology") => Prefer::Topology,
        Some(other) => {
            return Err(format!(
                "`{}` is no policy: binpack, spread or topology-aware",
                cut(other)
            ));
        }
    };
    if of("hami.io/node-scheduler-policy").is_some() {
        found
            .remarks
            .push("hami.io/node-scheduler-policy counts with the scheduler extender only".into());
    }
    if of("nvidia.com/vgpu-mode").is_some() {
        found
            .remarks
            .push("nvidia.com/vgpu-mode is not kept: the agent chooses how a device is shared".into());
    }
    found.ask.only = list(["nvidia.com/use-gpuuuid", "hami.io/use-gpuuuid"]);
    found.ask.never = list(["nvidia.com/nouse-gpuuuid", "hami.io/nouse-gpuuuid"]);
    found.ask.models = list(["nvidia.com/use-gputype", "hami.io/use-gputype"]);
    found.ask.no_models = list(["nvidia.com/nouse-gputype", "hami.io/nouse-gputype"]);
    let texts = [
        &found.ask.only,
        &found.ask.never,
        &found.ask.models,
        &found.ask.no_models,
    ];
    if texts.iter().any(|texts| texts.len() > LONGEST_LIST) {
        return Err(format!(
            "an annotation names more than {LONGEST_LIST} devices or models"
        ));
    }
    let plain = |text: &String| {
        text.len() <= 64
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_. ".contains(c))
    };
    match texts.into_iter().flatten().find(|text| !plain(text)) {
        Some(text) => Err(format!("`{}` is no UUID and no model", cut(text))),
        None => Ok(()),
    }
}

/// Text of a pod's author's, of a length for messages.
pub(crate) fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(limits: Value, terms: &Terms) -> Result<Option<Found>, String> {
        let spec = json!({"containers": [{"name": "c", "resources": {"limits": limits}}]});
        read(&json!({}), &spec, terms)
    }

    fn ask(limits: Value) -> Ask {
        let found = of(limits, &Terms::default()).expect("understood").expect("asks");
        found.ask.containers[0].clone()
    }

    #[test]
    fn names_of_each_system_are_understood() {
        for (limits, devices, memory, cores, whole) in [
            (
                json!({"divvy.dev/gpu": "1", "divvy.dev/gpumem": "4096", "divvy.dev/gpucores": 30}),
                1,
                Memory::Mib(4096),
                30,
                false,
            ),
            (
                json!({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}),
                2,
                Memory::Mib(3000),
                0,
                false,
            ),
            (
                json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": "50"}),
                1,
                Memory::Percent(50),
                0,
                false,
            ),
            (json!({"nvidia.com/gpucores": "50"}), 1, Memory::All, 50, false),
            (json!({"nvidia.com/gpu": 2}), 2, Memory::All, 0, true),
            (json!({"aliyun.com/gpu-mem": 3}), 1, Memory::Mib(3072), 0, false),
            (
                json!({"aliyun.com/gpu-mem": 3, "aliyun.com/gpu-count": 2}),
                2,
                Memory::Mib(3072),
                0,
                false,
            ),
            (
                json!({"elasticgpu.io/gpu-core": 50, "elasticgpu.io/gpu-memory": 256}),
                1,
                Memory::Mib(256),
                50,
                false,
            ),
            (json!({"elasticgpu.io/gpu-core": 200}), 2, Memory::All, 0, true),
            (
                json!({"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 10}),
                1,
                Memory::Mib(2560),
                20,
                false,
            ),
        ] {
            let ask = ask(limits.clone());
            assert_eq!(
                (ask.devices, ask.memory, ask.cores, ask.whole),
                (devices, memory, cores, whole),
                "{limits}"
            );
        }
        assert_eq!(of(json!({"cpu": "1"}), &Terms::default()), Ok(None));
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        for (limits, named) in [
            (json!({"nvidia.com/gpu": 1, "aliyun.com/gpu-mem": 3}), "several"),
            (json!({"nvidia.com/gpumem": "lots"}), "lots"),
            (json!({"nvidia.com/gpumem": -1}), "-1"),
            (json!({"nvidia.com/gpu": 33, "nvidia.com/gpumem": 1}), "33"),
            (json!({"nvidia.com/gpucores": 101}), "101"),
            (
                json!({"nvidia.com/gpumem": 1, "nvidia.com/gpumem-percentage": 1}),
                "exclude",
            ),
            (json!({"nvidia.com/priority": 2}), "priority 2"),
            (json!({"nvidia.com/gpu.shared": 1}), "replicas"),
            (json!({"nvidia.com/mig-1g.5gb": 1}), "mig-1g.5gb"),
            (json!({"aliyun.com/gpu-mem": u64::MAX}), "too much"),
            (json!({"aliyun.com/gpu-speed": 1}), "gpu-speed"),
            (
                json!({"elasticgpu.io/gpu-core": 150, "elasticgpu.io/gpu-memory": 1}),
                "150",
            ),
            (json!({"tencent.com/vcuda-memory": 1}), "vcuda-core"),
        ] {
            let refused = of(limits.clone(), &Terms::default()).expect_err(&limits.to_string());
            assert!(refused.contains(named), "{limits}: {refused}");
        }
    }

    #[test]
    fn replicas_are_parts_of_devices() {
        let terms = Terms {
            device_mib: Some(80 << 10),
            replicas: Some(4),
            ..Terms::default()
        };
        let found = of(json!({"nvidia.com/gpu": 1}), &terms)
            .expect("understood")
            .expect("asks");
        let ask = &found.ask.containers[0];
        assert_eq!(
            (ask.memory, ask.cores, ask.whole),
            (Memory::Mib(20 << 10), 25, false)
        );
        assert!(of(json!({"nvidia.com/gpu.shared": 2}), &terms).is_err());
    }

    #[test]
    fn annotations_choose_devices() {
        let spec = json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpumem": 1}}}]});
        let with =
            |name: &str, value: &str| read(&json!({"annotations": {name: value}}), &spec, &Terms::default());
        let found = |name, value| with(name, value).expect("understood").expect("asks").ask;
        assert_eq!(
            found("hami.io/gpu-scheduler-policy", "spread").prefer,
            Prefer::Spread
        );
        assert_eq!(
            found("hami.io/gpu-scheduler-policy", "topology-aware").prefer,
            Prefer::Topology
        );
        assert_eq!(
            found("nvidia.com/use-gputype", "A100, V100").models,
            ["A100", "V100"]
        );
        assert_eq!(found("nvidia.com/nouse-gpuuuid", "GPU-1").never, ["GPU-1"]);
        assert!(with("hami.io/gpu-scheduler-policy", "fast").is_err());
        assert!(with("nvidia.com/use-gpuuuid", "' || true || '").is_err());
    }

    #[test]
    fn containers_that_ask_have_an_end() {
        let read = |count: usize| {
            let one = |number: usize| json!({"name": format!("c{number}"), "resources": {"limits": {"divvy.dev/gpumem": "10"}}});
            let mut all: Vec<Value> = (0..count).map(one).collect();
            all.extend((0..50).map(|number| json!({"name": format!("plain{number}")})));
            super::read(&json!({}), &json!({"containers": all}), &Terms::default())
        };
        assert!(read(MOST_CONTAINERS).is_ok());
        let refused = read(MOST_CONTAINERS + 1).expect_err("too many");
        assert!(refused.contains("more than 16 containers"), "{refused}");
    }

    #[test]
    fn a_name_of_a_class_is_the_schedulers_and_a_misspelt_one_is_refused() {
        let of = |name: &str| of(json!({name: 1}), &Terms::default());
        assert_eq!(of("divvy.dev/gpu-slice"), Ok(None));
        let refused = of("divvy.dev/gpumen").expect_err("misspelt");
        assert!(
            refused.contains("`divvy.dev/gpumen` is not understood"),
            "{refused}"
        );
    }

    #[test]
    fn a_list_of_devices_has_an_end() {
        let read = |count: usize| {
            let metadata = json!({"annotations": {"nvidia.com/use-gpuuuid": vec!["GPU-1"; count].join(",")}});
            let spec = json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"}}}]});
            super::read(&metadata, &spec, &Terms::default())
        };
        assert!(read(LONGEST_LIST).is_ok());
        assert!(
            read(LONGEST_LIST + 1)
                .expect_err("too long")
                .contains("more than 32")
        );
    }
}
