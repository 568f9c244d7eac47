//! Which resources the node's devices are, and the ids that the kubelet counts: NVIDIA's names and ids.

use std::collections::{BTreeMap, BTreeSet};

use divvy_model::{Code, DeviceKind, DeviceRecord, Fault};

use super::config::{Config, MigStrategy, Replicated, Way, Which};
use crate::devices::ailments;
use crate::state::digest;

/// The longest id that a kubelet takes.
const LONGEST_ID: usize = 63;

/// A resource that pods ask for.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Its name, `nvidia.com/gpu`.
    pub name: String,
    /// How its replicas share their device; none where devices are given out whole.
    pub way: Option<Way>,
    /// A container gets one replica at most.
    pub one_only: bool,
    /// Which device a container gets has nothing to do with its ids: its pod's grants say it.
    pub counts_only: bool,
    /// What the kubelet counts.
    pub parts: Vec<Part>,
}

/// A device, or a replica of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its id: the UUID, with `::3` for a replica.
    pub id: String,
    /// The device.
    pub device: DeviceRecord,
    /// So many replicas the device has; 1 for a whole device.
    pub of: u32,
}

impl Part {
    /// Whether new pods may get it.
    #[must_use]
    pub fn is_well(&self) -> bool {
        ailments(&self.device).is_empty()
    }
}

/// The resources of these devices, by name.
///
/// # Errors
/// [`Code::Config`]: what the file asks for does not fit the devices.
pub fn resources(devices: &[DeviceRecord], config: &Config) -> Result<Vec<Resource>, Fault> {
    let mut found: BTreeMap<String, Resource> = BTreeMap::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (device, resource) in named(devices, config)? {
        let place = places.entry(resource.clone()).or_default();
        let replicated = config.sharing.as_ref().and_then(|sharing| {
            let mut all = sharing.resources.iter();
            let found = all.find(|one| one.name == resource && is_meant(one, device, *place))?;
            Some((sharing, found)).filter(|_| found.replicas > 1)
        });
        *place += 1;
        let (name, way, one_only, of) = match replicated {
            None => (resource, None, false, 1),
            Some((sharing, one)) => {
                let name = match (&one.rename, sharing.rename_by_default) {
                    (Some(name), _) => name.clone(),
                    (None, true) => format!("{resource}.shared"),
                    (None, false) => resource,
                };
                (
                    name,
                    Some(sharing.way),
                    sharing.fail_requests_greater_than_one,
                    one.replicas,
                )
            }
        };
        let resource = found.entry(name.clone()).or_insert(Resource {
            name,
            way,
            one_only,
            counts_only: false,
            parts: Vec::new(),
        });
        // Of devices of which some are replicated and some are not, a container must not get what it did not ask for.
        resource.one_only |= one_only;
        resource.way = resource.way.or(way);
        let parts = (0..of).map(|number| Part {
            id: id(&device.uuid, (of > 1).then_some(number)),
            device: device.clone(),
            of,
        });
        resource.parts.extend(parts);
    }
    Ok(found.into_values().collect())
}

/// The devices that are given out, each with its resource's name before it is replicated.
fn named<'a>(devices: &'a [DeviceRecord], config: &Config) -> Result<Vec<(&'a DeviceRecord, String)>, Fault> {
    let gpu = |device: &DeviceRecord| {
        let found = config
            .gpus
            .iter()
            .find(|(pattern, _)| matches(pattern, &device.name));
        found.map_or_else(|| "nvidia.com/gpu".to_owned(), |(_, name)| name.clone())
    };
    let profile = |device: &DeviceRecord| device.mig_instance().and_then(|place| place.profile.clone());
    let gpus = devices
        .iter()
        .filter(|device| !is_instance(device) && !device.is_divided());
    let instances = devices.iter().filter(|device| is_instance(device));
    match config.mig {
        MigStrategy::None => Ok(gpus.map(|device| (device, gpu(device))).collect()),
        MigStrategy::Mixed => {
            let instance = |device: &'a DeviceRecord| {
                let profile = profile(device)?;
                let found = config.migs.iter().find(|(pattern, _)| matches(pattern, &profile));
                let default = || format!("nvidia.com/mig-{}", profile.replace('+', "."));
                Some((device, found.map_or_else(default, |(_, name)| name.clone())))
            };
            let gpus = gpus.map(|device| (device, gpu(device)));
            Ok(gpus.chain(instances.filter_map(instance)).collect())
        }
        MigStrategy::Single => {
            let (gpus, instances): (Vec<_>, Vec<_>) = (gpus.collect(), instances.collect());
            if instances.is_empty() {
                return Ok(gpus.into_iter().map(|device| (device, gpu(device))).collect());
            }
            let first = profile(instances[0]);
            if !gpus.is_empty() || instances.iter().any(|device| profile(device) != first) {
                return Err(Fault::new(
                    Code::Config,
                    "migStrategy `single` needs all GPUs in MIG mode, with instances of one profile",
                )
                .hint("divide the GPUs alike (`divvy gpu mig apply`), or set migStrategy to mixed"));
            }
            Ok(instances
                .into_iter()
                .map(|device| (device, gpu(device)))
                .collect())
        }
    }
}

fn is_instance(device: &DeviceRecord) -> bool {
    device.kind == DeviceKind::Mig || device.mig_instance().is_some()
}

fn is_meant(one: &Replicated, device: &DeviceRecord, place: usize) -> bool {
    match &one.devices {
        Which::All => true,
        Which::First(count) => place < *count,
        Which::These(names) => names.iter().any(|name| is_named(name, device, place)),
    }
}

fn is_named(name: &str, device: &DeviceRecord, place: usize) -> bool {
    name == device.uuid || name == device.index.to_string() || name == place.to_string()
}

/// Names in the file that are of none of these devices, each with what to do. They are no errors: all nodes may have one file.
///
/// # Errors
/// As [`resources`].
pub fn unmatched(devices: &[DeviceRecord], config: &Config) -> Result<Vec<Fault>, Fault> {
    let named = named(devices, config)?;
    let mut found = Vec::new();
    let mut say = |message: String, hint: String| found.push(Fault::new(Code::Config, message).hint(hint));
    let listed = |all: &mut dyn Iterator<Item = String>| {
        let all: BTreeSet<String> = all.collect();
        let all: Vec<String> = all.into_iter().collect();
        if all.is_empty() {
            "none".to_owned()
        } else {
            all.join(", ")
        }
    };
    for one in config.sharing.iter().flat_map(|sharing| &sharing.resources) {
        let of: Vec<&DeviceRecord> = named
            .iter()
            .filter(|(_, resource)| *resource == one.name)
            .map(|(device, _)| *device)
            .collect();
        if of.is_empty() {
            let there = listed(&mut named.iter().map(|(_, resource)| resource.clone()));
            say(
                format!(
                    "no device of this node is a `{}`, of which `sharing` makes replicas",
                    one.name
                ),
                format!("resources of this node before they are shared: {there}"),
            );
            continue;
        }
        match &one.devices {
            Which::All => {}
            Which::First(count) if *count <= of.len() => {}
            Which::First(count) => say(
                format!(
                    "this node has {} devices of `{}`, and `devices` counts {count}",
                    of.len(),
                    one.name
                ),
                "write `devices: all`, or the number that there is".into(),
            ),
            Which::These(names) => {
                for name in names {
                    if !of
                        .iter()
                        .enumerate()
                        .any(|(place, device)| is_named(name, device, place))
                    {
                        let there = listed(
                            &mut of
                                .iter()
                                .map(|device| format!("{} ({})", device.index, device.uuid)),
                        );
                        say(
                            format!(
                                "no `{}` of this node is device `{name}`, which `devices` names",
                                one.name
                            ),
                            format!("those of this node, by index and UUID: {there}"),
                        );
                    }
                }
            }
        }
    }
    for (pattern, name) in &config.gpus {
        let mut gpus = devices.iter().filter(|device| !is_instance(device));
        if !gpus.any(|device| matches(pattern, &device.name)) {
            let gpus = devices.iter().filter(|device| !is_instance(device));
            let there = listed(&mut gpus.map(|device| device.name.clone()));
            say(
                format!("no GPU of this node has a name like `{pattern}`, which is to be `{name}`"),
                format!("its GPUs: {there}; `*` stands for any text"),
            );
        }
    }
    // By the other strategies instances have no names of their own.
    for (pattern, name) in config.migs.iter().filter(|_| config.mig == MigStrategy::Mixed) {
        let profiles = || {
            devices
                .iter()
                .filter_map(|device| device.mig_instance()?.profile.clone())
        };
        if !profiles().any(|profile| matches(pattern, &profile)) {
            let there = listed(&mut profiles());
            say(
                format!(
                    "no MIG instance of this node has a profile like `{pattern}`, which is to be `{name}`"
                ),
                format!("its profiles: {there}; `*` stands for any text"),
            );
        }
    }
    Ok(found)
}

/// Whether a text fits a pattern in which `*` is any text, as NVIDIA's are.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|left| {
            left.char_indices()
                .map(|(at, _)| at)
                .chain([left.len()])
                .any(|at| matches(rest, &left[at..]))
        }),
    }
}

/// The id of a device or of a replica, in what a kubelet takes.
pub(super) fn id(uuid: &str, replica: Option<u32>) -> String {
    let end = replica.map_or_else(String::new, |number| format!("::{number}"));
    if uuid.len() + end.len() <= LONGEST_ID {
        return format!("{uuid}{end}");
    }
    let digest = digest(&[uuid]);
    let kept: String = uuid
        .chars()
        .filter(char::is_ascii)
        .take(LONGEST_ID - end.len() - digest.len() - 1)
        .collect();
    format!("{kept}-{digest}{end}")
}

#[cfg(test)]
pub(crate) mod tests {
    use divvy_model::{Hardware, MigPlace};

    use super::*;
    use crate::devices::tests::{device, ill};

    fn instance(gpu: u32, number: u32, profile: &str) -> DeviceRecord {
        let mut found = device(gpu);
        found.uuid = format!("MIG-{gpu}{number}000000-0000-0000-0000-000000000000");
        found.kind = DeviceKind::Mig;
        found.hardware = Some(Box::new(Hardware {
            mig_instance: Some(MigPlace {
                gpu_uuid: device(gpu).uuid,
                profile: Some(profile.into()),
                ..MigPlace::default()
            }),
            ..Hardware::default()
        }));
        found
    }

    pub(crate) fn config(text: &str) -> Config {
        Config::read(text).expect("understood")
    }

    fn counts(devices: &[DeviceRecord], text: &str) -> Vec<(String, usize)> {
        let found = resources(devices, &config(text)).expect("resources");
        found.into_iter().map(|one| (one.name, one.parts.len())).collect()
    }

    #[test]
    fn names_and_counts_are_nvidias() {
        let gpus = [device(0), device(1)];
        let sliced = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}";
        let one = |name: &str, count: usize| (name.to_owned(), count);
        assert_eq!(counts(&gpus, ""), [one("nvidia.com/gpu", 2)]);
        assert_eq!(counts(&gpus, sliced), [one("nvidia.com/gpu", 8)]);
        let renamed = sliced.replace("resources:", "renameByDefault: true, resources:");
        assert_eq!(counts(&gpus, &renamed), [one("nvidia.com/gpu.shared", 8)]);
        let some =
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, devices: [1], rename: part}]}}";
        assert_eq!(
            counts(&gpus, some),
            [one("nvidia.com/gpu", 1), one("nvidia.com/part", 4)]
        );
        let different = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4, devices: [0]}, {name: gpu, replicas: 2, devices: [1]}]}}";
        assert_eq!(counts(&gpus, different), [one("nvidia.com/gpu", 6)]);
        let patterns = "resources: {gpus: [{pattern: '*H200*', name: hopper}, {pattern: '*', name: gpu}]}";
        assert_eq!(counts(&gpus, patterns), [one("nvidia.com/hopper", 2)]);
        assert_eq!(
            counts(
                &gpus,
                "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}"
            ),
            [one("nvidia.com/gpu", 2)]
        );
    }

    #[test]
    fn names_of_no_device_are_said_with_those_that_there_are() {
        let gpus = [device(0), device(1)];
        let said = |devices: &[DeviceRecord], text: &str| -> Vec<String> {
            let faults = unmatched(devices, &config(text)).expect("resources");
            let line = |fault: Fault| format!("{}: {}", fault.message, fault.hint.unwrap_or_default());
            faults.into_iter().map(line).collect()
        };
        let sharing =
            |one: &str| format!("sharing: {{timeSlicing: {{resources: [{{replicas: 4, {one}}}]}}}}");
        let uuid = gpus[1].uuid.clone();
        for right in [
            String::new(),
            sharing("name: gpu"),
            sharing("name: gpu, devices: 2"),
            sharing(&format!("name: gpu, devices: [0, '1', {uuid}]")),
            "resources: {gpus: [{pattern: '*H200*', name: hopper}], mig: [{pattern: '1g.*', name: small}]}"
                .into(),
        ] {
            assert_eq!(said(&gpus, &right), [""; 0], "{right}");
        }
        for (wrong, named, there) in [
            (sharing("name: gpuu"), "`nvidia.com/gpuu`", "nvidia.com/gpu"),
            (sharing("name: gpu, devices: 3"), "has 2 devices", "all"),
            (sharing("name: gpu, devices: [0, 2]"), "device `2`", "1 (GPU"),
            (
                sharing("name: gpu, devices: [GPU-1]"),
                "device `GPU-1`",
                uuid.as_str(),
            ),
            (
                "resources: {gpus: [{pattern: '*A100*', name: ampere}]}".into(),
                "`*A100*`",
                "H200",
            ),
        ] {
            let said = said(&gpus, &wrong);
            assert!(
                said.len() == 1 && said[0].contains(named) && said[0].contains(there),
                "{wrong}: {said:?}"
            );
        }
        let mixed = "flags: {migStrategy: mixed}, resources: {mig: [{pattern: '2g.*', name: two}, {pattern: '1g.*', name: one}]}";
        let mixed = format!("{{{mixed}}}");
        let found = said(&[instance(0, 1, "1g.18gb"), device(1)], &mixed);
        assert!(
            found.len() == 1 && found[0].contains("`2g.*`") && found[0].contains("1g.18gb"),
            "{found:?}"
        );
        // What is renamed before it is shared has its new name there.
        let renamed = "{resources: {gpus: [{pattern: '*', name: hopper}]}, sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}}";
        let found = said(&gpus, renamed);
        assert!(
            found.len() == 1 && found[0].contains("nvidia.com/hopper"),
            "{found:?}"
        );
    }

    #[test]
    fn mig_is_given_out_by_strategy() {
        let mut divided = device(0);
        divided.hardware.get_or_insert_default().mig_mode = Some(true);
        let alike = [
            divided.clone(),
            instance(0, 1, "1g.18gb"),
            instance(0, 2, "1g.18gb"),
        ];
        let one = |name: &str, count: usize| (name.to_owned(), count);
        assert_eq!(counts(&alike, ""), []);
        assert_eq!(
            counts(&alike, "flags: {migStrategy: single}"),
            [one("nvidia.com/gpu", 2)]
        );
        let mixed = [
            divided,
            instance(0, 1, "1g.18gb+me"),
            instance(0, 2, "3g.71gb"),
            device(1),
        ];
        assert_eq!(
            counts(&mixed, "flags: {migStrategy: mixed}"),
            [
                one("nvidia.com/gpu", 1),
                one("nvidia.com/mig-1g.18gb.me", 1),
                one("nvidia.com/mig-3g.71gb", 1)
            ]
        );
        let refused = resources(&mixed, &config("flags: {migStrategy: single}")).expect_err("not alike");
        assert_eq!(refused.code, Code::Config);
        assert_eq!(
            counts(&[device(0)], "flags: {migStrategy: single}"),
            [one("nvidia.com/gpu", 1)]
        );
    }

    #[test]
    fn ids_fit_and_differ() {
        let long = "MIG-GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee/7/0-and-more-than-anyone-needs";
        let ids = [
            id(long, Some(999)),
            id(&long.replace("more", "less"), Some(999)),
            id(long, None),
        ];
        assert!(ids.iter().all(|id| id.len() <= 63), "{ids:?}");
        assert!(ids[0] != ids[1] && ids[0].ends_with("::999"));
        assert_eq!(id(&device(0).uuid, Some(3)), format!("{}::3", device(0).uuid));
        let sick = resources(&[ill(0), device(1)], &Config::default()).expect("resources");
        let well: Vec<bool> = sick[0].parts.iter().map(Part::is_well).collect();
        assert_eq!(well, [false, true]);
        assert!(
            matches("*a*", "bab")
                && matches("1g.*", "1g.5gb")
                && !matches("1g.*", "2g.5gb")
                && matches("*", "")
        );
    }
}
